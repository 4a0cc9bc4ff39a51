// A log that follows by byte offset. It keeps a window of lines and draws only those in sight; the whole text is one
// download away. ANSI colours become classes on text nodes: nothing of a log is ever parsed as HTML.
import { lastUpTo, LEVELS, Told } from "./log_lines.js";
import { LogSearch, split } from "./log_search.js";
import { ansi, Lines } from "./terminal.js";
import { num, t, tn } from "./text.js";

const LINE = 18, KEEP = 20_000, FIRST = 256 * 1024, LONG = 4000, AROUND = 64 * 1024;

/** One log in `root`. `panel` holds what the logs beside each other share: see `LogPanel`. */
export class Log {
  constructor(root, panel) {
    this.root = root;
    this.panel = panel;
    this.box = root.querySelector(".y-log");
    this.space = this.box.appendChild(Object.assign(document.createElement("div"), { className: "space" }));
    this.rows = this.space.appendChild(Object.assign(document.createElement("div"), { className: "rows" }));
    this.pick = root.querySelector("[data-log-pick]");
    this.follow = root.querySelector("[data-log-follow]");
    this.count = root.querySelector("[data-log-count]");
    this.raw = root.querySelector("[data-log-raw]");
    this.following = true;
    this.known = [];
    this.reset();
    this.box.addEventListener("scroll", () => {
      const low = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 2 * LINE;
      if (low && this.until !== null) this.readOn();
      else if (low !== this.following) this.setFollow(low, false);
      this.draw();
      if (this.led !== this.box.scrollTop) this.panel.moved(this);
      this.led = null;
    }, { passive: true });
    this.box.addEventListener("keydown", event => event.key === "G" && this.setFollow(true));
    this.pick.addEventListener("change", () => { this.picked = true; this.reset(); this.more(); panel.chosen(); });
    this.follow.addEventListener("click", () => this.setFollow(!this.following));
    this.everywhere = new LogSearch(this);
  }

  reset() {
    this.lines = new Lines(KEEP);
    this.told = new Told();
    this.isCut = false;
    this.offset = null;
    this.skipped = 0;
    this.until = null; // where a stretch ends that was opened from a search; else the log is read to its end
    this.wanted = null; // the byte in it that is to be shown
    this.before = 0; // line breaks of the stretch before that byte
    this.decoder = new TextDecoder();
    this.led = null; // where the log beside this one has scrolled it
    this.sift();
  }

  /** Shows the stretch of the log around a byte. */
  open(offset) {
    this.reset();
    this.setFollow(false, false);
    this.skipped = this.offset = Math.max(0, offset - AROUND);
    this.until = offset + AROUND;
    this.wanted = offset;
    this.more();
  }

  /** Goes on behind the stretch that was opened, and follows where the log has no more. */
  readOn() {
    const size = this.known.find(o => o[0] === this.pick.value)?.[2] ?? 0;
    if (this.busy) return;
    this.until = this.offset >= size ? null : this.until + AROUND;
    this.more();
  }

  setFollow(on, scroll = true) {
    if (on && scroll && this.until !== null) { this.reset(); this.more(); }
    this.following = on;
    this.follow.setAttribute("aria-pressed", on);
    this.follow.querySelector("span").textContent = on ? t("Following") : t("Follow");
    if (on && scroll) this.box.scrollTop = this.box.scrollHeight;
  }

  /** The streams of the job as {results: [{stage, attempt, rank, stream, size_bytes}]}, the newest attempt last. */
  streams(all) {
    const list = all.results;
    const value = s => [s.stage, s.attempt, s.rank, s.stream].join("|");
    const groups = new Map();
    for (const s of list) {
      const both = [s.stage, s.attempt, s.rank, "both"].join("|");
      if (!groups.has(both)) groups.set(both, { label: `${s.stage} · ${t("attempt {n}", { n: s.attempt })}${list.some(o => o.rank) ? ` · ${t("rank {n}", { n: s.rank })}` : ""}`, size: 0, parts: [] });
      groups.get(both).size += s.size_bytes;
      groups.get(both).parts.push(s);
    }
    const options = [];
    for (const [both, group] of groups) {
      options.push([both, group.label, group.size]);
      for (const s of group.parts) options.push([value(s), `  ${s.stream === "err" ? t("standard error") : t("standard output")}`, s.size_bytes]);
    }
    if (all.truncated) options.push(["", t("There are more: showing the first {n}.", { n: num(list.length) }), 0]);
    const before = this.pick.value;
    if (options.length !== this.known.length) {
      this.pick.replaceChildren(...options.map(([v, label]) => Object.assign(document.createElement("option"), { value: v, textContent: label })));
      this.pick.value = this.picked && options.some(o => o[0] === before) ? before : this.panel.usual(this, options);
      if (this.pick.value !== before) this.reset();
    }
    this.known = options;
    this.root.querySelector("[data-empty]").hidden = options.some(o => o[2] > 0);
    this.box.hidden = !options.some(o => o[2] > 0);
    for (const tool of this.root.querySelectorAll("[data-log-tool]")) tool.hidden = this.box.hidden;
    this.more();
  }

  address(extra, of = "") {
    const [stage, attempt, rank, stream] = this.pick.value.split("|");
    return `${this.panel.root.dataset.logs}${of}?${new URLSearchParams({ stage, attempt, rank, stream, ...extra })}`;
  }

