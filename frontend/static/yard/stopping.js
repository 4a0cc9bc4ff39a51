// What stopping would do: dialogs that cancel jobs or drain nodes tell it before they are confirmed.
import { call, onRefresh, refresh, toast } from "./page.js";
import { num, span, t, tn } from "./text.js";

const BULK = "/api/v1/jobs/bulk", DRAIN = "/api/v1/nodes/drain";
const hours = device_s => Math.round(device_s / 360) / 10;

const facts = stops => ({ jobs: stops.jobs, owners: stops.owners.slice(0, 6).join(", ") || "–", hours: num(hours(stops.lost_device_s)) });

/** Whose jobs stop and what is lost, in a sentence; empty where nothing runs. */
export function sentence(stops) {
  return stops?.jobs ? t("Running jobs that stop: {jobs}, of {owners}. Device-hours since their last checkpoints: {hours}.", facts(stops)) : "";
}

// ---- cancelling: data-stops has what would be asked of many jobs at once ----
document.addEventListener("click", async event => {
  const opener = event.target.closest("[data-dialog]");
  const line = opener && document.getElementById(opener.dataset.dialog)?.querySelector("[data-stops]");
  if (!line || opener.getAttribute("aria-disabled") === "true") return;
  line.textContent = t("Trying…");
  try {
    const told = await call(BULK, { json: { ...JSON.parse(line.dataset.stops), dry_run: true } });
    line.textContent = sentence(told.stops);
  } catch {
    line.textContent = ""; // what the dialog says by itself still holds
  }
});

// ---- draining: of one node, or of those that are chosen in the list ----
const dialog = document.getElementById("ask-drain"), form = dialog?.querySelector("form");
const chosen = () => dialog.dataset.node ? [dialog.dataset.node] : [...document.querySelectorAll("[data-choose-node]:checked")].map(box => box.value);
let shown = null;

function empty(outcome) {
  if (outcome.empty_within_s === 0) return t("empty at once");
  if (outcome.empty_in_s === null) return outcome.empty_within_s === null ? t("nobody knows when it is empty") : t("empty in {span} at most", { span: span(outcome.empty_within_s) });
  if (outcome.empty_within_s === null || outcome.empty_within_s === outcome.empty_in_s) return t("empty in about {span}", { span: span(outcome.empty_in_s) });
  return t("empty in about {span}, {most} at most", { span: span(outcome.empty_in_s), most: span(outcome.empty_within_s) });
}

function asked() {
  const deadline = form.elements.deadline.value, mode = form.elements.mode.value;
  return { nodes: chosen(), mode, ...(mode === "finish" && deadline && { deadline_s: Number(deadline) * 3600 }) };
}

async function look() {
  const said = form.querySelector("[data-said]"), yes = form.querySelector("[type=submit]");
  form.elements.deadline.disabled = form.elements.mode.value !== "finish";
  yes.disabled = true;
  try {
    shown = await call(`${DRAIN}?dry_run=true`, { json: asked() });
    form.querySelector("[data-nodes]").textContent = shown.nodes.join(", ");
    form.querySelector("[data-affects]").textContent = shown.affects.jobs ? t("Jobs that run there: {jobs}, of {owners}. Device-hours since their last checkpoints: {hours}.", facts(shown.affects)) : t("Nothing runs there.");
    const rows = shown.affects.stages.slice(0, 12).map(one => {
      const lost = one.saved_at ? tn(hours(one.lost_device_s), "{n} device-hour since its last checkpoint", "{n} device-hours since its last checkpoint") : tn(hours(one.lost_device_s), "{n} device-hour, and no checkpoint", "{n} device-hours, and no checkpoint");
      return Object.assign(document.createElement("li"), { textContent: `#${one.job} ${one.stage} · ${one.user} · ${lost}` });
    });
    form.querySelector("[data-stages]").replaceChildren(...rows);
    for (const outcome of shown.outcomes) {
      const loses = outcome.stops ? tn(hours(outcome.lost_device_s), "stops {stops}, loses {n} device-hour", "stops {stops}, loses {n} device-hours", { stops: outcome.stops }) + " · " : "";
      form.querySelector(`[data-outcome="${outcome.mode}"]`).textContent = loses + empty(outcome);
    }
    yes.disabled = false;
  } catch (error) {
    said.textContent = error.message;
  }
}

if (dialog) {
  document.addEventListener("click", event => {
    if (event.target.closest("[data-dialog]")?.dataset.dialog !== "ask-drain" || !dialog.open) return;
    form.querySelector("[data-said]").textContent = "";
    look();
  });
  form.addEventListener("change", event => event.target.name !== "reason" && look());
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const yes = form.querySelector("[type=submit]");
    yes.disabled = true;
    try {
      const done = await call(DRAIN, { json: { ...asked(), reason: form.elements.reason.value }, headers: { "If-Match": shown.version } });
      dialog.close();
      form.reset();
      for (const box of document.querySelectorAll("[data-choose-node]")) box.checked = false;
      toast(t("Draining {nodes}", { nodes: done.nodes.join(", ") }));
      refresh();
      settle();
    } catch (error) {
      await look();
      form.querySelector("[data-said]").textContent = error.message;
    }
  });
}

const button = document.querySelector("[data-drain-chosen]");
function settle() {
  if (button) button.disabled = !chosen().length;
}
document.addEventListener("change", event => event.target.matches("[data-choose-node]") && settle());
onRefresh(settle);
settle();
