// A search of a whole log: the server looks for a text, a stretch at a time, and each line that it found leads to its
// place. A newer search, another stream or "Stop" ends it.
import { ansi } from "./terminal.js";
import { num, t, tn } from "./text.js";

const MOST = 500, LONGEST_PAUSE_S = 10;

/** Splits a text into pieces, of which every second one is the needle, whatever its case. */
export function split(text, needle) {
  return text.split(new RegExp(`(${needle.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")})`, "i"));
}

let last = Promise.resolve();

/** The answer to a request that is sent once those before it are answered: the server searches once a person at a time. */
const inTurn = request => (last = last.then(request));

export class LogSearch {
  constructor(log) {
    this.log = log;
    const part = name => log.root.querySelector(`[data-log-${name}]`);
    [this.panel, this.list, this.told, this.stop, this.on] = ["found", "found-list", "found-told", "found-stop", "found-on"].map(part);
    this.stop.addEventListener("click", () => this.close());
    this.on.addEventListener("click", () => this.go());
    log.pick.addEventListener("change", () => this.close());
  }

  close() {
    this.run = null;
    this.panel.hidden = true;
  }

  start() {
    this.text = this.log.panel.needle;
    this.list.replaceChildren();
    this.panel.hidden = false;
    this.offset = this.count = 0;
    this.go();
  }

  async go() {
    const run = this.run = {}, most = this.count + MOST;
    this.on.hidden = true;
    this.say(t("Searching…"));
    while (this.count < most) {
      const path = this.log.address({ text: this.text, offset: this.offset, ignore_case: true }, "/search");
      const answer = await inTurn(() => this.run === run && fetch(path, { cache: "no-store" }).catch(() => null));
      if (this.run !== run) return;
      if (answer?.status === 429) {
        await new Promise(done => setTimeout(done, 1000 * Math.min(LONGEST_PAUSE_S, Number(answer.headers.get("Retry-After")) || 1)));
        if (this.run !== run) return;
        continue;
      }
      if (!answer?.ok) {
        const problem = await answer?.json().catch(() => null);
        this.say(problem?.detail || t("The control plane does not answer."));
        this.on.hidden = false;
        return;
      }
      const told = await answer.json();
      if (this.run !== run) return;
      this.list.append(...told.results.map(one => this.row(one)));
      this.count += told.results.length;
      const isOver = told.is_end || told.next_offset <= this.offset;
      this.offset = told.next_offset;
      if (isOver) { this.say(tn(this.count, "{n} line found in the whole log", "{n} lines found in the whole log")); return; }
      this.say(tn(this.count, "{n} line found, {share} % searched", "{n} lines found, {share} % searched", { share: num(Math.floor(100 * this.offset / told.size_bytes)) }));
    }
    this.on.hidden = false;
  }

  say(text) { this.told.textContent = text; }

  row(one) {
    const row = document.createElement("li"), go = row.appendChild(Object.assign(document.createElement("button"), { type: "button" }));
    go.append(Object.assign(document.createElement("i"), { textContent: num(one.offset) }));
    const line = go.appendChild(Object.assign(document.createElement("span"), { className: "l" }));
    split(ansi(one.line.replace(/\r+/g, " ")).map(([piece]) => piece).join(""), this.text).forEach((part, i) =>
      line.append(i % 2 ? Object.assign(document.createElement("mark"), { textContent: part }) : part));
    go.addEventListener("click", () => this.log.open(one.offset));
    return row;
  }
}
