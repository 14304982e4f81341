// Elements without markup: what others wrote only ever becomes text.

/** A new element. Attributes that are functions listen; true stands for presence, null and false for absence. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Sets text only where it differs, so that selections stay and live regions keep quiet. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const lists = new WeakMap();

/**
 * Makes the container's children show the items, one each, in order, and keeps those that stay: focus, open details
 * and half-typed text survive. `create` gives `{node, update}`; `refocus` is called where the focus went with an item.
 */
export function reconcile(container, items, keyOf, create, refocus) {
  const known = lists.get(container) ?? new Map();
  lists.set(container, known);
  const wanted = new Set(items.map(keyOf));
  let lost = false;
  for (const [key, { node }] of known) {
    if (wanted.has(key)) continue;
    lost ||= node.contains(document.activeElement);
    node.remove();
    known.delete(key);
  }
  let place = container.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (!known.has(key)) known.set(key, create(item));
    const { node, update } = known.get(key);
    if (node === place) place = place.nextElementSibling;
    else container.insertBefore(node, place);
    update(item);
  }
  if (lost) refocus();
}

/** Words or elements beside one another, each a piece that stays whole where the line breaks. */
export function pieces(...words) {
  return words.flatMap((each) => [el("span", { class: "part" }, each), " "]);
}

/** A list of names and values, without those that have no value. */
export function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === null || value === "") continue;
    list.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  }
  return list;
}
