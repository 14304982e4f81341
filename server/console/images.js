// Images for the playground's next message: chosen as files, pasted, or dropped.

import { byId, el } from "./dom.js";
import { bytes } from "./format.js";
import { announce, complain } from "./ui.js";

const TYPES = ["image/png", "image/jpeg", "image/webp"];

/** What waits to be sent: `{name, size, part}`. */
let images = [];

export function startImages() {
  const chooser = byId("chat-file");
  byId("chat-attach").addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", async () => {
    await add(chooser.files);
    chooser.value = "";
    byId("chat-text").focus();
  });
  byId("chat-text").addEventListener("paste", (event) => {
    const { files } = event.clipboardData;
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
  const place = byId("chat-drop");
  place.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    place.classList.add("dropping");
  });
  place.addEventListener("dragleave", (event) => {
    if (!place.contains(event.relatedTarget)) place.classList.remove("dropping");
  });
  place.addEventListener("drop", (event) => {
    place.classList.remove("dropping");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  });
}

/** The images that wait, which then wait no more. */
export function takeImages() {
  const taken = images;
  show([]);
  return taken;
}

export function giveBack(taken) {
  show([...taken, ...images]);
}

export function picture({ name, part }) {
  return el("img", { src: `data:${part.mimeType};base64,${part.data}`, alt: name });
}

async function add(files) {
  const known = [...files].filter(({ type }) => TYPES.includes(type));
  complain(known.length < files.length ? "Only PNG, JPEG and WebP images can be sent." : "");
  for (const file of known) {
    const [, data] = (await read(file)).split(",");
    show([...images, { name: file.name, size: file.size, part: { type: "image", mimeType: file.type, data } }]);
    announce(`${file.name} will be sent.`);
  }
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

function show(now) {
  images = now;
  byId("chat-images").replaceChildren(...images.map((image) => {
    const remove = () => {
      show(images.filter((each) => each !== image));
      announce(`${image.name} will not be sent.`);
      byId("chat-text").focus();
    };
    return el("li", {},
      picture(image),
      el("span", { class: "under" }, `${image.name}, ${bytes(image.size)}`),
      el("button", { type: "button", class: "quiet", "aria-label": `Remove ${image.name}`, click: remove }, "Remove"),
    );
  }));
}
