// What all views say and ask in the same way.

import { byId, setText } from "./dom.js";

let announcing;
const waiting = [];

/** Tells screen readers, politely and one thing after the other. */
export function announce(text) {
  waiting.push(text);
  if (announcing !== undefined) return;
  const next = () => {
    const words = waiting.shift();
    if (words === undefined) {
      announcing = undefined;
      return;
    }
    byId("announcer").textContent = words;
    announcing = setTimeout(next, 1500);
  };
  next();
}

/** Shows what went wrong, above everything, until something goes right or it is dismissed. */
export function complain(text) {
  setText(byId("problem-text"), text);
  byId("problem").hidden = !text;
}

export function startUi() {
  byId("problem-dismiss").addEventListener("click", () => {
    complain("");
    focusView();
  });
}

/** The heading of the view that is shown: where the focus goes when what had it is gone. */
export function focusView() {
  document.querySelector(".view:not([hidden]) h1")?.focus();
}

/** Does the button's work, once at a time; the button keeps the focus meanwhile. Whether it went well. */
export async function act(button, work, problem = complain) {
  if (button.getAttribute("aria-disabled") === "true") return false;
  button.setAttribute("aria-disabled", "true");
  try {
    await work();
    problem("");
    return true;
  } catch (error) {
    problem(error.message);
    return false;
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

/** Asks before something that cannot be undone. The safe answer has the focus, and Escape gives it too. */
export function ask(title, text, yes) {
  const dialog = byId("question");
  setText(byId("question-title"), title);
  setText(byId("question-text"), text);
  setText(dialog.querySelector("[value=yes]"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
