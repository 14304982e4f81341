// The owner's token: it arrives in the address's fragment, which no browser sends, and lives as long as this tab.

const KEY = "nap-llm-owner";
const FRAGMENT = "#token=";

/** Takes a token out of the address bar and the history, if one is there; gives the one to use, or null. */
export function token() {
  if (location.hash.startsWith(FRAGMENT)) {
    keep(location.hash);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY);
}

/** Keeps a token given as such, or in a link. */
export function keep(text) {
  const start = text.indexOf(FRAGMENT);
  const given = decodeURIComponent(start < 0 ? text : text.slice(start + FRAGMENT.length)).trim();
  // Nothing else can stand in a header.
  if (/^[\x21-\x7e]+$/.test(given)) sessionStorage.setItem(KEY, given);
  else sessionStorage.removeItem(KEY);
}

export function forget() {
  sessionStorage.removeItem(KEY);
}
