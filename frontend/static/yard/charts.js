// The one module that calls Plotly. A chart is <div data-chart="KIND" data-source="ID">, and the JSON script ID holds what
// to draw; colours are token names, so a change of theme is a redraw. Redraws come at most once a second, never off screen.
// What a reader zoomed to stays while the data move on; a double click shows all again.
import { cells } from "./cells.js";
import { lang, num, t, wall } from "./text.js";

const CONFIG = {
  displaylogo: false, showSendToCloud: false, plotlyServerURL: "", topojsonURL: "/static/none/", responsive: false, scrollZoom: false,
  displayModeBar: "hover", doubleClick: "autosize", modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "resetScale2d"],
  locale: lang.startsWith("zh") ? "zh-CN" : "en",
};

// ---- tokens ----
let probe;
function tok(name, alpha = 1) {
  probe ??= Object.assign(document.body.appendChild(document.createElement("i")), { hidden: true });
  probe.style.color = `var(--${name})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g);
  return `rgba(${r},${g},${b},${alpha})`;
}
const font = () => getComputedStyle(document.body).fontFamily;
// A finger on a chart scrolls the page; the buttons of the chart zoom.
const drag = () => (matchMedia("(pointer: coarse)").matches ? false : "zoom");
const clear = "rgba(0,0,0,0)";
const ramp = () => Array.from({ length: 10 }, (_, i) => [i / 9, tok(`ramp-${i}`)]);

const axis = (more = {}) => ({
  showgrid: false, zeroline: false, showline: false, ticks: "outside", ticklen: 4, tickcolor: clear, fixedrange: false, automargin: false,
  tickfont: { size: 11, color: tok("text-3"), family: font() }, gridcolor: tok("line-soft"), ...more,
});
// For labels that are cut to the margin here: else Plotly measures each of them with every redraw.
const fits = { ticklabeloverflow: "allow" };
const layout = (more = {}) => ({
  paper_bgcolor: clear, plot_bgcolor: clear, showlegend: false, uirevision: "keep", dragmode: drag(), modebar: { bgcolor: clear, color: tok("text-3"), activecolor: tok("text") }, margin: { l: 44, r: 10, t: 8, b: 24 },
  font: { family: font(), size: 11, color: tok("text-3") }, hovermode: "closest",
  hoverlabel: { bgcolor: tok("raised"), bordercolor: tok("line"), align: "left", font: { size: 12, color: tok("text"), family: font() } }, ...more,
});
const safe = text => String(text ?? "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// ---- gantt: bars on lanes; done is quiet, planned is hatched, trouble has an edge ----
const BAR = {
  COMPLETED: ["line-strong", "line-strong", "text", 0.24], CANCELLED: ["line-strong", "line-strong", "text-2", 0.14], FAILED: ["failed-tint", "failed", "failed-text", 1],
  PREEMPTED: ["preempting-tint", "preempting", "preempting-text", 1], RUNNING: ["ramp-1", "running", "text", 1], STARTING: ["starting-tint", "starting", "starting-text", 1],
  STOPPING: ["stopping-tint", "stopping", "stopping-text", 1], SUSPENDED: ["suspended-tint", "suspended", "suspended-text", 1], PENDING: ["canvas", "line-strong", "text-3", 1],
  MINE: ["ramp-3", "running", "text", 1], PLANNED: [null, "running", "text-2", 1], OVERDUE: [null, "warn", "text-2", 1],
};
const MARK = { checkpoint: ["diamond", 7, "text"], preempted: ["triangle-down", 10, "preempting"], failed: ["x", 9, "failed"] };

const pen = document.createElement("canvas").getContext("2d");

/** The width in pixels of the widest of these labels; the pen keeps their font. */
function widest(names) {
  pen.font = `11px ${font()}`;
  return Math.max(0, ...names.map(name => pen.measureText(name).width));
}

/** A label shows where all of it fits, or the job without its stage, or its number; else the read-out tells it. */
function fit(text, width, height) {
  const fits = what => pen.measureText(what).width <= width - 8;
  if (height < 12) return "";
  return safe([text, text.split(" · ")[0], text.match(/^#\d+/)?.[0]].find(each => each && fits(each)) ?? "");
}

function gantt(d, el) {
  const from = Date.parse(d.from), to = Date.parse(d.to), now = Date.now();
  const folds = (d.folds || []).filter(fold => fold.href), lanes = folds.length && !folds.some(fold => fold.open) ? [] : d.lanes;
  const beside = folds.length && 24 + 1.1 * widest(folds.map(fold => fold.name));
  const left = Math.min(el.clientWidth < 560 ? 110 : 190, beside + 12 + widest(lanes)), pixels = (el.clientWidth - left - 10) / (to - from);
  const rows = d.rows || d.lanes.length, tall = (el.clientHeight - 44) / (rows + 0.2);
  const traces = [];
  for (const [name, [fill, edge, ink, alpha]] of Object.entries(BAR)) {
    const items = d.items.filter(item => item.s === name).map(item => ({ ...item, a: Math.max(from, Date.parse(item.from)), b: item.to ? Date.parse(item.to) : now })).filter(item => item.b > from && item.a < to);
    if (!items.length) continue;
    traces.push({
      type: "bar", orientation: "h", name, y: items.map(i => -(i.lane + (i.h || 1) / 2 - 0.5)), width: items.map(i => (i.h || 1) - (d.tight ? Math.min(0.14, 0.3 * (i.h || 1)) : 0.4)),
      base: items.map(i => wall(i.a)), x: items.map(i => Math.max(i.b - i.a, 1.5 / pixels)),
      text: items.map(i => fit(i.t, (Math.min(i.b, to) - i.a) * pixels, (i.h || 1) * tall * (d.tight ? 1 : 0.6))), textposition: "inside", insidetextanchor: "start", textangle: 0,
      constraintext: "none", textfont: { size: 11, color: tok(ink), family: font() }, customdata: items.map(i => [safe(i.tip || i.t), i.href || ""]), hovertemplate: "%{customdata[0]}<extra></extra>",
      marker: {
        color: fill ? tok(fill, alpha) : tok("surface"), line: { color: tok(edge, 0.9), width: 1 },
        ...(fill ? {} : { pattern: { shape: "/", size: 6, solidity: 0.14, fgcolor: tok(edge, 0.55), bgcolor: tok("surface"), fillmode: "replace" } }),
      },
    });
  }
  const marks = d.marks || [];
  if (marks.length) {
    traces.push({
      type: "scatter", mode: "markers", x: marks.map(m => wall(m.at)), y: marks.map(m => -m.lane - (d.tight ? 0 : 0.36)), text: marks.map(m => safe(m.t)), hovertemplate: "%{text}<extra></extra>",
      marker: { symbol: marks.map(m => MARK[m.k][0]), size: marks.map(m => MARK[m.k][1]), color: marks.map(m => tok(MARK[m.k][2])), line: { width: 1, color: tok("surface") } },
    });
  }
  const bands = (d.bands || []).map(([a, b]) => ({ type: "rect", xref: "paper", x0: 0, x1: 1, y0: 0.5 - a, y1: -0.5 - b, fillcolor: tok("sunken"), line: { width: 0 }, layer: "below" }));
  const inside = now > from && now < to;
  const line = { type: "line", x0: wall(now), x1: wall(now), yref: "paper", y0: 0, y1: 1, line: { color: tok("text"), width: 1.25 } };
  const label = { x: wall(now), y: 1, yref: "paper", yanchor: "bottom", text: t("now"), showarrow: false, font: { size: 11, color: tok("text"), family: font() } };
  const every = Math.ceil(11 / Math.max(1, tall));
  const ticks = lanes.map((name, i) => [name, -(d.at?.[i] ?? i)]).filter((_, i) => i % every === 0);
  const clip = name => (widest([name]) > left - 11 ? name.slice(0, Math.floor((left - 14) / 6)) + "…" : name);
  return [traces, layout({
    barmode: "overlay", bargap: 0, margin: { l: left, r: 10, t: 20, b: 24 },
    xaxis: axis({ type: "date", range: [wall(from), wall(to)], showgrid: true, layer: "below traces", nticks: Math.max(3, Math.floor(el.clientWidth / 110)) }),
    yaxis: axis({ range: [0.4 - rows, 0.6], fixedrange: folds.length > 0, tickvals: ticks.map(x => x[1]), ticktext: ticks.map(x => safe(clip(x[0]))) }),
    shapes: [...bands, ...(inside ? [line] : [])], annotations: inside ? [label] : [],
  })];
}

/** The names of nodes beside their lanes, as links that fold and unfold them. */
function folding(el, d) {
  const tall = (el.clientHeight - 44) / (d.rows + 0.2), made = document.createElement("div");
  made.className = "y-folds";
  for (const { name, at, href, open } of d.folds) {
    const link = Object.assign(document.createElement("a"), { href, textContent: name, title: name });
    link.setAttribute("aria-expanded", open);
    [link.style.top, link.style.height] = [`${20 + (at + 0.1) * tall}px`, `${tall}px`];
    made.append(link);
  }
  el.querySelector(".y-folds")?.remove();
  el.append(made);
}
gantt.table = d => [[t("Lane"), t("What"), t("State"), t("From"), t("To")], d.items.map(i => [i.on ?? d.lanes[i.lane] ?? "", i.t || i.tip, i.s, wall(i.from), i.to ? wall(i.to) : t("now")])];

// ---- heat: node × device; what is not a measurement is a mark, not a colour ----
const CELL = { free: ["square-open", "line-strong"], idle: ["square-open", "warn"], bad: ["x-thin-open", "failed"], na: ["line-ne-open", "line-strong"], drain: ["triangle-se", "line-strong"] };


const SAID = () => ({ free: t("free"), idle: t("held, idle"), bad: t("unhealthy"), na: t("no data"), drain: t("draining") });

/** Each cell of a map with what its read-out says and where it leads. */
function told(d) {
  const said = SAID(), projects = new Map(d.projects), simulated = new Set(d.simulated);
  return cells(d).map(cell => {
    const node = d.rows[cell.row], name = `${d.kind}${cell.column}`;
    const tip = [
      `${node} ${name}`, d.model, cell.mark ? said[cell.mark] : `${cell.value} ${d.unit || "%"}`, cell.share > 0 && cell.share < 100 ? t("{n} % allocated", { n: cell.share }) : "",
      cell.job ? `#${cell.job} ${projects.get(cell.job) ?? ""}` : cell.isOther ? t("another project") : "", simulated.has(cell.row) ? t("simulated") : "",
    ].filter(Boolean).join(" · ");
    return { ...cell, node, tip, href: cell.job ? `/jobs/${cell.job}` : `/nodes/${encodeURIComponent(node)}#${name}` };
  });
}

