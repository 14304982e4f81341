// Connections, what their loaded models take, and the machine they run on.

import { call } from "./api.js";
import { byId, el, pieces, reconcile, setText } from "./dom.js";
import { bytes, counted, number } from "./format.js";
import { act, announce, ask } from "./ui.js";

let device = null;
let looked = "";
let lastConnections = [];

export function showModels(connections) {
  lastConnections = connections;
  reconcile(byId("models-list"), connections, (each) => each.key, row, () => byId("models-title").focus());
  // What a model takes changes when it comes or goes.
  const loaded = connections.map((each) => each.state).join();
  if (loaded !== looked) {
    looked = loaded;
    lookAtMachine();
  }
  showMachine();
}

export async function lookAtMachine() {
  try {
    device = await call("GET", "/owner/device");
  } catch {
    // It stays as it was last seen; the event stream tells when the server is gone.
    return;
  }
  showMachine();
}

/** Whether there is memory whose use the event stream does not tell. */
export function hasGpu() {
  return device !== null && device.gpus.length > 0;
}

function status(each) {
  if (!each.enabled) return "Disabled";
  if (each.state === "loading") return "Loading";
  if (each.state === "unloaded") return "Not loaded";
  return each.alive ? "Loaded" : "Restarting";
}

function figures(each) {
  if (each.state !== "loaded") return [];
  return [
    each.memory === null ? "" : `${bytes(each.memory)} of memory`,
    `${number(each.contextLength)} tokens × ${counted(each.slots, "slot")}`,
    each.active || each.queued ? `${number(each.active)} active, ${number(each.queued)} queued` : "idle",
    each.outputTokens ? `${counted(each.outputTokens, "token")} so far` : "",
    each.forcedTokens ? `${number(each.forcedTokens)} of them forced by grammars` : "",
    each.restarts ? counted(each.restarts, "restart") : "",
    ...each.notes, // what it was not given, for want of memory
  ].filter(Boolean);
}

function row(connection) {
  let current = connection;
  const chip = el("span", { class: "chip" });
  const told = el("p", { class: "figures" });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const { key, name } = connection;
  const complain = (text) => {
    setText(problem, text);
    problem.hidden = !text;
  };
  const change = (button, verb, done) =>
    act(button, async () => {
      await call("POST", `/owner/models/${encodeURIComponent(key)}/${verb}`);
      announce(`${name}: ${done}.`);
    }, complain);
  const busy = () => current.active + current.queued > 0;

  const load = el("button", { type: "button", click: async () => {
    if (current.state === "unloaded") return change(load, "load", "loaded");
    const consequence = "Its memory comes back at once. Work on it is cancelled; the next request loads it again.";
    if (busy() && !(await ask(`Unload ${name}?`, consequence, "Unload"))) return undefined;
    return change(load, "unload", "unloaded");
  } });
  const enable = el("button", { type: "button", click: async () => {
    if (!current.enabled) return change(enable, "enable", "enabled");
    const consequence = "Work on it is cancelled, and shells have to select a model again.";
    if (!(await ask(`Disable ${name}?`, consequence, "Disable"))) return undefined;
    return change(enable, "disable", "disabled");
  } });
  const node = el("li", { class: "row" },
    el("div", { class: "what" },
      el("p", { class: "title" }, el("strong", {}, name), " ", chip),
      el("p", { class: "under" }, ...pieces(connection.model, connection.route)),
      told,
      problem,
    ),
    el("div", { class: "buttons" }, load, enable),
  );
  return {
    node,
    update(each) {
      current = each;
      setText(chip, status(each));
      chip.classList.toggle("active", each.enabled && each.state === "loaded");
      told.replaceChildren(...figures(each).map((text) => el("span", {}, text)));
      const verb = each.state === "unloaded" ? "Load" : "Unload";
      setText(load, verb);
      load.setAttribute("aria-label", `${verb} ${name}`);
      load.hidden = !each.enabled;
      const other = each.enabled ? "Disable" : "Enable";
      setText(enable, other);
      enable.setAttribute("aria-label", `${other} ${name}`);
    },
  };
}

function showMachine() {
  if (device === null) return;
  const models = lastConnections.reduce((sum, each) => sum + (each.memory ?? 0), 0);
  const meters = [
    { key: "memory", label: "Memory used by models", used: models, total: device.memory },
    ...device.gpus.map((gpu, index) => (
      { key: `gpu-${index}`, label: `Memory of ${gpu.name}`, used: gpu.memory - gpu.free, total: gpu.memory }
    )),
  ];
  const place = byId("machine");
  if (place.firstElementChild?.classList.contains("none")) place.replaceChildren(el("div", { class: "meters" }), el("p", { class: "under" }));
  reconcile(place.firstElementChild, meters, (each) => each.key, meter, () => {});
  setText(place.lastElementChild, `${counted(device.cores, "core")} · ${device.backends.join(", ")}`);
}

function meter({ key, label }) {
  const bar = el("span");
  const words = el("span");
  const id = `meter-${key}`;
  const gauge = el("div", { class: "meter", role: "meter", "aria-labelledby": id, "aria-valuemin": "0" }, bar);
  return {
    node: el("div", {}, el("p", { class: "heading" }, el("span", { id }, label), words), gauge),
    update({ used, total }) {
      const text = `${bytes(used)} of ${bytes(total)}`;
      setText(words, text);
      gauge.setAttribute("aria-valuemax", total);
      gauge.setAttribute("aria-valuenow", used);
      gauge.setAttribute("aria-valuetext", text);
      bar.style.width = `${(100 * used) / total}%`;
    },
  };
}
