// Numbers as people read them.

export function count(number) {
  if (number < 10_000) return String(Math.round(number));
  if (number < 10_000_000) return `${trimmed(number / 1000)} k`;
  return `${trimmed(number / 1_000_000)} M`;
}

export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (number >= 1000 && at < units.length - 1) {
    number /= 1000;
    at += 1;
  }
  return `${at ? trimmed(number) : Math.round(number)} ${units[at]}`;
}

export function ms(number) {
  if (number === null || number === undefined) return "–";
  if (number >= 10_000) return `${trimmed(number / 1000)} s`;
  if (number >= 1000) return `${(number / 1000).toFixed(2)} s`;
  return `${number < 10 ? number.toFixed(1) : Math.round(number)} ms`;
}

export function percent(part, whole) {
  if (!(whole > 0)) return "–";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export function rate(number) {
  return number < 10 ? number.toFixed(1) : count(number);
}

// The time of day, behind the day where it is not today. hourCycle, since hour12: false makes 24:05 of five past midnight.
export function clock(at) {
  const when = new Date(at);
  const time = when.toLocaleTimeString([], { hourCycle: "h23", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  if (when.toDateString() === new Date().toDateString()) return time;
  return `${when.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}

// Where what is shown is no longer what is: of when it is.
export function asOf(store) {
  return store.live ? "" : `, as of ${clock(store.now)}`;
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

// Names told apart: the second of a name is "name (2)".
export function numbered(names) {
  const times = new Map();
  return names.map((name) => {
    times.set(name, (times.get(name) ?? 0) + 1);
    return times.get(name) > 1 ? `${name} (${times.get(name)})` : name;
  });
}

function trimmed(number) {
  return number >= 100 ? String(Math.round(number)) : number.toFixed(1);
}

export function span(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}