/** One sentence that says what a map shows. */
function means(found, unit = "%") {
  const known = found.filter(cell => cell.used !== null);
  const mean = known.length ? known.reduce((sum, cell) => sum + cell.value, 0) / known.length : 0;
  if (!known.length && (unit !== "%" || found.some(cell => cell.mark === "na"))) return t("not measured");
  if (unit !== "%") return t("{n} of {total} measured, {mean} {unit} on average", { n: num(known.length), total: num(found.length), mean: Math.round(mean), unit });
  return t("{busy} of {total} at work, {mean} % on average", { busy: num(known.length), total: num(found.length), mean: Math.round(mean) });
}

function heat(d, el) {
  const found = told(d), empty = value => d.rows.map(() => Array(d.columns).fill(value));
  const [z, tips, hrefs] = [empty(null), empty(""), empty(null)];
  for (const { row, column, used, tip, href } of found) [z[row][column], tips[row][column], hrefs[row][column]] = [used, safe(tip), ["", href]];
  const caption = el.closest("figure")?.querySelector("figcaption");
  if (caption) caption.textContent = means(found, d.unit);
  const left = Math.min(96, 14 + 6.3 * Math.max(...d.rows.map(name => name.length)));
  const columns = d.columns, cell = Math.min((el.clientWidth - left - 6) / columns, (el.clientHeight - 22) / d.rows.length);
  const traces = [{
    type: "heatmap", z, x: Array.from({ length: columns }, (_, i) => i), y: d.rows.map((_, i) => i), zmin: 0, zmax: 100, colorscale: ramp(), showscale: false, hoverongaps: false,
    xgap: cell > 8 ? 2 : 1, ygap: cell > 8 ? 2 : d.rows.length > 120 ? 0 : 1, text: tips, hovertemplate: "%{text}<extra></extra>", customdata: hrefs,
  }];
  for (const [kind, [symbol, colour]] of Object.entries(CELL)) {
    const at = found.filter(one => one.mark === kind);
    if (!at.length) continue;
    traces.push({
      type: "scatter", mode: "markers", name: kind, x: at.map(one => one.column), y: at.map(one => one.row), text: at.map(one => safe(one.tip)), hovertemplate: "%{text}<extra></extra>",
      customdata: at.map(one => ["", one.href]), marker: { symbol, size: Math.max(4, Math.min(13, cell * (kind === "bad" ? 0.45 : 0.62))), color: tok(colour), line: { width: kind === "free" ? 1 : 1.6, color: tok(colour) } },
    });
  }
  const every = Math.max(1, Math.ceil(13 / ((el.clientHeight - 22) / d.rows.length)));
  const ticks = d.rows.map((_, i) => i).filter(i => i % every === 0);
  const step = columns > 32 ? 8 : columns > 16 ? 4 : 1;
  return [traces, layout({
    margin: { l: left, r: 6, t: 2, b: 20 },
    xaxis: axis({ ...fits, range: [-0.5, columns - 0.5], tickvals: Array.from({ length: Math.ceil(columns / step) }, (_, i) => i * step) }),
    yaxis: axis({ ...fits, range: [d.rows.length - 0.5, -0.5], tickvals: ticks, ticktext: ticks.map(i => safe(d.rows[i].length > 12 ? "…" + d.rows[i].slice(-11) : d.rows[i])) }),
  })];
}
heat.table = d => [[t("Node"), t("Device"), t("Value"), t("What")], told(d).map(({ node, column, value, tip }) => [node, column, value === null ? "–" : `${num(value)} ${d.unit || "%"}`, tip])];

