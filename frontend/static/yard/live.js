// One WebSocket per tab. A topic is a REST path; the server says when its answer changed. Where the socket dies, the same
// paths are polled with If-None-Match, and the pill says so: the page never stops moving in silence. The server sends a beat
// every two seconds, so a line that is silent for longer is dead, whatever the browser thinks of it.
import { clock, span, t } from "./text.js";

const POLL_S = 5, SILENT_S = 4.5, LATE_S = 10, GONE_S = 60;
// topic -> {etag, data: wanted or not, seen: called with the data or null}, or of a shared snapshot {cursor, apply}
const topics = new Map();
const pill = document.querySelector("[data-live-pill]");
let socket = null, tries = 0, retry = 0, retryAt = 0, heardAt = Date.now(), askedAt = 0, polledAt = 0, lateS = 0, lostAt = 0, polling = false, paused = false, shown = "";

function show(state, text) {
  if (!pill || shown === state + text) return;
  shown = state + text;
  pill.dataset.state = state;
  pill.querySelector("span").textContent = text;
  document.documentElement.dataset.feed = state;
}

function state() {
  const quiet = (Date.now() - heardAt) / 1000;
  if (paused) return show("paused", t("Paused"));
  if (lostAt) {
    if (quiet > GONE_S) return show("offline", t("Offline, retry in {n} s", { n: Math.max(0, Math.ceil((retryAt - Date.now()) / 1000)) }));
    return show("stale", t("Not live since {time}", { time: clock(new Date(lostAt).toISOString(), true) }));
  }
  if (socket?.readyState === WebSocket.OPEN) return lateS > LATE_S ? show("stale", t("Stale {span}", { span: span(lateS) })) : show("live", t("Live"));
  if (tries === 0) return show("connecting", t("Connecting"));
  show("polling", t("Polling {n} s", { n: POLL_S }));
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

const subscription = (topic, entry) => entry.apply ? { op: "sub", topic, since: entry.cursor } : ({ op: "sub", topic, etag: entry.etag || "", want: entry.data ? "data" : "etag" });

function heard() {
  heardAt = Date.now();
  lostAt = 0;
}

function hear(event) {
  heard();
  const message = JSON.parse(event.data);
  if (message.kind === "beat") lateS = message.late_s || 0;
  const entry = topics.get(message.topic);
  if (entry?.apply && message.kind === "delta") return take(message, entry) || send(subscription(message.topic, { ...entry, cursor: "" }));
  if (!entry || entry.apply || !["snapshot", "changed"].includes(message.kind)) return;
  entry.etag = message.etag;
  entry.seen(message.data ?? null);
}

/** Takes the whole, or what leads on from what the page has; false where something is missing between. */
function take(delta, entry) {
  if (delta.since && delta.since !== entry.cursor) return false;
  entry.cursor = delta.to;
  entry.apply(delta);
  return true;
}

function connect() {
  clearTimeout(retry);
  if (paused || socket) return;
  askedAt = Date.now();
  const mine = (socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/v1?lang=${document.documentElement.lang}`));
  mine.onopen = () => {
    tries = 0;
    lateS = 0;
    heard();
    for (const [topic, entry] of topics) send(subscription(topic, entry));
    state();
  };
  mine.onmessage = hear;
  mine.onclose = event => {
    if (socket !== mine) return;
    if (event.code === 4401) return location.reload();
    leave();
  };
}

/** Gives up the line and tries another one later; until then the paths are polled. */
function leave() {
  const left = socket;
  socket = null;
  left?.close();
  tries += 1;
  const wait = Math.min(30_000, 500 * 2 ** Math.min(tries - 1, 6)) * (0.75 + Math.random() / 2);
  retryAt = Date.now() + wait;
  clearTimeout(retry);
  if (!paused) retry = setTimeout(connect, wait);
  state();
}

async function poll() {
  if (polling) return;
  polling = true;
  polledAt = Date.now();
  for (const [topic, entry] of [...topics]) {
    try {
      const address = entry.apply ? `${topic}?since=${encodeURIComponent(entry.cursor)}` : topic;
      const answer = await fetch(address, { headers: { Accept: "application/json", ...(entry.etag && { "If-None-Match": entry.etag }) }, cache: "no-store", signal: AbortSignal.timeout(2 * SILENT_S * 1000) });
      heard();
      if (answer.status === 401) return location.reload();
      if (!answer.ok) continue;
      const data = await answer.json();
      if (entry.apply) {
        data.deltas.every(delta => take(delta, entry)) || (entry.cursor = "");
        continue;
      }
      entry.etag = answer.headers.get("ETag") || "";
      entry.seen(entry.data ? data : null);
    } catch {
      lostAt ||= heardAt;
      break; // what did not answer for one path will not for the next
    }
  }
  polling = false;
  state();
}

function beat() {
  const silent = Date.now() - Math.max(heardAt, askedAt) > SILENT_S * 1000;
  if (!paused && silent && socket) {
    lostAt ||= heardAt;
    leave();
  }
  if (!paused && socket?.readyState !== WebSocket.OPEN && tries > 0 && Date.now() - polledAt >= POLL_S * 1000) poll();
  state();
}

/** Calls `seen` whenever the answer of this REST path changed: with its JSON if `data`, else with null. */
export function watch(topic, seen, { data = false, etag = "" } = {}) {
  topics.set(topic, { seen, data, etag });
  send(subscription(topic, topics.get(topic)));
}

/** Calls `apply` with each change of a snapshot that many share: {parts, gone}. `cursor` is of what the page has. */
export function follow(topic, cursor, apply) {
  topics.set(topic, { cursor, apply });
  send(subscription(topic, topics.get(topic)));
}

export function unwatch(topic) {
  if (topics.delete(topic)) send({ op: "unsub", topic });
}

/** Stops or goes on; a hidden tab does the same by itself. */
export function pause(on) {
  paused = on;
  if (on) {
    socket?.close();
    socket = null;
  } else {
    heard();
    connect();
  }
  state();
}

export function start() {
  if (!pill) return;
  let held = false;
  pill.addEventListener("click", () => pause((held = !paused)));
  document.addEventListener("visibilitychange", () => held || pause(document.hidden));
  connect();
  setInterval(beat, 1000);
}
