// The console: who looks, what is shown, and the event stream that keeps it true.

import { showAccess, startAccess } from "./access.js";
import { follow } from "./api.js";
import { showDecisions, tickDecisions } from "./decisions.js";
import { byId, setText } from "./dom.js";
import { showGenerations, tickGenerations } from "./generations.js";
import { hasGpu, lookAtMachine, showModels } from "./models.js";
import { answerOwn, ownToken, showPlayground, startPlayground } from "./playground.js";
import { forget, keep, token } from "./session.js";
import { focusView, startUi } from "./ui.js";

const VIEWS = ["overview", "access", "playground"];
const GPU_LOOK = 5000;

let state = null;
let following = new AbortController();

function start() {
  startUi();
  startAccess();
  startPlayground();
  byId("sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keep(byId("sign-in-token").value);
    byId("sign-in-token").value = "";
    open();
  });
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) open();
    else if (state !== null && showView()) focusView();
  });
  setInterval(() => {
    tickDecisions();
    tickGenerations();
  }, 1000);
  setInterval(() => {
    if (state !== null && hasGpu() && document.visibilityState === "visible") lookAtMachine();
  }, GPU_LOOK);
  open();
}

/** Begins with the token that is here now, or asks for one. */
async function open() {
  following.abort();
  following = new AbortController();
  const { signal } = following;
  if (token() === null) {
    signIn("");
    return;
  }
  try {
    await follow({ onState: show, onLink: showLink, signal });
  } catch (refusal) {
    forget();
    signIn(refusal.status === 401 ? "The server does not know this token." : refusal.message);
  }
}

function signIn(problem) {
  state = null;
  document.title = "Sign in – nap-llm";
  for (const node of document.querySelectorAll(".view, #nav, #link, #decisions")) node.hidden = true;
  setText(byId("sign-in-problem"), problem);
  byId("sign-in-problem").hidden = !problem;
  byId("sign-in").hidden = false;
  byId("sign-in-token").focus();
}

function show(next) {
  const first = state === null;
  state = withLabels({ ...next, decisions: answerOwn(next.decisions) });
  showGenerations(state.generations, state.connections);
  showModels(state.connections);
  showAccess(state, ownToken());
  showPlayground(state.connections);
  showDecisions(state.decisions);
  showView();
  if (!first) return;
  byId("sign-in").hidden = true;
  byId("nav").hidden = false;
}

/** The state with connections told apart: where two have the same name, their keys stand beside it. */
function withLabels({ connections, decisions, ...rest }) {
  const label = (key, name) => (connections.filter((each) => each.name === name).length > 1 ? `${name} (${key})` : name);
  const named = (each) => ({ ...each, name: label(each.key, each.name) });
  return {
    ...rest,
    connections: connections.map(named),
    decisions: decisions.map((each) => each.kind === "selection"
      ? { ...each, choices: each.choices.map(named) }
      : { ...each, disclosure: { ...each.disclosure, connection: label(each.disclosure.key, each.disclosure.connection) } }),
  };
}

/** Shows the view that the address names. Whether it was another one before. */
function showView() {
  const named = location.hash.slice(1);
  const name = VIEWS.includes(named) ? named : currentView() ?? VIEWS[0];
  const changed = name !== currentView();
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== name;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const waiting = state.decisions.length;
  // Questions are shown wherever one is; that there are none, in the overview alone.
  byId("decisions").hidden = waiting === 0 && name !== "overview";
  const title = document.querySelector(`#view-${name} h1`).textContent;
  document.title = `${waiting ? `(${waiting}) ` : ""}${title} – nap-llm`;
  return changed;
}

function currentView() {
  return VIEWS.find((each) => !byId(`view-${each}`).hidden);
}

function showLink(live) {
  const link = byId("link");
  link.hidden = false;
  setText(link, live ? "Live" : "Reconnecting");
  link.classList.toggle("lost", !live);
}

start();