/** The same map as links, one for each device, for those who read or walk it by keys; kept and changed in place. */
function links(holder) {
  const d = source(holder.dataset.links);
  if (!d || holder.dataset.drawn === String(stamp(JSON.stringify(d)))) return;
  holder.dataset.drawn = stamp(JSON.stringify(d));
  const found = told(d), make = (tag, className) => Object.assign(document.createElement(tag), { className });
  if (holder.querySelectorAll("a").length !== found.length) {
    const rows = d.rows.map(name => {
      const row = make("div", "y-node");
      row.append(Object.assign(make("b", ""), { textContent: name, title: name }), make("div", "y-run"));
      return row;
    });
    for (const { row } of found) rows[row].lastChild.append(make("a", "y-cell"));
    holder.replaceChildren(...rows);
  }
  const all = holder.querySelectorAll("a");
  found.forEach(({ mark, used, tip, href }, i) => {
    const level = mark || String(Math.min(9, Math.floor(used / 10)));
    if (all[i].dataset.u !== level) all[i].dataset.u = level;
    if (all[i].getAttribute("href") !== href) all[i].href = href;
    if (all[i].getAttribute("aria-label") !== tip) all[i].setAttribute("aria-label", tip);
  });
}

// ---- strip: device × time ----
function strip(d) {
  const widest = Math.max(0, ...d.rows.map(row => row.length)), left = Math.min(160, 12 + widest * 6);
  const every = Math.ceil(d.rows.length / 12), ticks = d.rows.map((_, i) => i).filter(i => i % every === 0);
  const clip = name => (name.length > 24 ? "…" + name.slice(-23) : name);
  return [[{
    type: "heatmap", x: d.x.map(x => wall(x)), y: d.rows.map((_, i) => i), z: d.z, zmin: 0, zmax: d.max ?? 100, colorscale: ramp(), showscale: false, hoverongaps: false, ygap: d.rows.length > 40 ? 0 : 1,
    customdata: d.rows.map(row => d.x.map(() => safe(row))), hovertemplate: "%{customdata} · %{x|%H:%M:%S} · %{z:.0f} " + (d.unit || "%") + "<extra></extra>",
  }], layout({
    margin: { l: left, r: 8, t: 2, b: 24 }, xaxis: axis({ type: "date", nticks: 5 }),
    yaxis: axis({ ...fits, range: [d.rows.length - 0.5, -0.5], tickvals: ticks, ticktext: ticks.map(i => safe(clip(d.rows[i]))) }),
  })];
}
strip.table = d => [[t("Device"), t("Now"), t("Mean"), t("Most")], d.rows.map((row, i) => {
  const known = d.z[i].filter(v => v !== null);
  return [row, num(known.at(-1) ?? null), num(known.length ? known.reduce((a, b) => a + b, 0) / known.length : null), num(known.length ? Math.max(...known) : null)];
})];

