// NAP-LLM over HTTP, from a shell's side.

import { reach } from "./api.js";
import { data } from "./sse.js";

/** A failure that the wire reports. */
export class WireError extends Error {
  constructor({ code, message }) {
    super(message);
    this.code = code;
  }
}

export function newId() {
  return crypto.getRandomValues(new Uint32Array(3)).reduce((text, each) => text + each.toString(16).padStart(8, "0"), "");
}

export class Shell {
  constructor(token, identity) {
    this.headers = {
      Authorization: `Bearer ${token}`,
      "Napplet-Identity": identity,
      "Content-Type": "application/json",
    };
  }

  /** Aborting `signal` withdraws the question, where the owner is being asked. */
  async select(requirements, signal) {
    const body = JSON.stringify({ type: "llm.select", id: newId(), requirements });
    const response = await reach("/nap/llm", { method: "POST", headers: this.headers, body, signal });
    return checked(await response.json()).model;
  }

  /** Gives every delta to `onDelta`, and the generation in the end. Aborting `signal` gives the generation up. */
  async generate(request, onDelta, signal) {
    const response = await reach("/nap/llm", {
      method: "POST",
      headers: { ...this.headers, Accept: "text/event-stream" },
      body: JSON.stringify({ type: "llm.generate", id: newId(), request }),
      signal,
    });
    for await (const envelope of data(response)) {
      if (envelope.type !== "llm.delta") return checked(envelope).result;
      onDelta(envelope);
    }
    throw new WireError({ code: "provider-error", message: "the stream ended without a result" });
  }
}

function checked(envelope) {
  if (envelope.error) throw new WireError(envelope.error);
  return envelope;
}
