// Words, numbers and times as the reader's language writes them. Words come from Django's JavaScript catalogue, which a
// page loads before its modules.
export const lang = globalThis.document?.documentElement.lang || "en";
const number = new Intl.NumberFormat(lang, { maximumFractionDigits: 3 });

const filled = (text, params) => text.replace(/\{(\w+)\}/g, (_, key) => params[key] ?? "");
export const t = (text, params = {}) => filled(globalThis.gettext?.(text) ?? text, params);

/** A count in words: `one` of it, or `many`. Both may have it in them as {n}, and `params` too. */
export const tn = (count, one, many, params = {}) => filled(globalThis.ngettext?.(one, many, count) ?? (count === 1 ? one : many), { n: num(count), ...params });
export const num = value => (value === null || value === undefined ? "–" : number.format(value));

/** Memory is shown in GiB everywhere, as the server does (`controlplane/amounts.py`); this is the one number that converts it. */
export const GIB = 2 ** 30;
export const gib = bytes => `${num(Math.round(bytes / GIB * 100) / 100)} GiB`;

/** A span of seconds as "2 d 3 h": two units at most. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return t("{n} s", { n: s });
  if (s < 3600) return t("{n} min", { n: Math.floor(s / 60) }) + (s < 600 && s % 60 ? " " + t("{n} s", { n: s % 60 }) : "");
  if (s < 86400) return t("{n} h", { n: Math.floor(s / 3600) }) + (s % 3600 >= 60 ? " " + t("{n} min", { n: Math.floor((s % 3600) / 60) }) : "");
  return t("{n} d", { n: Math.floor(s / 86400) }) + (s % 86400 >= 3600 ? " " + t("{n} h", { n: Math.floor((s % 86400) / 3600) }) : "");
}

const DIGITS = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** How moments are taken apart in a zone; where the browser does not know it, in its own. */
export function clockOf(zone) {
  try {
    return new Intl.DateTimeFormat("en", { ...DIGITS, hourCycle: "h23", timeZone: zone || undefined });
  } catch {
    return new Intl.DateTimeFormat("en", { ...DIGITS, hourCycle: "h23" });
  }
}

/** The zone that the reader chose on their page, or that of the browser. */
const reader = clockOf(globalThis.document?.documentElement.dataset.zone);
export const zone = reader.resolvedOptions().timeZone;

function parts(moment, of) {
  const found = Object.fromEntries(of.formatToParts(moment).map(part => [part.type, part.value]));
  return [`${found.year}-${found.month}-${found.day}`, `${found.hour}:${found.minute}`, found.second];
}

/** A moment in the reader's zone: the time alone if it is today, else with the date. */
export function clock(iso, seconds = false, of = reader) {
  const [day, minute, second] = parts(new Date(iso), of);
  const time = seconds ? `${minute}:${second}` : minute;
  return day === parts(new Date(), of)[0] ? time : `${day.slice(5)} ${time}`;
}

/** Wall-clock text of the reader's zone as Plotly's date axes want it. */
export function wall(moment, of = reader) {
  const [day, minute, second] = parts(new Date(moment), of);
  return `${day} ${minute}:${second}`;
}

/** Every <time> below `root` says what its data-t asks: clock, second, ago or running. */
export function tell(root = document) {
  const now = Date.now();
  for (const el of root.querySelectorAll("time[datetime]")) {
    const at = Date.parse(el.dateTime);
    if (Number.isNaN(at)) continue;
    const kind = el.dataset.t;
    const text =
      kind === "ago" ? t("{span} ago", { span: span((now - at) / 1000) }) :
      kind === "running" ? span((now - at) / 1000) :
      clock(el.dateTime, kind === "second");
    if (el.textContent !== text) el.textContent = text;
    if (!el.title) el.title = new Date(at).toLocaleString(lang, { timeZone: zone }) + "\n" + el.dateTime;
  }
}