// ---- lines: one accent, the rest told apart by dash; names at the line's end ----
const STROKE = [["accent", "solid", 1.75], ["text-2", "solid", 1.25], ["text-3", "dash", 1.25], ["kind-gpu", "solid", 1.25], ["kind-npu", "dot", 1.25], ["line-strong", "dash", 1.25], ["warn", "solid", 1.25], ["text-3", "dot", 1.25]];

function lines(d, el) {
  const date = d.x_kind === "time";
  const series = d.series.slice(0, 8);
  const right = series.length > 1 ? Math.min(110, 14 + widest(series.map(s => s.name))) : 12;
  const traces = series.map((s, i) => ({
    type: "scatter", mode: s.y.filter(v => v !== null).length < 2 ? "markers" : "lines", name: s.name, x: date ? s.x.map(x => wall(x)) : s.x, y: s.y, connectgaps: false, hovertemplate: `${safe(s.name)}: %{y:.4~g}${safe(d.unit ? " " + d.unit : "")}<extra></extra>`,
    ...(s.is_area ? { fill: "tozeroy", fillcolor: tok(STROKE[i][0], 0.16) } : {}), line: { shape: s.is_area ? "hv" : "linear", color: tok(STROKE[i][0]), dash: STROKE[i][1], width: STROKE[i][2] }, marker: { color: tok(STROKE[i][0]), size: 5 },
  }));
  const ends = series.length < 2 ? [] : series.map((s, i) => {
    const last = s.y.findLastIndex(v => v !== null);
    return last < 0 ? null : { x: date ? wall(s.x[last]) : s.x[last], y: s.y[last], xanchor: "left", xshift: 6, showarrow: false, text: safe(s.name), font: { size: 11, color: tok(STROKE[i][0] === "accent" ? "accent" : "text-2"), family: font() } };
  }).filter(Boolean);
  apart(ends, series, d, el);
  const xs = series.flatMap(s => [s.x[0], s.x.at(-1)]).filter(v => v !== undefined), [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  return [traces, layout({
    hovermode: "x", margin: { l: 44, r: right, t: 8, b: 24 }, annotations: ends,
    xaxis: axis({ type: date ? "date" : "linear", range: date ? [wall(x0), wall(x1)] : [x0, x1], nticks: Math.max(2, Math.floor(el.clientWidth / 90)) }), yaxis: axis({ showgrid: true, nticks: 5, rangemode: d.zero ? "tozero" : "normal", ...level(series) }),
  })];
}
/** A line that never moves has a scale of its own size; without this it would be one from -1 to 1. */
function level(series) {
  const values = new Set(series.flatMap(s => s.y.filter(v => v !== null))), [only] = values;
  return values.size === 1 && only && Math.abs(only) < 1 ? { range: [Math.min(0, 2 * only), Math.max(0, 2 * only)] } : {};
}
/** Names at the ends of lines that lie close together are moved apart. */
function apart(ends, series, d, el) {
  const values = series.flatMap(s => s.y.filter(v => v !== null));
  const low = d.zero ? 0 : Math.min(...values), per = (el.clientHeight - 32) / (Math.max(...values) - low || 1);
  let last = -Infinity;
  for (const end of ends.sort((a, b) => a.y - b.y)) {
    const at = Math.max(end.y * per, last + 13);
    end.yshift = at - end.y * per;
    last = at;
  }
}

lines.table = d => [[t("Series"), d.x_kind === "time" ? t("Time") : t("Step"), t("Value")], d.series.flatMap(s => s.x.map((x, i) => [s.name, d.x_kind === "time" ? wall(x) : num(x), num(s.y[i])]))];

// ---- parallel: an axis for each parameter and for what was reported, a line for each point ----
function parallel(d, el) {
  const last = d.axes.length - 1, kinds = [false, true].flatMap(stopped => [...new Set(d.lines.filter(l => l.stopped === stopped).map(l => l.level))].sort().map(level => [stopped, level]));
  const say = line => safe([line.name, ...d.axes.map((a, i) => `${a.name} ${line.values[i]}`)].join(" · "));
  const traces = kinds.map(([stopped, level]) => {
    const some = d.lines.filter(l => l.level === level && l.stopped === stopped);
    return {
      type: "scatter", mode: "lines+markers", connectgaps: false, x: some.flatMap(l => [...l.at.keys(), null]), y: some.flatMap(l => [...l.at, null]),
      customdata: some.flatMap(l => [...l.at.map(() => [say(l), l.href]), ["", ""]]), hovertemplate: "%{customdata[0]}<extra></extra>",
      line: { color: tok(`ramp-${Math.max(2, level)}`, d.lines.length > 200 || stopped ? 0.5 : 0.9), width: 1.25, dash: stopped ? "dot" : "solid" }, marker: { size: 4, color: tok(`ramp-${Math.max(2, level)}`) },
    };
  });
  const shapes = d.axes.map((_, i) => ({ type: "line", x0: i, x1: i, y0: 0, y1: 1, line: { color: tok("line-strong"), width: 1 }, layer: "below" }));
  const room = Math.max(4, Math.floor(el.clientWidth / (last + 1) / 7)), clip = text => (text.length > room ? text.slice(0, room - 1) + "…" : text);
  const write = (x, y, text, more) => ({ x, y, text: safe(clip(text)), showarrow: false, font: { size: 11, color: tok("text-3"), family: font() }, ...more });
  const notes = d.axes.flatMap((a, i) => [
    write(i, 1, a.name, { yanchor: "bottom", yshift: 10, font: { size: 11, color: tok("text"), family: font() } }),
    ...a.ticks.map(([y, text]) => write(i, y, text, { bgcolor: tok("surface"), borderpad: 1, xanchor: i === last ? "right" : "left", xshift: i === last ? -6 : 6 })),
  ]);
  return [traces, layout({
    margin: { l: 24, r: 24, t: 34, b: 12 }, shapes, annotations: notes, dragmode: false,
    xaxis: axis({ range: [-0.04 * last, last * 1.04], showticklabels: false, fixedrange: true }), yaxis: axis({ range: [-0.06, 1.06], showticklabels: false, fixedrange: true }),
  })];
}
parallel.table = d => [[t("Element"), ...d.axes.map(a => a.name)], d.lines.map(l => [l.name, ...l.values.map(String)])];


// ---- stack: amounts by day, a layer for each name; the last of many is all others ----
const LAYER = ["accent", "kind-gpu", "preempting", "warn", "starting", "lost", "kind-cpu", "line-strong"];

function stack(d, el) {
  const traces = d.series.map((s, i) => ({
    type: "bar", name: s.name, x: d.x, y: s.y, marker: { color: tok(LAYER[i % LAYER.length]), line: { width: 0 } },
    hovertemplate: `${safe(s.name)}: %{y:.4~g}${safe(d.unit ? " " + d.unit : "")}<br>%{x|%Y-%m-%d}<extra></extra>`,
  }));
  return [traces, layout({
    barmode: "stack", bargap: d.x.length > 60 ? 0 : 0.2, showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", font: { size: 11, color: tok("text-2"), family: font() }, itemclick: false, itemdoubleclick: false },
    margin: { l: 44, r: 10, t: 34, b: 24 }, xaxis: axis({ type: "date", nticks: Math.max(2, Math.floor(el.clientWidth / 90)) }), yaxis: axis({ showgrid: true, nticks: 5, rangemode: "tozero" }),
  })];
}
stack.table = d => [[t("Day"), ...d.series.map(s => s.name)], d.x.map((day, i) => [day, ...d.series.map(s => num(s.y[i]))])];

const KIND = { gantt, heat, strip, lines, parallel, stack };

// ---- loading, drawing, letting go ----
let loading;
function script(src) {
  return new Promise((done, failed) => document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: failed })));
}
function plotly() {
  const { plotly: src, plotlyZh: words } = document.body.dataset;
  loading ??= script(src).then(async () => {
    await rest(); // reading the library takes long enough by itself
    if (!lang.startsWith("zh")) return;
    globalThis.module = { exports: {} }; // the locale file is written for a module loader
    await script(words);
    // Without these an axis says 十一 3 for the third of November.
    const dates = { year: "%Y年", month: "%Y年%-m月", dayMonth: "%-m月%-d日", dayMonthYear: "%Y年%-m月%-d日" };
    Object.assign(globalThis.module.exports.format, dates);
    Plotly.register(globalThis.module.exports);
    delete globalThis.module;
  });
  return loading;
}

