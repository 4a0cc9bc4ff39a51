// What every page does: it keeps itself current, tells times in the reader's zone, and answers to keys and buttons.
import { Idiomorph } from "../vendor/idiomorph-0.8.0/idiomorph.esm.js";
import { redraw, scan } from "./charts.js";
import { start, watch } from "./live.js";
import { GIB, t, tell, zone } from "./text.js";

// ---- current: when a topic changed, the server renders the page's live part again and it is morphed in place ----
const part = document.querySelector("[data-live-part]");
const settled = new Set(); // called after each refresh
export const onRefresh = call => settled.add(call);
const LONGEST_REFRESH = 30_000, AGAIN = 3000;
let due = 0, busy = false, freshAt = Date.now();

// What the reader has opened, pressed or filled in stays, and an element marked data-keep is its script's own.
const OWN = new Set(["open", "data-view", "aria-pressed"]);
const isFilledIn = el =>
  el === document.activeElement ? el.matches("input, textarea, select") :
  el.matches("select") ? [...el.options].some(option => option.selected !== option.defaultSelected) && [...el.options].some(option => option.defaultSelected) :
  el.matches("input, textarea") && (el.value !== el.defaultValue || Boolean(el.checked) !== Boolean(el.defaultChecked));
const MORPH = {
  callbacks: {
    beforeNodeMorphed: from => from.nodeType !== Node.ELEMENT_NODE || !(from.hasAttribute("data-keep") || isFilledIn(from)),
    beforeAttributeUpdated: name => !OWN.has(name),
  },
};

/** Renders the page's live part anew. */
export async function refresh() {
  due = 0;
  if (busy) return soon();
  busy = true;
  try {
    const answer = await fetch(location.pathname + location.search, { headers: { "X-Yard-Part": "live" }, cache: "no-store", signal: AbortSignal.timeout(LONGEST_REFRESH) });
    if (answer.redirected || answer.status === 401) return location.reload();
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live-part]");
    if (fresh) Idiomorph.morph(part, fresh, MORPH);
    freshAt = Date.now();
    tell(part);
    scan();
    settled.forEach(call => call());
  } catch {
    // The feed notices by itself that the server is away, and the pill says so. What changed is still to be shown.
    setTimeout(soon, AGAIN);
  } finally {
    busy = false;
  }
}

/** Brings one panel of the page up to date: `html` is the element with this id as the server renders it now. */
export function patch(id, html) {
  const from = document.getElementById(id);
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById(id);
  if (!from || !fresh) return;
  Idiomorph.morph(from, fresh, MORPH);
  tell(document.getElementById(id));
  scan();
  settled.forEach(call => call());
}

export function soon() {
  const every = Number(part?.dataset.every || 2) * 1000;
  if (!due) due = setTimeout(refresh, Math.max(50, freshAt + every - Date.now()));
}

if (part) for (const { topic, etag } of JSON.parse(document.getElementById("yard-topics")?.textContent || "[]")) watch(topic, soon, { etag });

// ---- what is wider or longer than its place can be scrolled by keys too ----
function reach() {
  for (const el of document.querySelectorAll(".y-scroll, .y-list.scroll")) {
    if (el.scrollWidth > el.clientWidth || el.scrollHeight > el.clientHeight) el.tabIndex = 0;
    else el.removeAttribute("tabindex");
  }
}
onRefresh(reach);
addEventListener("resize", reach);
reach();

// ---- words to the reader ----
export function toast(text, state = "") {
  let holder = document.querySelector(".y-toasts");
  if (!holder) document.body.append((holder = Object.assign(document.createElement("div"), { className: "y-toasts", role: "status" })));
  const one = Object.assign(document.createElement("div"), { className: "y-toast", textContent: text });
  if (state) one.dataset.s = state;
  holder.append(one);
  setTimeout(() => one.remove(), 8000);
}

const cookie = name => document.cookie.split("; ").find(c => c.startsWith(name + "="))?.slice(name.length + 1) || "";

