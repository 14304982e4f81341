// Numbers, times and foreign names as a person reads them.

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 999.5 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  const digits = unit > 0 && count < 9.95 ? 1 : 0;
  return `${count.toFixed(digits)} ${units[unit]}`;
}

const plain = new Intl.NumberFormat("en");

export function number(value) {
  return plain.format(value);
}

export function counted(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** Seconds as m:ss. */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export function rate(tokensPerSecond) {
  return tokensPerSecond === null ? "" : `${tokensPerSecond.toFixed(1)} tok/s`;
}

export function now() {
  return Date.now() / 1000;
}

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

/** How long ago a time in seconds since the epoch was. */
export function ago(time) {
  const seconds = now() - time;
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (seconds >= size) return relative.format(-Math.floor(seconds / size), unit);
  }
  return "just now";
}

// Characters that show nothing or reorder their neighbours: a name must not pass for another one.
const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu;

export function visible(name) {
  return name.replace(hidden, (each) => `⟨U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** An endpoint's napplet: the name (dTag) and the aggregate hash of `Napplet-Identity`. */
export function napplet(endpoint) {
  const [name, ...hash] = endpoint.identity.split(";");
  return { name: visible(name) || "unnamed napplet", hash: visible(hash.join(";")) };
}

/** Where a napplet's endpoint belongs. */
export function belonging(endpoint) {
  const parts = [`shell ${endpoint.token}`];
  if (endpoint.account) parts.push(`account ${visible(endpoint.account)}`);
  if (endpoint.endpoint) parts.push(`endpoint ${visible(endpoint.endpoint)}`);
  return parts;
}
