// The queue: the chosen jobs change together, after a dry run told what would come of it. All that wait, on other pages
// too, are chosen by a filter; where they are many, the server goes on in the background and has a page for it.
import "./otherwise.js";
import { call, onRefresh, refresh, toast } from "./page.js";
import { sentence } from "./stopping.js";
import { clock, num, span, t, tn } from "./text.js";

const BULK = "/api/v1/jobs/bulk", MOST_REFUSALS = 20;
const bar = document.querySelector("[data-bulk]"), all = bar.querySelector("[data-bulk-all]"), priority = bar.querySelector("select");
const dialog = document.getElementById("ask-bulk"), form = dialog.querySelector("form"), yes = form.querySelector("[type=submit]");
const said = form.querySelector("[data-said]"), effect = form.querySelector("[data-effect]"), refused = form.querySelector("[data-refused]"), moves = form.querySelector("[data-moves]");
const whole = bar.querySelector("[data-bulk-whole]"), typed = form.querySelector("[data-typed]");
let asked = {};

const isWhole = () => !whole.hidden && whole.getAttribute("aria-pressed") === "true";
const waiting = () => document.querySelector("[data-queue]").dataset;
const boxes = () => [...document.querySelectorAll("[data-choose]")];
function settle() {
  const some = boxes(), chosen = some.filter(box => box.checked);
  all.checked = some.length > 0 && chosen.length === some.length;
  all.indeterminate = chosen.length > 0 && !all.checked;
  const total = Number(waiting().total);
  whole.hidden = !all.checked || total <= some.length;
  if (whole.hidden) whole.setAttribute("aria-pressed", "false");
  whole.textContent = isWhole() ? t("All {n} that wait here are chosen", { n: num(total) }) : t("Choose all {n} that wait here", { n: num(total) });
  for (const tool of bar.querySelectorAll("[data-act], select")) tool.disabled = !chosen.length;
}

/** Opens the dialog with what a dry run says of this action on the chosen jobs. */
async function ask(action, title, patch) {
  const jobs = boxes().filter(box => box.checked).map(box => Number(box.value));
  const { pool, total } = waiting();
  asked = { action, ...(isWhole() ? { filter: { state: "waiting", ...(pool && { pool }) } } : { jobs }), ...(patch && { patch }) };
  // What stops so many is typed, not clicked.
  typed.hidden = !(isWhole() && action === "cancel");
  typed.querySelector("span").textContent = t("Type {n} to confirm", { n: total });
  form.elements.typed.value = "";
  form.elements.typed.pattern = total;
  form.elements.typed.required = !typed.hidden;
  form.querySelector("h2").textContent = title;
  effect.textContent = t("Trying…");
  said.textContent = "";
  refused.replaceChildren();
  moves.replaceChildren();
  yes.textContent = title;
  yes.disabled = true;
  dialog.showModal();
  try {
    const told = await call(BULK, { json: { ...asked, dry_run: true } });
    const tried = told.results.length;
    effect.textContent = (told.more ? t("Of the first {tried} of {all} jobs this would be done to {done}. It goes on in the background.", { tried: num(tried), all: num(Number(total)), done: num(told.done) }) : tn(tried, "This would be done to {done} of {n} job.", "This would be done to {done} of {n} jobs.", { done: told.done })) + " " + sentence(told.stops) + queued(told.queue);
    moves.replaceChildren(...(told.queue?.moves || []).map(row));
    refused.replaceChildren(...told.results.filter(one => one.outcome === "refused").slice(0, MOST_REFUSALS).map(one => Object.assign(document.createElement("li"), { textContent: `#${one.number}: ${one.errors[0]?.detail || one.detail}` })));
    yes.disabled = !told.done && !told.more;
  } catch (error) {
    effect.textContent = "";
    said.textContent = error.message;
  }
}

/** What moves in the queue, in one sentence. */
function queued(queue) {
  if (!queue) return "";
  if (queue.fault) return t("What it does to the others could not be tried: {why}", { why: queue.fault });
  const stops = queue.stops ? " " + tn(queue.stops, "{n} running stage would be stopped to make room: {jobs}.", "{n} running stages would be stopped to make room: {jobs}.", { jobs: queue.stopped.map(n => `#${n}`).join(", ") || "–" }) : "";
  if (!queue.back && !queue.forward) return t("No other job is expected to start at another time.") + stops;
  return tn(queue.back, "{n} other job would start later, {forward} earlier.", "{n} other jobs would start later, {forward} earlier.", { forward: queue.forward }) + (queue.hidden ? " " + t("You may not see {n} of them.", { n: queue.hidden }) : "") + stops;
}
const when = at => (at ? clock(at) : t("not foreseen"));
function row({ number, name, was_at, then_at, later_s, is_chosen }) {
  const by = later_s === null ? "" : later_s > 0 ? t("{span} later", { span: span(later_s) }) : t("{span} earlier", { span: span(-later_s) });
  const cells = [`#${number} ${name}`, `${when(was_at)} → ${when(then_at)}`, by].map(text => Object.assign(document.createElement("td"), { textContent: text }));
  if (later_s > 0 || !then_at) cells[2].className = "y-warnt";
  const made = document.createElement("tr");
  if (is_chosen) cells[0].className = "y-m";
  made.append(...cells);
  return made;
}

bar.addEventListener("click", event => {
  const button = event.target.closest("[data-act]");
  if (button) ask(button.dataset.act, button.textContent.trim());
});
priority.addEventListener("change", () => {
  if (priority.value) ask("change", `${priority.options[0].textContent.replace("…", "")}: ${priority.selectedOptions[0].textContent}`, { priority: /^\d+$/.test(priority.value) ? Number(priority.value) : priority.value });
  priority.value = "";
});
whole.addEventListener("click", () => {
  whole.setAttribute("aria-pressed", !isWhole());
  settle();
});
all.addEventListener("change", () => {
  for (const box of boxes()) box.checked = all.checked;
  settle();
});
form.addEventListener("submit", async event => {
  event.preventDefault();
  yes.disabled = true;
  try {
    const told = await call(BULK, { json: { ...asked, reason: form.elements.reason.value } });
    if (told.phase) return (location.href = `/operations/${told.id}`);
    toast(tn(told.results.length, "Done to {done} of {n} job.", "Done to {done} of {n} jobs.", { done: told.done }), told.done ? "" : "failed");
    for (const box of boxes()) box.checked = false;
    form.reset();
    dialog.close();
    refresh();
  } catch (error) {
    said.textContent = error.message;
    yes.disabled = false;
  }
  settle();
});
document.addEventListener("change", event => event.target.matches("[data-choose]") && settle());
onRefresh(settle);
settle();