/** Calls the API as the signed-in user, with a JSON value or a YAML text; throws the problem it answered with. */
export async function call(path, { method = "POST", json, yaml, signal, headers = {} } = {}) {
  const answer = await fetch(path, {
    method, signal, headers: { Accept: "application/json", "Content-Type": yaml === undefined ? "application/json" : "application/yaml", "X-CSRFToken": cookie("yard_csrf"), ...headers }, body: yaml ?? (json === undefined ? undefined : JSON.stringify(json)),
  });
  const body = answer.headers.get("Content-Type")?.includes("json") ? await answer.json() : {};
  if (!answer.ok) throw Object.assign(new Error(body.detail || body.title || t("The server answered {status}.", { status: answer.status })), { problem: body, status: answer.status });
  return body;
}

// ---- dialogs: a button opens one; its form calls the API ----
document.addEventListener("click", event => {
  const opener = event.target.closest("[data-dialog]");
  if (opener && opener.getAttribute("aria-disabled") !== "true") {
    const dialog = document.getElementById(opener.dataset.dialog);
    if (opener.dataset.to) dialog.querySelector("form").dataset.call = opener.dataset.to; // one dialog, several addresses
    dialog?.showModal();
    dialog?.querySelector("input:not([type=hidden]), button")?.focus();
  }
  if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
  const copy = event.target.closest("[data-copy]");
  if (copy) navigator.clipboard?.writeText(copy.dataset.copy === "link" ? location.href : document.querySelector(copy.dataset.copy)?.textContent || "").then(() => toast(t("Copied")));
});

