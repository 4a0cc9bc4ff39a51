// Words, numbers and times as the reader's language writes them. Words come from Django's JavaScript catalogue, which a
// page loads before its modules.
export const lang = globalThis.document?.documentElement.lang || "en";
const number = new Intl.NumberFormat(lang, { maximumFractionDigits: 3 });

export const t = (text, params = {}) => (globalThis.gettext?.(text) ?? text).replace(/\{(\w+)\}/g, (_, key) => params[key] ?? "");
export const num = value => (value === null || value === undefined ? "–" : number.format(value));

/** Memory is shown in GiB everywhere, as the server does (`jobs/amounts.py`); this is the one number that converts it. */
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

const two = n => String(n).padStart(2, "0");

/** A moment in the reader's zone: the time alone if it is today, else with the date. */
export function clock(iso, seconds = false) {
  const at = new Date(iso);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? ":" + two(at.getSeconds()) : ""}`;
  return at.toDateString() === new Date().toDateString() ? time : `${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** Local wall-clock text as Plotly's date axes want it. */
export function wall(moment) {
  const at = new Date(moment);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
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
    if (!el.title) el.title = new Date(at).toLocaleString(lang) + "\n" + el.dateTime;
  }
}
