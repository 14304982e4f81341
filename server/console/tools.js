// The playground's tools: each a name, a description and a JSON Schema, with the grammar that the schema becomes.

import { call } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { counted } from "./format.js";
import { announce } from "./ui.js";

const EXAMPLE = {
  name: "set_light",
  description: "Switch the light in a room on or off.",
  schema: `{
  "type": "object",
  "properties": {
    "room": { "enum": ["kitchen", "hall", "office"] },
    "on": { "type": "boolean" },
    "brightness": { "type": "integer", "minimum": 1, "maximum": 100 }
  },
  "required": ["room", "on"],
  "additionalProperties": false
}`,
};
const EMPTY = {
  name: "",
  description: "",
  schema: `{
  "type": "object",
  "properties": {},
  "additionalProperties": false
}`,
};
/** How long the keys must rest before a schema is compiled. */
const REST = 300;

const editors = new Set();
let made = 0;

export function startTools() {
  byId("tool-add").addEventListener("click", add);
  showChoices();
}

/** The tools in the wire's form. Raises where one cannot be sent, with the focus on what is wrong. */
export function tools() {
  return [...editors].map((each) => each.read());
}

/** The wire's tool choice; undefined where there are no tools. */
export function toolChoice() {
  if (editors.size === 0) return undefined;
  const { value } = byId("request-choice");
  const editor = [...editors].find((each) => each.id === value);
  return editor ? { type: "tool", name: editor.name.value } : value;
}

function showChoices() {
  const select = byId("request-choice");
  const kept = select.value;
  const choices = [["auto", "Auto"]];
  if (editors.size > 0) choices.push(["none", "None"], ["required", "Any call"]);
  for (const each of editors) choices.push([each.id, `Call ${each.name.value || "unnamed tool"}`]);
  select.replaceChildren(...choices.map(([value, text]) => el("option", { value, selected: value === kept }, text)));
  select.disabled = editors.size === 0;
  byId("tools-none").hidden = editors.size > 0;
}

function add() {
  const editor = new Editor(made === 0 ? EXAMPLE : EMPTY);
  editors.add(editor);
  byId("tools-list").append(editor.node);
  showChoices();
  editor.name.focus();
}

function rule(line) {
  const end = line.indexOf(" ::=");
  return el("div", {}, el("span", {}, line.slice(0, Math.max(end, 0))), line.slice(Math.max(end, 0)));
}

class Editor {
  constructor({ name, description, schema }) {
    made += 1;
    this.id = `tool-${made}`;
    const field = (tag, label, suffix, attributes = {}) => {
      const input = el(tag, { id: `${this.id}-${suffix}`, autocomplete: "off", spellcheck: "false", ...attributes });
      return [input, el("p", { class: "wide" }, el("label", { for: input.id }, label), input)];
    };
    const [nameField, nameLine] = field("input", "Name", "name", { maxlength: 64 });
    const [wordsField, wordsLine] = field("input", "Description", "description");
    const [schemaField, schemaLine] = field("textarea", "Parameters (JSON Schema)", "schema",
      { rows: 10, class: "code", "aria-describedby": `${this.id}-state` });
    [this.name, this.words, this.schema] = [nameField, wordsField, schemaField];
    nameField.value = name;
    wordsField.value = description;
    schemaField.value = schema;
    this.state = el("p", { class: "state", id: `${this.id}-state`, role: "status" });
    this.grammar = el("pre", { class: "gbnf", tabindex: "0", "aria-label": "Grammar in GBNF" });
    this.shown = el("details", {}, el("summary", {}, "Grammar (GBNF)"), this.grammar);
    const remove = el("button", { type: "button", class: "quiet", click: () => this.remove() }, "Remove tool");
    this.node = el("li", { class: "card" },
      el("div", { class: "fields" }, nameLine, wordsLine, schemaLine),
      this.state,
      this.shown,
      el("div", { class: "actions" }, remove),
    );
    nameField.addEventListener("input", showChoices);
    schemaField.addEventListener("input", () => this.later());
    this.compile();
  }

  remove() {
    clearTimeout(this.timer);
    editors.delete(this);
    this.node.remove();
    showChoices();
    announce("Tool removed.");
    byId("tool-add").focus();
  }

  read() {
    if (!/^[A-Za-z0-9_-]{1,64}$/.test(this.name.value)) {
      this.name.focus();
      throw new Error("A tool’s name is 1 to 64 of A–Z a–z 0–9 _ -.");
    }
    const parameters = this.parse();
    if (parameters === null) {
      this.schema.focus();
      throw new Error(`The parameters of ${this.name.value} are not a JSON object.`);
    }
    const tool = { name: this.name.value, parameters };
    if (this.words.value) tool.description = this.words.value;
    return tool;
  }

  parse() {
    try {
      const value = JSON.parse(this.schema.value);
      return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
    } catch {
      return null;
    }
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.compile(), REST);
  }

  async compile() {
    const text = this.schema.value;
    const schema = this.parse();
    if (schema === null) {
      this.report("This is no JSON object.", true);
      return;
    }
    try {
      const { gbnf, checks } = await call("POST", "/owner/grammar", { schema });
      // The answer to an older text says nothing about this one.
      if (this.schema.value === text) this.show(gbnf, checks);
    } catch (error) {
      if (this.schema.value === text) this.report(error.message, true);
    }
  }

  show(gbnf, checks) {
    const rules = gbnf.split("\n").filter((line) => line.includes("::=")).length;
    const left = checks.map(({ path, keyword }) => `${keyword} at ${path || "/"}`).join(", ");
    this.report(left
      ? `${counted(rules, "rule")}; checked on the completed call: ${left}.`
      : `${counted(rules, "rule")}; the grammar says it all.`);
    this.grammar.replaceChildren(...gbnf.trimEnd().split("\n").map(rule));
    this.shown.hidden = false;
  }

  report(text, bad = false) {
    setText(this.state, text);
    this.state.classList.toggle("problem", bad);
    this.schema.setAttribute("aria-invalid", bad);
    if (bad) this.shown.hidden = true;
  }
}
