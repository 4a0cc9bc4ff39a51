// The overview's live parts: three snapshots that all readers of an audience share, each brought up to date by what differs.
import { feed, source } from "./charts.js";
import { follow } from "./live.js";
import { patch, refresh } from "./page.js";

const cursors = JSON.parse(document.getElementById("overview-cursors").textContent);

function apply({ parts, gone = [] }) {
  if ("layout" in parts || gone.length) {
    const shown = [...document.querySelectorAll("[data-chart=heat]")].map(el => source(el.dataset.source));
    const key = list => JSON.stringify(list.map(({ id, rows, columns, simulated }) => [id, rows, columns, simulated]));
    if (gone.length || key(parts.layout) !== key(shown)) return refresh(); // nodes came or went: the map is another one
  }
  const maps = new Map();
  for (const [name, part] of Object.entries(parts)) {
    const [kind, id] = name.split(":");
    if (kind === "html") patch(id, part);
    else if (["levels", "tops", "shares", "holders"].includes(kind)) maps.set(id, { ...maps.get(id), [kind]: part });
  }
  const projects = "projects" in parts ? { projects: parts.projects } : {};
  for (const el of document.querySelectorAll("[data-chart=heat]")) {
    const id = el.dataset.source, fresh = { ...maps.get(id), ...projects };
    if (Object.keys(fresh).length) feed(id, { ...source(id), ...fresh });
  }
}

for (const [topic, cursor] of Object.entries(cursors)) follow(topic, cursor, apply);
