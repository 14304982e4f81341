// Generations at work, how fast they are, and a way to stop each.

import { call } from "./api.js";
import { byId, el, pieces, reconcile, setText } from "./dom.js";
import { belonging, clock, counted, napplet, now, number, rate } from "./format.js";
import { act, announce } from "./ui.js";

const STAGES = {
  preparing: "Preparing",
  consent: "Waiting for consent",
  loading: "Loading the model",
  submitted: "Queued or in prefill",
  decoding: "Generating",
  checking: "Checking",
};

let names = new Map();

export function showGenerations(generations, connections) {
  names = new Map(connections.map((each) => [each.key, each.name]));
  byId("generations-none").hidden = generations.length > 0;
  const speed = generations.reduce((sum, each) => sum + (each.tokensPerSecond ?? 0), 0);
  setText(byId("generations-sum"),
    generations.length ? `${number(generations.length)} live${speed ? ` · ${rate(speed)}` : ""}` : "");
  reconcile(byId("generations-list"), generations, (each) => each.number, row, () => byId("generations-title").focus());
}

export function tickGenerations() {
  for (const node of document.querySelectorAll("#generations-list [data-created]")) {
    setText(node, clock(now() - node.dataset.created));
  }
}

function row(generation) {
  const { name } = napplet(generation.endpoint);
  const stage = el("span", { class: "chip" });
  const model = el("span");
  const tokens = el("span");
  const speed = el("span");
  const elapsed = el("span", { "data-created": generation.created }, clock(now() - generation.created));
  const stop = (event) =>
    act(event.currentTarget, async () => {
      try {
        await call("POST", `/owner/generations/${generation.number}/stop`);
        announce(`Stopped the generation of ${name}.`);
      } catch (error) {
        if (error.status !== 404) throw error;
        announce(`The generation of ${name} had already ended.`);
      }
    });
  const node = el("li", { class: "row" },
    el("div", { class: "what" },
      el("p", { class: "title" }, el("strong", {}, name), " ", stage),
      el("p", { class: "under" }, ...pieces(model, ...belonging(generation.endpoint))),
      el("p", { class: "figures" }, tokens, speed, elapsed),
    ),
    el("button", { type: "button", "aria-label": `Stop the generation of ${name}`, click: stop }, "Stop"),
  );
  return {
    node,
    update(each) {
      setText(stage, STAGES[each.stage] ?? each.stage);
      stage.classList.toggle("active", each.stage === "decoding");
      setText(model, names.get(each.connection) ?? "no model yet");
      setText(tokens, each.outputTokens ? counted(each.outputTokens, "token") : "");
      setText(speed, rate(each.tokensPerSecond));
    },
  };
}
