// A chat with a model through the wire that shells use, under a token that lives as long as this page.

import { call } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { counted, rate } from "./format.js";
import { giveBack, picture, startImages, takeImages } from "./images.js";
import { newId, Shell, WireError } from "./nap.js";
import { startTools, toolChoice, tools } from "./tools.js";
import { announce } from "./ui.js";

const IDENTITY = "console-playground";

let own = null;
/** The handle, its label, and the key of the connection that it stands for. */
let selection = null;
/** The key of the connection that is being selected, and what gives that up. */
let choosing = null;
let messages = [];
/** Calls of the last turn that wait for their results: `{call, field}`. */
let calls = [];
let running = null;

/** The name of the token that the playground uses, or null. */
export function ownToken() {
  return own?.name ?? null;
}

export function startPlayground() {
  startTools();
  startImages();
  const text = byId("chat-text");
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("chat-form").requestSubmit();
  });
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("request-form").addEventListener("submit", (event) => event.preventDefault());
  byId("chat-stop").addEventListener("click", () => running?.abort());
  byId("chat-clear").addEventListener("click", clear);
  addEventListener("pagehide", leave);
}

/** Offers the connections that are enabled, each by itself, whatever model it has. */
export function showPlayground(connections) {
  const select = byId("request-model");
  const offered = connections.filter((each) => each.enabled).map(({ key, name }) => [key, name]);
  const known = [...select.options].map((each) => `${each.value} ${each.text}`).join();
  if (known === offered.map((each) => each.join(" ")).join()) return;
  const kept = select.value;
  select.replaceChildren(
    ...offered.map(([key, label]) => el("option", { value: key, selected: key === kept }, label)),
  );
}

/** Answers what the playground itself asks the owner, with what stands in the form; gives the other questions. */
export function answerOwn(decisions) {
  return decisions.filter((each) => {
    if (own === null || each.endpoint.token !== own.name) return true;
    if (choosing !== null && choosing.asked !== each.id) {
      const { key, attempt } = choosing;
      choosing.asked = each.id;
      call("POST", `/owner/selections/${each.id}`, { connection: key }).catch(
        () => attempt.abort(new Error("This connection cannot be used now.")),
      );
    }
    return false;
  });
}

function leave() {
  running?.abort();
  if (own === null) return;
  // Nobody else knows this token, so nobody misses it.
  call("DELETE", `/owner/tokens/${own.name}`, undefined, { keepalive: true }).catch(() => {});
  own = selection = null;
}

async function shell() {
  if (own === null) {
    const name = `playground-${newId().slice(0, 8)}`;
    const { token } = await call("POST", "/owner/tokens", { name, consent: "always", select: "ask" });
    own = { name, shell: new Shell(token, IDENTITY) };
  }
  return own.shell;
}

/** The handle of the chosen connection, selected anew where the choice has changed. */
async function handle(signal) {
  const key = byId("request-model").value;
  if (!key) throw new Error("No model is enabled.");
  if (selection?.key === key) return selection.handle;
  const attempt = new AbortController();
  const stop = () => attempt.abort(signal.reason);
  signal.addEventListener("abort", stop);
  try {
    const caller = await shell();
    choosing = { key, attempt };
    selection = { key, ...(await caller.select({}, attempt.signal)) };
    return selection.handle;
  } catch (error) {
    // A stream that is given up tells its own reason.
    throw attempt.signal.aborted ? attempt.signal.reason : error;
  } finally {
    choosing = null;
    signal.removeEventListener("abort", stop);
  }
}

function clear() {
  running?.abort();
  messages = [];
  calls = [];
  byId("chat-log").replaceChildren(byId("chat-none"));
  byId("chat-none").hidden = false;
  announce("Conversation cleared.");
  byId("chat-text").focus();
}

function settings() {
  const limit = byId("request-tokens");
  const temperature = byId("request-temperature");
  for (const field of [limit, temperature]) {
    if (!field.reportValidity()) throw new Error("A setting of the request is out of bounds.");
  }
  const request = { format: byId("request-format").value };
  if (limit.value) request.maxTokens = limit.valueAsNumber;
  if (temperature.value) request.temperature = temperature.valueAsNumber;
  const offered = tools();
  if (offered.length) Object.assign(request, { tools: offered, toolChoice: toolChoice() });
  return request;
}

async function send() {
  if (running !== null) return;
  const text = byId("chat-text").value.trim();
  if (calls.length) {
    announce("Give the results of the calls first.");
    calls[0].field.focus();
    return;
  }
  const images = takeImages();
  if (!text && !images.length) return;
  const content = images.map(({ part }) => part);
  if (text) content.push({ type: "text", text });
  entry("You",
    images.length ? el("div", { class: "shown" }, ...images.map(picture)) : null,
    text ? el("p", { class: "text" }, text) : null,
  );
  if (await turn([{ role: "user", content }])) return;
  // What was not answered is offered to be sent again.
  if (!byId("chat-text").value) byId("chat-text").value = text;
  giveBack(images);
}

async function sendResults(event) {
  event.preventDefault();
  if (running !== null) return;
  const answered = calls;
  const results = answered.map(({ call: { toolCallId, name }, field }) => (
    { role: "toolResult", toolCallId, toolName: name, content: [{ type: "text", text: field.value }] }
  ));
  calls = [];
  const freeze = (frozen) => {
    for (const { field } of answered) field.readOnly = frozen;
    event.target.querySelector("button").hidden = frozen;
  };
  freeze(true);
  if (await turn(results)) return;
  calls = answered;
  freeze(false);
}

