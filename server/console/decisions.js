// Questions only the owner can answer: may this be disclosed, and which model shall it be.

import { call } from "./api.js";
import { byId, el, facts, pieces, reconcile, setText } from "./dom.js";
import { belonging, bytes, clock, counted, napplet, now, number, visible } from "./format.js";
import { act, announce, focusView } from "./ui.js";

const ROLES = { system: "System messages", user: "User messages", assistant: "Assistant messages" };

const heard = new Set();

export function showDecisions(decisions) {
  for (const each of decisions) {
    if (heard.has(each.id)) continue;
    heard.add(each.id);
    announce(`${title(each)}. ${counted(decisions.length, "decision")} waiting.`);
  }
  byId("decisions-none").hidden = decisions.length > 0;
  reconcile(byId("decisions-list"), decisions, (each) => each.id, card, refocus);
}

export function tickDecisions() {
  for (const node of document.querySelectorAll("#decisions-list .left")) {
    setText(node, `${clock(node.dataset.expires - now())} left`);
  }
}

function refocus() {
  const next = document.querySelector("#decisions-list h3");
  if (next) next.focus();
  // Elsewhere the section goes with its last question.
  else if (byId("view-overview").hidden) focusView();
  else byId("decisions-title").focus();
}

function title(decision) {
  const { name } = napplet(decision.endpoint);
  return decision.kind === "consent"
    ? `${name} asks for an answer from ${decision.disclosure.connection}`
    : `${name} asks for a model`;
}

function card(decision) {
  const id = `decision-${decision.id}`;
  const left = el("span", { class: "left", "data-expires": decision.expires }, `${clock(decision.expires - now())} left`);
  const body = decision.kind === "consent" ? consent(decision) : selection(decision);
  const node = el("li", { class: "card decision", "aria-labelledby": id },
    el("div", { class: "heading" }, el("h3", { id, tabindex: "-1" }, title(decision)), left),
    el("p", { class: "under" }, ...pieces(...belonging(decision.endpoint))),
    ...body,
  );
  return { node, update() {} };
}

async function settle(button, path, body, done) {
  await act(button, async () => {
    try {
      await call("POST", path, body);
      announce(done);
    } catch (error) {
      // It was withdrawn in the meantime, and is about to leave the list.
      if (error.status !== 404) throw error;
      announce("This question is no longer waiting.");
    }
  });
}

function identityFacts(decision) {
  const { name, hash } = napplet(decision.endpoint);
  return [
    ["Napplet", name],
    ["Hash", hash ? el("code", {}, hash) : "none given by the shell"],
    ["Account", visible(decision.endpoint.account) || "none given by the shell"],
  ];
}

function consent(decision) {
  const { disclosure: told, id } = decision;
  const path = `/owner/consents/${id}`;
  const answer = (words, done) => (event) => settle(event.currentTarget, path, { decision: words }, done);
  return [
    el("div", { class: "disclosure" },
      facts([
        ...identityFacts(decision),
        ["Model", modelName(told)],
        ["Route", told.route],
        ["Cost", told.charge],
      ]),
      amounts(told),
    ),
    content(path),
    el("div", { class: "actions" },
      el("button", { type: "button", click: answer("deny", "Denied. Nothing was submitted.") }, "Deny"),
      el("button", { type: "button", class: "primary", click: answer("allow", "Allowed.") }, "Allow once"),
    ),
  ];
}

function modelName(told) {
  return told.connection === told.model ? told.model : `${told.connection} (${told.model})`;
}

/** What is disclosed, with counts and sizes. What is not there is said too: that is what one wants to know. */
function amounts(told) {
  const rows = Object.entries(ROLES)
    .filter(([role]) => told.messages[role])
    .map(([role, label]) => [label, told.messages[role]]);
  rows.push(["Images", told.images], ["Tool definitions", told.tool_definitions], ["Tool results", told.tool_results],
    ["Answer schema", told.answer_schema], ["Continuations", told.continuations]);
  const table = el("table", { class: "amounts" },
    el("caption", {}, "What the model would be told"),
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, "Part"),
      el("th", { scope: "col", class: "number" }, "Count"),
      el("th", { scope: "col", class: "number" }, "Size"),
    )),
  );
  const body = el("tbody");
  for (const [label, amount] of rows) {
    body.append(el("tr", { class: amount.count ? null : "zero" },
      el("th", { scope: "row" }, label),
      el("td", { class: "number" }, number(amount.count)),
      el("td", { class: "number" }, amount.count ? bytes(amount.bytes) : "–"),
    ));
  }
  table.append(body);
  if (told.tool_names.length === 0) return table;
  return el("div", {}, table, el("p", { class: "under" }, `Tools: ${told.tool_names.map(visible).join(", ")}`));
}

