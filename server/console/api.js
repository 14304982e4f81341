// The owner's API.

import { token } from "./session.js";
import { data } from "./sse.js";

const FIRST_DELAY = 500;
const LONGEST_DELAY = 10_000;
/** The server says something every ten seconds; after this much silence the connection is dead. */
const SILENCE = 30_000;

/** What the server refused, in its words. `status` is 0 where it could not be reached. */
export class Refusal extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.path = error.path;
    this.keyword = error.keyword;
  }

  get unauthorized() {
    return this.status === 401 || this.status === 403;
  }
}

export async function call(method, path, body, options = {}) {
  const headers = { Authorization: `Bearer ${token()}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await reach(path, { method, headers, body: JSON.stringify(body), ...options });
  return response.status === 204 ? null : response.json();
}

/** A response with a good status. Raises Refusal. */
export async function reach(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { code: "unreachable", message: "The server cannot be reached." });
  }
  if (!response.ok) throw new Refusal(response.status, await readError(response));
  return response;
}

async function readError(response) {
  const fallback = { code: "unknown", message: `The server answered ${response.status}.` };
  try {
    return (await response.json()).error ?? fallback;
  } catch {
    return fallback;
  }
}

/**
 * Follows the owner's event stream until `signal` aborts or the token is refused, which raises Refusal. Reconnects
 * with back-off, at once when the page is looked at again. `onLink` learns whether the stream is live.
 */
export async function follow({ onState, onLink, signal }) {
  let delay = FIRST_DELAY;
  while (!signal.aborted) {
    try {
      await read(onState, () => {
        delay = FIRST_DELAY;
        onLink(true);
      }, signal);
    } catch (error) {
      if (error instanceof Refusal && error.unauthorized) throw error;
    }
    if (signal.aborted) return;
    onLink(false);
    await pause(delay * (0.75 + Math.random() / 2), signal);
    delay = Math.min(delay * 2, LONGEST_DELAY);
  }
}

async function read(onState, onOpen, signal) {
  const attempt = new AbortController();
  const stop = () => attempt.abort();
  let watchdog;
  const heard = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(stop, SILENCE);
  };
  signal.addEventListener("abort", stop);
  try {
    heard();
    const response = await reach("/owner/events", {
      headers: { Authorization: `Bearer ${token()}`, Accept: "text/event-stream" },
      signal: attempt.signal,
    });
    onOpen();
    for await (const state of data(response, heard)) onState(state);
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", stop);
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const wake = () => {
      if (document.visibilityState === "hidden") return;
      finish();
    };
    const finish = () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
      removeEventListener("online", wake);
      signal.removeEventListener("abort", finish);
      resolve();
    };
    const timer = setTimeout(finish, milliseconds);
    document.addEventListener("visibilitychange", wake);
    addEventListener("online", wake);
    signal.addEventListener("abort", finish);
  });
}
