// The job page's own two parts: utilisation of its devices, drawn from the metrics topic, and the log.
import { feed } from "./charts.js";
import { watch } from "./live.js";
import { Log } from "./log.js";
import "./otherwise.js";
import { onRefresh } from "./page.js";
import { GIB, t } from "./text.js";

const holder = document.getElementById("job-metrics-topic");

/** Bridges gaps of a few steps: a measurement holds until the next one is due. Longer gaps stay gaps. */
const HOLD = 4;
function held(list) {
  let last = null, age = 0;
  return list.map(value => {
    if (value !== null) { last = value; age = 0; return value; }
    age += 1;
    return age <= HOLD ? last : null;
  });
}
const some = list => list.some(value => value !== null);

/** The metrics answer as a strip of device × time and as lines of what its processes use. */
const MOST_LINES = 8;
function measured({ at, devices, parts, truncated }) {
  const x = at.map(moment => Date.parse(moment));
  const shown = devices.filter(d => some(d.utilisation));
  const first = shown.length ? Math.min(...shown.map(d => d.utilisation.findIndex(v => v !== null))) : 0;
  feed("chart-devices", {
    rows: shown.map(d => `${d.node} ${d.kind}${d.index}`), x: x.slice(first), height: Math.min(340, Math.max(96, shown.length * 17 + 30)),
    z: shown.map(d => held(d.utilisation).slice(first).map(v => (v === null ? null : v * 100))),
  });
  const all = parts.filter(p => some(p.cpu) || some(p.rss_bytes)), known = all.slice(0, MOST_LINES);
  for (const [id, count, total] of [["panel-cpu", known.length, all.length], ["panel-memory", known.length, all.length], ["panel-devices", shown.length, truncated ? `${shown.length}+` : shown.length]]) {
    const told = document.querySelector(`#${id} [data-shown]`);
    if (told) told.textContent = count === total ? "" : t("showing {n} of {total}", { n: count, total });
  }
  const name = p => `${p.stage} ${p.attempt}${known.some(o => o.rank) ? `.${p.rank}` : ""}`;
  const seen = known.flatMap(p => [p.cpu, p.rss_bytes]).filter(some);
  const [from, to] = [Math.min(...seen.map(list => list.findIndex(v => v !== null))), Math.max(...seen.map(list => list.findLastIndex(v => v !== null))) + 1];
  const line = (p, list, unit) => ({ name: name(p), x: x.slice(from, to), y: held(list).slice(from, to).map(v => (v === null ? null : v / unit)) });
  feed("chart-cpu", { x_kind: "time", unit: t("cores"), zero: true, series: known.map(p => line(p, p.cpu, 1)) });
  feed("chart-memory", { x_kind: "time", unit: "GiB", zero: true, series: known.map(p => line(p, p.rss_bytes, GIB)) });
  for (const [id, empty] of [["panel-devices", !shown.length], ["panel-cpu", !known.length], ["panel-memory", !known.length]]) {
    const panel = document.getElementById(id);
    if (!panel) continue;
    panel.querySelector(".y-fig").hidden = empty;
    panel.querySelector("[data-empty]").hidden = !empty;
  }
}

/** The numbers that stages reported, by step, as the server keeps them; what comes while the page is open is added here. */
const AGAIN_MS = 60_000;
const history = new Map();
let loadedAt = 0;

async function load() {
  const panel = document.getElementById("panel-values");
  if (!panel) return;
  loadedAt = Date.now();
  try {
    const answer = await fetch(panel.dataset.values, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    history.clear();
    for (const { stage, series } of (await answer.json()).results) {
      for (const { name, steps, values } of series) {
        // An attempt goes on where a checkpoint of the one before lies: from there on its own numbers count.
        const before = (history.get(`${stage} ${name}`) || []).filter(([step]) => step < steps[0]);
        history.set(`${stage} ${name}`, [...before, ...steps.map((step, i) => [step, values[i]])]);
      }
    }
  } catch { /* the newest numbers stand above; it is asked again */ }
  reported();
}

function reported() {
  const told = JSON.parse(document.getElementById("job-reported")?.textContent || "{}");
  const panel = document.getElementById("panel-values");
  if (!panel) return;
  for (const [key, value] of Object.entries(told.values || {})) {
    if (typeof value !== "number" || told.step === null || told.step === undefined) continue;
    const points = history.get(`${told.stage} ${key}`) || [];
    if (!points.length || points.at(-1)[0] < told.step) points.push([told.step, value]);
    history.set(`${told.stage} ${key}`, points);
  }
  const chosen = [...history].filter(([key]) => /loss|reward|error|perplexity/i.test(key));
  const drawn = (chosen.length ? chosen : [...history]).slice(0, 3);
  panel.hidden = !drawn.some(([, points]) => points.length > 1);
  const count = panel.querySelector("header .sub");
  count.textContent = history.size > drawn.length ? t("by step; {n} of {total}", { n: drawn.length, total: history.size }) : t("by step");
  feed("chart-values", { x_kind: "step", series: drawn.map(([key, points]) => ({ name: key, x: points.map(p => p[0]), y: points.map(p => p[1]) })) });
}
load();
onRefresh(() => (Date.now() - loadedAt > AGAIN_MS ? load() : reported()));

if (holder) watch(holder.dataset.topic, data => data && measured(data), { data: true });

const log = document.querySelector("[data-log]");
if (log) {
  const viewer = new Log(log);
  watch(log.dataset.streams, streams => streams && viewer.streams(streams), { data: true });
  onRefresh(() => viewer.settle());
}