/** The content itself, fetched only when the owner wants to see it. */
function content(path) {
  const place = el("div", { class: "content", tabindex: "0", role: "region", "aria-label": "Content" });
  let fetched = false;
  const open = async () => {
    if (!details.open || fetched) return;
    fetched = true;
    place.replaceChildren(el("p", { class: "none" }, "Fetching the content."));
    try {
      place.replaceChildren(...write(await call("GET", path)));
    } catch (error) {
      fetched = false;
      place.replaceChildren(el("p", { class: "problem" }, error.message));
    }
  };
  const details = el("details", { toggle: open }, el("summary", {}, "Show the content"), place);
  return details;
}

function write(request) {
  const continued = new Map(request.continued.map(({ message, tokens }) => [message, tokens]));
  const blocks = request.messages.map((message, index) =>
    el("div", { class: "said" },
      el("h4", {}, roleName(message.role)),
      ...message.content.map(part),
      continued.has(index) ? el("p", { class: "under" }, continuation(continued.get(index))) : null,
    ),
  );
  for (const tool of request.tools) {
    blocks.push(el("div", { class: "said" },
      el("h4", {}, `Tool ${tool.name}`),
      tool.description ? el("p", { class: "text" }, tool.description) : null,
      el("pre", {}, JSON.stringify(tool.parameters, null, 2)),
    ));
  }
  if (request.schema !== undefined) {
    blocks.push(el("div", { class: "said" },
      el("h4", {}, "Schema of the answer"),
      el("pre", {}, JSON.stringify(request.schema, null, 2)),
    ));
  } else if (request.format === "json") blocks.push(el("p", { class: "under" }, "The answer shall be a JSON object."));
  return blocks;
}

/** The payload is sealed tokens, nothing to read: what stands there is told. */
function continuation(tokens) {
  return `Put back as the model wrote it, with what it thought: ${counted(tokens, "token")}.`;
}

function roleName(role) {
  return { system: "System", user: "User", assistant: "Assistant", toolResult: "Tool result" }[role];
}

function part(value) {
  if (value.type === "image") {
    return el("img", { src: `data:${value.mimeType};base64,${value.data}`, alt: "Image that would be disclosed" });
  }
  if (value.type === "toolCall") {
    return el("pre", {}, `${value.name}(${JSON.stringify(value.arguments, null, 2)})`);
  }
  return el("p", { class: "text" }, value.text);
}

function selection(decision) {
  const { choices, id, requirements } = decision;
  const path = `/owner/selections/${id}`;
  const group = el("fieldset", {}, el("legend", {}, "Models that meet the requirements"));
  choices.forEach((each, index) => {
    group.append(el("label", { class: "choice" },
      el("input", { type: "radio", name: `choice-${id}`, value: each.key, checked: index === 0 }),
      el("span", {}, each.name, el("span", { class: "under" }, each.model)),
    ));
  });
  const use = (event) => {
    const key = group.querySelector("input:checked").value;
    const { name } = choices.find((each) => each.key === key);
    settle(event.currentTarget, path, { connection: key }, `${name} was chosen.`);
  };
  const deny = (event) => settle(event.currentTarget, path, { decision: "deny" }, "Denied. No model was chosen.");
  return [
    el("div", { class: "disclosure" }, facts([...identityFacts(decision), ["Needs", needs(requirements)]]), group),
    el("div", { class: "actions" },
      el("button", { type: "button", click: deny }, "Deny"),
      el("button", { type: "button", class: "primary", click: use }, "Use this model"),
    ),
  ];
}

function needs({ model, images, json, tools }) {
  const wanted = [model && `exactly ${model}`, images && "images", json && "JSON answers", tools && "tools"];
  return wanted.filter(Boolean).join(", ") || "any model";
}