const near = new WeakSet(), drawnAt = new WeakMap(), live = new Set(), waiting = new Map();
const eyes = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) {
    isIntersecting ? near.add(target) : near.delete(target);
    if (isIntersecting) ask(target);
  }
}, { rootMargin: "200px" });
const size = new ResizeObserver(entries => entries.forEach(({ target }) => ask(target, true)));

function ask(el, again = false) {
  if (again) el.dataset.drawn = "";
  if (!near.has(el) || waiting.has(el)) return;
  const wait = Math.max(0, (drawnAt.get(el) || 0) + (again ? 120 : 1000) - Date.now());
  waiting.set(el, setTimeout(() => { waiting.delete(el); requestAnimationFrame(() => inTurn(el)); }, wait));
}

const rest = () => new Promise(done => setTimeout(done));
let turn = Promise.resolve();
/** Charts are drawn one after the other, so that the page answers the reader between them. */
function inTurn(el) {
  turn = turn.then(() => draw(el)).catch(reportError).then(rest);
}

const zooms = new WeakMap();
/** Keeps the ranges that the reader chose, by axis; "all again" forgets them. */
function zoomed(el, change) {
  const names = Object.keys(change);
  if (names.some(name => name.endsWith(".autorange"))) {
    zooms.delete(el);
    ask(el, true);
    return;
  }
  const kept = zooms.get(el) || {};
  for (const axis of ["xaxis", "yaxis"]) if (names.some(name => name.startsWith(`${axis}.range`))) kept[axis] = [...el.layout[axis].range];
  zooms.set(el, kept);
}

