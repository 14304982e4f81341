// Who may come in: shells' tokens, the endpoints behind them, and accounts.

import { call } from "./api.js";
import { byId, el, pieces, reconcile, setText } from "./dom.js";
import { ago, belonging, counted, napplet, visible } from "./format.js";
import { act, announce, ask } from "./ui.js";

const CONSENT = {
  ask: ["you decide each time", "You see what would be disclosed here, and allow or deny it."],
  shell: ["the shell asks its user", "The shell says that its user agreed; otherwise nothing is submitted."],
  always: ["nobody is asked", "Departs from the NAP-LLM specification. For your own programs only."],
};
const SELECT = {
  default: ["first model that fits", "In the order of models.toml."],
  ask: ["you choose the model", "You pick one of those that meet the requirements, here."],
};

export function startAccess() {
  const form = byId("token-form");
  const name = byId("token-name");
  const hint = () => {
    setText(byId("token-consent-hint"), CONSENT[byId("token-consent").value][1]);
    setText(byId("token-select-hint"), SELECT[byId("token-select").value][1]);
  };
  form.addEventListener("change", hint);
  hint();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = { name: name.value, consent: byId("token-consent").value, select: byId("token-select").value };
    const problem = (text) => {
      setText(byId("token-problem"), text);
      byId("token-problem").hidden = !text;
    };
    await act(form.querySelector(".primary"), async () => {
      const { token } = await call("POST", "/owner/tokens", wanted);
      form.reset();
      hint();
      showMade(wanted.name, token);
    }, problem);
  });
  byId("made-copy").addEventListener("click", copy);
  byId("made").addEventListener("close", () => {
    byId("made-token").value = "";
    setText(byId("made-copied"), "");
    name.focus();
  });
}

function showMade(name, token) {
  setText(byId("made-title"), `Token ${name}`);
  byId("made-token").value = token;
  byId("made").showModal();
  byId("made-copy").focus();
}

async function copy() {
  const field = byId("made-token");
  let copied = true;
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    // No clipboard outside secure contexts: the selection can be copied by hand.
    field.focus();
    field.select();
    copied = false;
  }
  setText(byId("made-copied"), copied ? "Copied." : "Selected; copy it with your keyboard.");
}

/** `own` is the name of the token that this page's playground uses, if it has one. */
export function showAccess({ endpoints, tokens }, own) {
  byId("tokens-none").hidden = tokens.length > 0;
  const shown = tokens.map((each) => ({ ...each, own: each.name === own }));
  // A name may come back with another token.
  reconcile(byId("tokens-list"), shown, (each) => `${each.name} ${each.created}`, tokenRow,
    () => byId("tokens-title").focus());
  byId("endpoints-none").hidden = endpoints.length > 0;
  reconcile(byId("endpoints-list"), endpoints, (each) => each.id, endpointRow, () => byId("endpoints-title").focus());
  const accounts = new Map();
  for (const { token, account } of endpoints) {
    if (account) accounts.set(JSON.stringify([token, account]), { token, account });
  }
  byId("accounts").hidden = accounts.size === 0;
  reconcile(byId("accounts-list"), [...accounts.values()], (each) => JSON.stringify(each), accountRow,
    () => byId("endpoints-title").focus());
}

function row(title, under, button) {
  return el("li", { class: "row" },
    el("div", { class: "what" }, el("p", { class: "title" }, ...title), el("p", { class: "under" }, ...under)),
    button,
  );
}

/** A button that asks first, then does something that cannot be undone. */
function final(label, what, question, consequence, work, done) {
  return el("button", { type: "button", "aria-label": `${label} ${what}`, click: async (event) => {
    const button = event.currentTarget;
    if (!(await ask(question, consequence, label))) return;
    await act(button, async () => {
      await work();
      announce(done);
    });
  } }, label);
}

function tokenRow(token) {
  const made = el("span");
  const own = el("span", { class: "chip", hidden: true }, "this page’s playground");
  const button = final("Revoke", token.name, `Revoke ${token.name}?`,
    "Everything that runs under it is cancelled, its napplets’ selections end, and it never works again.",
    () => call("DELETE", `/owner/tokens/${encodeURIComponent(token.name)}`), `Token ${token.name} revoked.`);
  const policy = [`Consent: ${CONSENT[token.consent][0]}`, `Model: ${SELECT[token.select][0]}`];
  return {
    node: row([el("strong", {}, token.name), " ", own], pieces(...policy, made), button),
    update(each) {
      setText(made, `created ${ago(each.created)}`);
      own.hidden = !each.own;
    },
  };
}

function endpointRow(endpoint) {
  const { name, hash } = napplet(endpoint);
  const handles = el("span");
  const button = final("Revoke", name, `Revoke this endpoint of ${name}?`,
    "Its work is cancelled and its selections end. Under the same token it may select anew.",
    () => call("POST", `/owner/endpoints/${endpoint.id}/revoke`), `Endpoint of ${name} revoked.`);
  const node = row([el("strong", {}, name), " ", hash ? el("code", { class: "hash" }, hash) : ""],
    pieces(...belonging(endpoint), handles), button);
  return { node, update: (each) => setText(handles, counted(each.handles, "selection")) };
}

function accountRow({ token, account }) {
  const shown = visible(account);
  const button = final("End", `account ${shown}`, `End everything of ${shown}?`,
    `All work under this account of shell ${token} is cancelled and all its selections end.`,
    () => call("POST", "/owner/account", { token, account }), `Account ${shown} ended.`);
  return { node: row([el("strong", {}, shown)], [`shell ${token}`], button), update() {} };
}