/** One request and its answer. Whether it was answered; the conversation stays as it was where not. */
async function turn(added) {
  const answer = new Answer();
  running = new AbortController();
  const { signal } = running;
  busy(true);
  try {
    const request = settings();
    byId("chat-text").value = "";
    const system = byId("request-system").value;
    const before = system ? [{ role: "system", content: [{ type: "text", text: system }] }] : [];
    const result = await generate({ ...request, messages: [...before, ...messages, ...added] }, answer, signal);
    // Thinking is never sent back, and a call counts in a result of `toolUse` alone.
    const kept = result.finish === "toolUse" ? ["text", "toolCall"] : ["text"];
    const content = result.content.filter((part) => kept.includes(part.type));
    messages.push(...added);
    if (content.length) messages.push({ role: "assistant", content });
    answer.finish(result);
    return true;
  } catch (error) {
    answer.fail(signal.aborted ? "Stopped." : error instanceof WireError ? `${error.code}: ${error.message}` : error.message);
    if (error.unauthorized) own = selection = null;
    return false;
  } finally {
    running = null;
    busy(false);
  }
}

async function generate(request, answer, signal) {
  const attempt = async () => {
    const asked = { ...request, handle: await handle(signal) };
    signal.throwIfAborted();
    answer.begin(selection.name);
    return (await shell()).generate(asked, (delta) => answer.take(delta), signal);
  };
  try {
    return await attempt();
  } catch (error) {
    if (!(error instanceof WireError) || error.code !== "selection-expired") throw error;
    selection = null;
    return attempt();
  }
}

function busy(yes) {
  const [stop, button, text] = [byId("chat-stop"), byId("chat-send"), byId("chat-text")];
  const focused = document.activeElement;
  stop.hidden = !yes;
  button.hidden = yes;
  byId("chat-log").setAttribute("aria-busy", yes);
  if (yes) {
    if (focused === button) stop.focus();
    return;
  }
  // What comes next: the results where calls wait for them, else another message.
  const idle = focused === text && text.value === "";
  if (focused === stop || focused === document.body || idle) (calls[0]?.field ?? text).focus();
}

function entry(who, ...content) {
  const log = byId("chat-log");
  byId("chat-none").hidden = true;
  const node = el("article", { class: who === "You" ? "entry mine" : "entry" }, el("h3", {}, who), ...content);
  log.append(node);
  log.scrollTop = log.scrollHeight;
  return node;
}

/** An answer as it grows, block by block. */
class Answer {
  constructor() {
    this.node = null;
    this.blocks = new Map();
    this.first = null;
  }

  begin(name) {
    this.node?.remove();
    this.began = performance.now();
    this.meta = el("p", { class: "under" }, "Waiting for the first token.");
    this.node = entry(name, this.meta);
    this.heading = this.node.firstElementChild;
  }

  take({ event, block, blockIndex, text, name }) {
    const log = byId("chat-log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (event === "start") {
      this.first ??= performance.now();
      setText(this.meta, "Generating.");
      this.open(block, blockIndex, name);
    } else if (event === "delta") {
      this.blocks.get(blockIndex).append(text);
    } else if (block === "thinking") {
      this.blocks.get(blockIndex).parentElement.open = false;
    }
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  open(block, index, name) {
    let outer;
    let inner;
    if (block === "text") {
      outer = inner = el("p", { class: "text" });
    } else if (block === "thinking") {
      inner = el("p", { class: "text" });
      outer = el("details", { class: "thinking", open: true }, el("summary", {}, "Thinking"), inner);
    } else {
      inner = el("pre", { tabindex: "0", "aria-label": `Arguments of ${name}` });
      outer = el("div", { class: "call" }, el("p", { class: "title" }, "Call ", el("strong", {}, name)), inner);
    }
    this.blocks.set(index, inner);
    this.meta.before(outer);
  }

  finish({ content, finish, usage }) {
    const seconds = (performance.now() - (this.first ?? this.began)) / 1000;
    const told = [{ stop: "Complete", length: "Cut at the token limit", refusal: "Refused", toolUse: "Calls tools" }[finish]];
    if (usage) {
      told.push(`${usage.inputTokens} in, ${usage.outputTokens} out`);
      if (usage.outputTokens > 1 && seconds > 0) told.push(rate((usage.outputTokens - 1) / seconds));
    }
    if (this.first !== null) told.push(`first token after ${Math.round(this.first - this.began)} ms`);
    setText(this.meta, told.join(" · "));
    announce(`${this.heading.textContent} has answered. ${told[0]}.`);
    if (finish !== "toolUse") {
      this.discardCalls();
      return;
    }
    content.forEach((part, index) => {
      if (part.type === "toolCall") setText(this.blocks.get(index), JSON.stringify(part.arguments, null, 2));
    });
    this.askResults(content.filter((part) => part.type === "toolCall"));
  }

  askResults(made) {
    const form = el("form", { class: "results", submit: sendResults });
    calls = made.map((call) => {
      const field = el("textarea", { id: `result-${call.toolCallId}`, rows: 1, class: "code" });
      form.append(el("label", { for: field.id }, `Result of ${call.name}`), field);
      return { call, field };
    });
    form.append(el("div", { class: "actions" }, el("button", {}, counted(made.length, "Send the result", "Send the results").replace(/^\d+ /, ""))));
    this.node.append(form);
    byId("chat-log").scrollTop = byId("chat-log").scrollHeight;
  }

  /** Calls that were shown as they came are none where the turn was cut, refused or failed: nothing was called. */
  discardCalls() {
    for (const call of this.node.querySelectorAll(".call")) {
      call.classList.add("discarded");
      call.querySelector(".title").append(" was discarded");
    }
  }

  fail(words) {
    if (this.node === null) this.begin("Not sent");
    this.node.classList.add("failed");
    this.discardCalls();
    setText(this.meta, words);
    this.meta.classList.add("problem");
    announce(words);
    this.blocks.clear();
  }
}