async function draw(el) {
  const source = document.getElementById(el.dataset.source)?.textContent;
  if (!el.isConnected || !source || !el.clientWidth || el.dataset.drawn === String(stamp(source))) return;
  await plotly();
  drawnAt.set(el, Date.now());
  el.dataset.drawn = stamp(source);
  const wanted = JSON.parse(source);
  if (wanted.height) el.style.height = `${wanted.height}px`;
  if (wanted.width) [el.style.width, el.style.maxWidth] = [`${wanted.width}px`, "100%"];
  const [traces, more] = KIND[el.dataset.chart](wanted, el);
  for (const [axis, range] of Object.entries(zooms.get(el) || {})) more[axis].range = range;
  const image = { filename: `switchyard-${el.dataset.source}`, scale: 2 };
  await Plotly.react(el, traces, { ...more, width: el.clientWidth, height: el.clientHeight }, { ...CONFIG, toImageButtonOptions: image });
  if (wanted.folds?.[0]?.href) folding(el, wanted);
  if (live.has(el)) return;
  live.add(el);
  el.on("plotly_click", ({ points }) => { const to = points[0]?.customdata?.[1]; if (to) location.href = to; });
  el.on("plotly_relayout", change => zoomed(el, change));
  el.on("plotly_hover", ({ points }) => readout(el, points[0]));
}

