// One log, or two beside each other: what they share, which is the text that is looked for, the least serious level that is
// shown, and the time to which they are scrolled. The address says which logs are shown.
import { Log } from "./log.js";
import { beside } from "./log_lines.js";

const sameAttempt = (one, other) => String(one.split("|").slice(0, 2)) === String(other.split("|").slice(0, 2));
const ADDRESS = ["log", "beside"];

export class LogPanel {
  constructor(root) {
    this.root = root;
    this.known = { results: [] };
    const part = name => root.querySelector(`[data-log-${name}]`);
    [this.find, this.levels, this.two, this.together, this.holder] = ["find", "level", "two", "together", "views"].map(part);
    const first = root.querySelector("[data-log-view]");
    this.blank = first.cloneNode(true);
    this.logs = [];
    this.logs.push(new Log(first, this));
    this.find?.addEventListener("input", () => { this.sift(); if (this.needle) this.next(1); });
    this.find?.addEventListener("keydown", event => event.key === "Enter" && (event.preventDefault(), this.next(event.shiftKey ? -1 : 1)));
    this.levels?.addEventListener("change", () => { this.sift(); for (const log of this.logs) if (log.following) log.setFollow(true); });
    this.two?.addEventListener("click", () => { this.show(this.logs.length === 1); this.chosen(); });
    this.together?.addEventListener("click", () => { this.together.setAttribute("aria-pressed", !this.isTogether); if (this.isTogether) this.moved(this.logs[0]); });
    part("everywhere")?.addEventListener("click", () => (this.needle ? this.logs.forEach(log => log.everywhere.start()) : this.find.focus()));
    if (this.two && this.asked(1)) this.show(true);
  }

  get needle() { return this.find?.value ?? ""; }
  get level() { return this.levels?.value ?? "info"; }
  get isTogether() { return this.together?.getAttribute("aria-pressed") === "true"; }

  /** The log that the address names for the first or the second place. */
  asked(place) { return this.two ? new URLSearchParams(location.search).get(ADDRESS[place]) ?? "" : ""; }

  /** Shows a second log, or no longer. */
  show(isTwo) {
    if (isTwo) {
      const view = this.holder.appendChild(this.blank.cloneNode(true));
      this.logs.push(new Log(view, this));
    } else this.logs.pop().root.remove();
    this.two.setAttribute("aria-pressed", isTwo);
    this.holder.classList.toggle("two", isTwo);
    this.streams(this.known);
    this.draw();
  }

  streams(all) {
    this.known = all;
    this.logs.forEach(log => log.streams(all));
    for (const tool of this.root.querySelectorAll("[data-log-shared]")) tool.hidden = this.logs[0].box.hidden;
    if (this.two) this.two.hidden = this.logs.length === 1 && this.logs[0].known.length < 2;
    this.took();
  }

  /** The log to show where the reader chose none: what the address names, the newest one, and beside it another rank of its attempt. */
  usual(log, options) {
    const place = Math.max(0, this.logs.indexOf(log)), both = options.map(([value]) => value).filter(value => value.endsWith("|both"));
    const asked = this.asked(place);
    if (options.some(([value]) => value === asked)) return asked;
    if (place === 0) {
      const newest = options.findLast(([value, , size]) => value.endsWith("|both") && size > 0)?.[0] ?? both.at(-1) ?? "";
      return options.find(([value, , size]) => value.endsWith("|both") && size > 0 && sameAttempt(value, newest))?.[0] ?? newest;
    }
    const first = this.logs[0].pick.value, stage = `${first.split("|")[0]}|`, others = both.filter(value => !first.startsWith(value.replace(/both$/, "")));
    return others.find(value => sameAttempt(value, first)) ?? others.findLast(value => value.startsWith(stage)) ?? others.at(-1) ?? first;
  }

  /** Writes into the address which logs are shown. */
  chosen() {
    if (!this.two) return;
    const address = new URL(location.href);
    ADDRESS.forEach((name, place) => (this.logs[place]?.pick.value ? address.searchParams.set(name, this.logs[place].pick.value) : address.searchParams.delete(name)));
    history.replaceState(history.state, "", address);
  }

  /** A log has more lines: only where both have times they can be scrolled together. */
  took() {
    if (this.together) this.together.hidden = this.logs.length < 2 || beside(this.logs[0].told, Infinity, this.logs[1].told) === null;
  }

  /** A log was scrolled: the other one goes to the same time. */
  moved(log) {
    const other = this.logs.find(each => each !== log);
    if (!other || !this.isTogether || (log.following && other.following)) return;
    const { line, above } = log.anchor, to = beside(log.told, line, other.told);
    if (to !== null) other.lead(to, above);
  }

  sift() { this.logs.forEach(log => log.sift()); }

  draw() { this.logs.forEach(log => log.draw()); }

  /** Goes to the next line that was found, in each log, or in the first one that has any where the other follows it. */
  next(by) {
    const isLed = this.isTogether && !this.together.hidden;
    for (const log of isLed ? this.logs.filter(each => each.hits.length).slice(0, 1) : this.logs) log.next(by);
  }
}
