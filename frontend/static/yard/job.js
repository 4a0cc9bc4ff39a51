// The job page's own parts: measurements of its devices, drawn from the metrics topic, reported values, and the log. Each
// tab has some of them.
import { feed } from "./charts.js";
import { watch } from "./live.js";
import { LogPanel } from "./log_panel.js";
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

/** What the strip can show of a device, by the name in the address: its values, their unit and the end of their scale. */
const MEASURES = {
  utilisation: d => [d.utilisation, 100, "%"],
  memory: d => [d.memory_used_bytes, d.memory_bytes ? 100 / d.memory_bytes : 0, "%"],
  power: d => [d.power_w, 1, "W"],
  temperature: d => [d.temperature_c, 1, "°C"],
};

/** The metrics answer as a strip of device × time and as lines of what its processes use. */
const MOST_LINES = 8;
function measured({ at, devices, parts, truncated }) {
  const x = at.map(moment => Date.parse(moment));
  const measure = MEASURES[holder.dataset.measure] ?? MEASURES.utilisation;
  const shown = devices.map(d => [d, ...measure(d)]).filter(([, list, scale]) => scale && some(list));
  const first = shown.length ? Math.min(...shown.map(([, list]) => list.findIndex(v => v !== null))) : 0;
  const z = shown.map(([, list, scale]) => held(list).slice(first).map(v => (v === null ? null : v * scale)));
  const unit = shown[0]?.[3] ?? "%";
  feed("chart-devices", {
    rows: shown.map(([d]) => `${d.node} ${d.kind}${d.index}`), x: x.slice(first), height: Math.min(340, Math.max(96, shown.length * 17 + 30)),
    z, unit, max: unit === "%" ? 100 : Math.max(1, ...z.flat().filter(v => v !== null)),
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
  if (panel.hasAttribute("data-each")) return each(panel);
  const chosen = [...history].filter(([key]) => /loss|reward|error|perplexity/i.test(key));
  const drawn = (chosen.length ? chosen : [...history]).slice(0, 3);
  panel.hidden = !drawn.some(([, points]) => points.length > 1);
  const count = panel.querySelector("header .sub");
  count.textContent = history.size > drawn.length ? t("by step; {n} of {total}", { n: drawn.length, total: history.size }) : t("by step");
  feed("chart-values", { x_kind: "step", series: drawn.map(([key, points]) => ({ name: key, x: points.map(p => p[0]), y: points.map(p => p[1]) })) });
}

/** A chart for each reported number, because their scales differ. */
const MOST_CHARTS = 24;
function each(panel) {
  const known = [...history].filter(([, points]) => points.length > 1), holder = panel.querySelector(".y-each");
  panel.hidden = !known.length;
  panel.querySelector("header .sub").textContent = known.length > MOST_CHARTS ? t("by step; {n} of {total}", { n: MOST_CHARTS, total: known.length }) : t("by step");
  known.slice(0, MOST_CHARTS).forEach(([key, points], i) => {
    const id = `chart-value-${i}`;
    if (!document.getElementById(id)) {
      const figure = Object.assign(document.createElement("figure"), { className: "y-fig" }), chart = Object.assign(document.createElement("div"), { className: "y-chart h-150" });
      Object.assign(chart.dataset, { chart: "lines", source: id, keep: "" });
      figure.append(Object.assign(document.createElement("script"), { type: "application/json", id, textContent: "{}" }), document.createElement("b"), chart, Object.assign(document.createElement("figcaption"), { textContent: t("by step") }));
      holder.append(figure);
    }
    document.getElementById(id).nextElementSibling.textContent = key;
    feed(id, { x_kind: "step", series: [{ name: key, x: points.map(p => p[0]), y: points.map(p => p[1]) }] });
  });
}
load();
onRefresh(() => (Date.now() - loadedAt > AGAIN_MS ? load() : reported()));

if (holder) watch(holder.dataset.topic, data => data && measured(data), { data: true });

const log = document.querySelector("[data-log]");
if (log) {
  const panel = new LogPanel(log);
  watch(log.dataset.streams, streams => streams && panel.streams(streams), { data: true });
  onRefresh(() => panel.draw());
}