/** Details dock: a panel's read-out says what lies under the pointer. */
function readout(el, point) {
  const out = el.closest(".y-panel")?.querySelector("[data-readout]");
  if (out) out.textContent = new DOMParser().parseFromString(point?.text || point?.customdata?.[0] || "", "text/html").body.textContent;
}

const stamp = text => { let h = text.length; for (let i = 0; i < text.length; i += 1) h = (h * 31 + text.charCodeAt(i)) | 0; return h; };

/** Finds new charts, lets go of removed ones and redraws those whose source changed. */
export function scan() {
  for (const el of live) if (!el.isConnected) { Plotly.purge(el); live.delete(el); eyes.unobserve(el); size.unobserve(el); }
  for (const el of document.querySelectorAll("[data-chart]")) {
    if (!el.dataset.watched) { el.dataset.watched = "1"; eyes.observe(el); size.observe(el); }
    ask(el);
    const fig = el.closest(".y-fig");
    if (fig?.dataset.view === "table") table(fig, el);
  }
  for (const holder of document.querySelectorAll("[data-links]")) if (holder.getClientRects().length) links(holder);
}

export function redraw() {
  for (const el of document.querySelectorAll("[data-chart]")) ask(el, true);
}

/** What a chart shows, as the server's JSON. */
export function source(id) {
  const text = document.getElementById(id)?.textContent;
  return text ? JSON.parse(text) : null;
}