  async more() {
    if (this.busy || !this.pick.value) return;
    this.busy = true;
    const chosen = this.pick.value;
    try {
      for (let turn = 0; turn < 40; turn += 1) {
        const size = this.known.find(o => o[0] === chosen)?.[2] ?? 0;
        if (this.offset === null) {
          this.skipped = Math.max(0, size - FIRST);
          this.offset = this.skipped;
        }
        const until = Math.min(size, this.until ?? size), from = this.offset;
        if (from >= until) break;
        const answer = await fetch(this.address({ offset: from, limit: Math.min(262144, until - from) }), { cache: "no-store" });
        if (!answer.ok || this.pick.value !== chosen) break;
        const bytes = new Uint8Array(await answer.arrayBuffer());
        const next = Number(answer.headers.get("X-Log-Next-Offset") || this.offset + bytes.length);
        if (this.offset !== from) continue; // another stretch was opened meanwhile
        if (!bytes.length && next <= from) break;
        this.offset = next;
        this.before += this.wanted === null ? 0 : bytes.subarray(0, Math.max(0, this.wanted - from)).reduce((n, byte) => n + (byte === 10), 0);
        this.take(this.decoder.decode(bytes, { stream: true }));
        if (this.wanted !== null && next > this.wanted) this.reveal();
      }
    } finally {
      this.busy = false;
      if (this.raw) this.raw.href = `${this.panel.root.dataset.raw}?${this.address({}).split("?")[1]}`;
      if (this.pick.value !== chosen) this.more();
    }
  }

  take(text) {
    const isFirst = this.skipped && !this.isCut && text.includes("\n");
    this.lines.take(text, isFirst); // the first line of a window may be cut
    this.isCut ||= isFirst;
    this.told.read(this.lines);
    this.sift();
    if (this.following) this.box.scrollTop = this.box.scrollHeight;
    this.panel.took();
  }

  /** Chooses the lines to show, by their level, and those of them in which the text stands that is looked for. */
  sift() {
    const all = this.lines.all, most = LEVELS.indexOf(this.panel.level), needle = this.panel.needle.toLowerCase();
    this.shown = all.map((_, i) => i);
    if (most < LEVELS.length - 1) this.shown = this.shown.filter(i => LEVELS.indexOf(this.told.level(i, all[i])) <= most);
    this.hits = needle ? [...this.shown.keys()].filter(at => all[this.shown[at]].toLowerCase().includes(needle)) : [];
    this.at = -1;
    this.draw();
  }

  /** Where line `i` is among those that are shown: its own place, or that of the one before it. */
  placeOf(i) { return lastUpTo(this.shown, i); }

  /** Scrolls so that line `i` is `above` pixels below the upper edge, because the log beside this one was scrolled. */
  lead(i, above) {
    const before = this.box.scrollTop;
    this.box.scrollTop = Math.max(0, this.placeOf(i) * LINE - above);
    if (this.box.scrollTop === before) return;
    this.led = this.box.scrollTop;
    this.draw();
  }

  /** The line by which the log beside this one is scrolled, and how far below the upper edge it is. */
  get anchor() {
    const { scrollTop, clientHeight, scrollHeight } = this.box;
    const isLast = scrollTop + clientHeight >= scrollHeight - 2;
    const place = isLast ? this.shown.length - 1 : Math.floor(scrollTop / LINE);
    return { line: this.shown[place] ?? 0, above: place * LINE - scrollTop };
  }

  /** Scrolls to the byte that was asked for. */
  reveal() {
    this.wanted = null;
    const line = this.before - (this.skipped ? 1 : 0) - this.lines.dropped;
    this.box.scrollTop = Math.max(0, this.placeOf(line) * LINE - this.box.clientHeight / 2);
    this.draw();
  }

  draw() {
    const lines = this.lines.all, all = this.shown, first = Math.max(0, Math.floor(this.box.scrollTop / LINE) - 20), last = Math.min(all.length, first + Math.ceil((this.box.clientHeight || 380) / LINE) + 40);
    this.space.style.height = `${all.length * LINE}px`;
    this.rows.style.transform = `translateY(${first * LINE}px)`;
    const needle = this.panel.needle;
    this.rows.replaceChildren(...all.slice(first, last).map(i => this.row(lines[i], this.lines.dropped + i + 1, needle, this.told.level(i, lines[i]))));
    const cut = this.skipped || this.lines.dropped;
    this.count.textContent = needle ? t("{n} found", { n: num(this.hits.length) }) : this.until !== null ? tn(all.length, "{n} line around what was found", "{n} lines around what was found") : (cut ? tn(all.length, "last {n} line", "last {n} lines") : tn(all.length, "{n} line", "{n} lines"));
  }

  row(line, number, needle, level) {
    const row = Object.assign(document.createElement("div"), { className: "row" });
    row.dataset.level = level;
    row.append(Object.assign(document.createElement("i"), { textContent: this.skipped ? "·" : number }));
    const text = row.appendChild(Object.assign(document.createElement("span"), { className: "l" }));
    for (const [piece, classes] of ansi(line.length > LONG ? line.slice(0, LONG) + " …" : line)) {
      const parts = needle ? split(piece, needle) : [piece];
      parts.forEach((part, i) => {
        if (i % 2) text.append(Object.assign(document.createElement("mark"), { textContent: part }));
        else if (classes.length) text.append(Object.assign(document.createElement("span"), { className: classes.join(" "), textContent: part }));
        else text.append(part);
      });
    }
    return row;
  }

  /** Goes to the next line that was found, or the one before. */
  next(by) {
    if (!this.hits.length) return;
    this.at = (this.at + by + this.hits.length) % this.hits.length;
    this.setFollow(false, false);
    this.box.scrollTop = Math.max(0, this.hits[this.at] * LINE - this.box.clientHeight / 2);
    this.draw();
  }
}