// ---- menus close when something else is meant ----
document.addEventListener("click", event => {
  for (const menu of document.querySelectorAll(".y-menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", event => {
  const menu = event.key === "Escape" && event.target.closest?.(".y-menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

// An address may name a dialog: the palette leads to "/nodes/g07#ask-drain".
const named = /^#ask-[\w-]+$/.test(location.hash) && document.querySelector(`[data-dialog="${location.hash.slice(1)}"]`);
if (named) named.click();

/** What a form sends: text, or what a field's data-as makes of it; an empty field of the latter kind is left out, or null. A name with a dot is a member of an object. */
const AS = { given: value => value, json: JSON.parse, milli: value => Math.round(value * 1000), gib: value => Math.round(value * GIB), days: value => (value === "" ? null : Number(value)), bytes: value => (value === "" ? null : Math.round(value * GIB)) };
const EMPTY_COUNTS = new Set([AS.days, AS.bytes]); // empty is a choice: as all others have it
function told(form) {
  const body = {};
  for (const [name, value] of new FormData(form)) {
    const as = AS[form.elements[name].dataset?.as], [outer, inner] = name.split(".");
    if (as && value === "" && !EMPTY_COUNTS.has(as)) continue;
    const made = as ? as(value) : value;
    if (inner) (body[outer] ??= {})[inner] = made;
    else body[outer] = made;
  }
  return body;
}

/** A POST, or a change whose reason goes in the address, for its body is the change. */
function send(address, fields, method = "POST") {
  if (method === "POST") return call(address, { json: fields });
  const { reason, ...json } = fields;
  return call(reason ? `${address}?${new URLSearchParams({ reason })}` : address, { method, json });
}

document.addEventListener("submit", async event => {
  const form = event.target.closest("form[data-call]");
  if (!form) return;
  event.preventDefault();
  const dialog = form.closest("dialog"), said = form.querySelector("[data-said]");
  const buttons = form.querySelectorAll("button");
  buttons.forEach(b => (b.disabled = true));
  try {
    await send(form.dataset.call, told(form), form.dataset.method);
    dialog?.close();
    form.reset();
    if (said) said.textContent = "";
    toast(form.dataset.done || t("Done"));
    refresh();
  } catch (error) {
    said ? (said.textContent = error.message) : toast(error.message, "failed");
  } finally {
    buttons.forEach(b => (b.disabled = false));
  }
});

// ---- filters submit as they change; empty ones stay out of the address ----
document.addEventListener("change", event => event.target.closest("form[data-filters]") && event.target.form.requestSubmit());
document.addEventListener("submit", event => {
  const form = event.target.closest("form[data-filters]");
  if (!form) return;
  event.preventDefault();
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  location.search = query.toString();
});

// ---- a link grid reads out what has the pointer or the focus; arrows walk it ----
function read(event) {
  const cell = event.target.closest?.(".y-cell[aria-label]");
  const out = cell?.closest(".y-panel")?.querySelector("[data-readout]");
  if (out) out.textContent = cell.getAttribute("aria-label");
}
document.addEventListener("mouseover", read);
document.addEventListener("focusin", read);
document.addEventListener("keydown", event => {
  const cell = event.target.closest?.(".y-cell");
  if (!cell || !event.key.startsWith("Arrow")) return;
  event.preventDefault();
  const row = cell.closest(".y-node"), at = [...row.querySelectorAll(".y-cell")].indexOf(cell);
  const across = { ArrowRight: 1, ArrowLeft: -1 }[event.key], down = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const to = across ? row.querySelectorAll(".y-cell")[at + across] : row[down]?.querySelectorAll?.(".y-cell")[at];
  to?.focus();
});

// ---- views of one panel: buttons show one of its siblings ----
document.addEventListener("click", event => {
  const button = event.target.closest("[data-show]");
  if (!button) return;
  const panel = button.closest(".y-panel");
  for (const other of panel.querySelectorAll("[data-show]")) {
    other.setAttribute("aria-pressed", other === button);
    panel.querySelector(other.dataset.show).hidden = other !== button;
  }
  localStorage.setItem(`yard.view.${panel.id}`, button.dataset.show);
  scan();
});
const views = () => {
  for (const panel of document.querySelectorAll(".y-panel[id]:has([data-show])")) {
    const wanted = localStorage.getItem(`yard.view.${panel.id}`);
    for (const button of panel.querySelectorAll("[data-show]")) {
      if (!wanted) continue;
      button.setAttribute("aria-pressed", button.dataset.show === wanted);
      panel.querySelector(button.dataset.show).hidden = button.dataset.show !== wanted;
    }
  }
};
onRefresh(views);

// ---- drafts: they are whose browser it is, and go when that person goes ----
document.addEventListener("submit", event => {
  if (event.target.getAttribute("action") !== "/sign-out") return;
  for (const place of ["yard.draft", "yard.masked-draft"]) localStorage.removeItem(place);
});

// ---- theme ----
function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  set(dark ? "light" : "dark");
}
function set(choice) {
  choice === "system" ? (delete document.documentElement.dataset.theme, localStorage.removeItem("yard.theme")) : ((document.documentElement.dataset.theme = choice), localStorage.setItem("yard.theme", choice));
  redraw();
}
document.addEventListener("click", event => {
  if (event.target.closest("[data-theme-toggle]")) theme();
  const choice = event.target.closest("[data-theme-set]");
  if (choice) set(choice.dataset.themeSet);
});

// ---- keys: off while a field has the focus ----
let first = "", firstAt = 0;
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable], dialog[open], [data-keys]")) return;
  const key = event.key, goes = first === "g" && Date.now() - firstAt < 1200;
  first = key;
  firstAt = Date.now();
  const link = goes && document.querySelector(`[data-go="${CSS.escape(key)}"]`);
  if (link) location.href = link.href;
  else if (key === "?") document.getElementById("yard-keys")?.showModal();
  else if (key === "t") theme();
  else if (key === "r") refresh();
  else if (key === ".") document.querySelector("[data-live-pill]")?.click();
  else if (key === "f") document.querySelector("form[data-filters] input, form[data-filters] select")?.focus();
  else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (key === "Enter") document.querySelector("tr.at a")?.click();
});
function step(by) {
  const rows = [...document.querySelectorAll(".y-table tbody tr:not(.more)")].filter(row => row.querySelector("a"));
  if (!rows.length) return;
  const at = rows.findIndex(row => row.classList.contains("at"));
  rows[at]?.classList.remove("at");
  const to = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
  to.classList.add("at");
  to.scrollIntoView({ block: "nearest" });
}

const clockEl = document.querySelector("[data-clock]");
function tick() {
  tell();
  if (clockEl) {
    clockEl.textContent = new Date().toLocaleTimeString(document.documentElement.lang, { hour: "2-digit", minute: "2-digit", hour12: false, timeZone: zone, timeZoneName: "short" });
    clockEl.title = new Date().toISOString().slice(0, 16).replace("T", " ") + " UTC";
  }
}
views();
tick();
setInterval(tick, 1000);
scan();
start();
// Every script of the page has run when the document is loaded: until then its buttons take no click, which would be lost.
addEventListener("DOMContentLoaded", () => delete document.querySelector("[data-unready]")?.dataset.unready);