/** Gives a chart new content, as the server's JSON would. */
export function feed(id, content) {
  const holder = document.getElementById(id);
  if (holder) { holder.textContent = JSON.stringify(content); scan(); }
}

function table(fig, el) {
  const source = document.getElementById(el.dataset.source)?.textContent;
  if (!source) return;
  const [head, rows] = KIND[el.dataset.chart].table(JSON.parse(source));
  const made = document.createElement("table");
  made.className = "y-table dense";
  const line = made.createTHead().insertRow();
  for (const text of head) line.append(Object.assign(document.createElement("th"), { textContent: text, scope: "col" }));
  const body = made.createTBody();
  for (const row of rows.slice(0, 1000)) { const tr = body.insertRow(); for (const text of row) tr.insertCell().textContent = text; }
  let holder = fig.querySelector(".y-figtable");
  if (!holder) fig.append((holder = Object.assign(document.createElement("div"), { className: "y-figtable", tabIndex: 0 })));
  holder.replaceChildren(made);
  if (rows.length > 1000) holder.append(Object.assign(document.createElement("p"), { className: "y-3", textContent: t("Showing 1,000 of {n} rows.", { n: num(rows.length) }) }));
}

document.addEventListener("click", event => {
  const button = event.target.closest("[data-table-for]");
  if (!button) return;
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", on);
  for (const fig of button.closest(".y-panel").querySelectorAll(".y-fig")) {
    fig.dataset.view = on ? "table" : "chart";
    const el = fig.querySelector("[data-chart]");
    on ? table(fig, el) : ask(el, true);
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
