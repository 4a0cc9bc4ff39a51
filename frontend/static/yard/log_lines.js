// What a line of a log tells of itself: how serious it is and when it was written, both guessed from its text. Nothing
// here knows a page.
import { plain } from "./terminal.js";

/** The most serious first: a filter on one shows those before it too. */
export const LEVELS = ["error", "warning", "info"];

const HEAD = 160;
const WORDS = { fatal: "error", critical: "error", crit: "error", alert: "error", emerg: "error", panic: "error", error: "error", err: "error", f: "error", e: "error", warning: "warning", warn: "warning", w: "warning", notice: "info", info: "info", debug: "info", trace: "info", i: "info", d: "info" };
// "[rank3]:" of torch, "[default0]:" of torchrun, "[1,0]<stderr>:" of mpirun.
const RANK = /^\[(?:[a-z]*\d+|\d+,\d+)\](?:<\w+>)?:\s?/;
// Where a line names its level: as glog does, by a key, in capitals, in brackets, or before a colon as compilers do.
const NAMED = [
  /^([IWEFD])\d{4} \d\d:\d\d:\d\d/,
  /\b(?:level|levelname|lvl|severity)"?\s*[=:]\s*"?(\w+)/i,
  /(?:^|[\s[(<|:*-])(FATAL|CRITICAL|ERROR|ERR|WARNING|WARN|NOTICE|INFO|DEBUG|TRACE)(?=$|[\s\])>|:,*-])/,
  /[[<](fatal|critical|crit|alert|emerg|error|err|warning|warn|notice|info|debug|trace)[\]>]/i,
  /(?:^|:\s|:\d\d(?:[.,]\d+)?Z?\]?\s+)(fatal|panic|error|warning)(?: error)?(?:\[\w+\])?:\s/i,
];
const RAISED = [
  [/^Traceback \(most recent call last\)|^(?:[\w.]+\.)?\w*(?:Error|Exception|KeyboardInterrupt)(?::|$)|\b[A-Z]\w*(?:Error|Exception): /, "error"],
  [/\b[A-Z]\w*Warning: /, "warning"],
  [/\b(?:segmentation fault|core dumped|out of memory|uncaught exception)\b|\b(?:an|with|fatal|cuda|nccl|hccl|runtime|internal) error\b|\bassertion\b.*\bfailed\b|^Killed$/i, "error"],
];

/** A line's level, "info" where nothing in it says one; `before` is that of the line before, whose traceback it may go on with. */
export function levelOf(line, before = "info") {
  const text = plain(line.slice(0, 4 * HEAD)).replace(RANK, ""), head = text.slice(0, HEAD);
  for (const named of NAMED) {
    const level = WORDS[head.match(named)?.[1].toLowerCase()];
    if (level) return level;
  }
  for (const [raised, level] of RAISED) if (raised.test(head)) return level;
  return /^\s+\S/.test(text) ? before : "info";
}

const DAY = 86_400_000;
const DATED = /(?<![\d.])(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(?:(Z)|([+-])(\d\d):?(\d\d))?/;
const GLOG = /^[IWEFD](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?/;
const CLOCK = /(?<![\d:.])(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?![\d:])/;
const ms = (hour, minute, second, part = "") => ((hour * 60 + +minute) * 60 + +second) * 1000 + Math.floor(+part.padEnd(3, "0").slice(0, 3));

/** When a line says that it was written: {at: ms, isDated}, or null. Without a zone it counts as UTC; without a date, from midnight. */
export function timeOf(line) {
  const head = plain(line.slice(0, 4 * HEAD)).replace(RANK, "").slice(0, HEAD);
  const dated = head.match(DATED);
  if (dated) {
    const [, year, month, day, hour, minute, second, part, , sign, hours, minutes] = dated;
    const ahead = sign ? (sign === "-" ? -1 : 1) * (hours * 60 + +minutes) * 60_000 : 0;
    const at = Date.UTC(year, month - 1, day) + ms(hour, minute, second, part) - ahead;
    if (month >= 1 && month <= 12 && day >= 1 && day <= 31 && hour < 24) return { at, isDated: true };
  }
  const glog = head.match(GLOG);
  if (glog) return { at: Date.UTC(new Date().getUTCFullYear(), glog[1] - 1, glog[2]) + ms(...glog.slice(3)), isDated: true };
  const clock = head.match(CLOCK);
  return clock && clock[1] < 24 && clock[2] < 60 ? { at: ms(...clock.slice(1)), isDated: false } : null;
}

/** The levels and times of `Lines` that grow at their end and are dropped at their beginning. */
export class Told {
  constructor() {
    this.dropped = 0;
    this.levels = [];
    this.times = []; // never less than the one before; null before the first line that has one
    this.isDated = null; // whether they have dates; null while none was seen
  }

  /** Reads what is new of the whole lines. */
  read(lines) {
    const gone = lines.dropped - this.dropped;
    if (gone > 0) for (const list of [this.levels, this.times]) list.splice(0, gone);
    this.dropped = lines.dropped;
    for (let i = this.levels.length; i < lines.whole.length; i += 1) this.add(lines.whole[i]);
  }

  add(line) {
    this.levels.push(levelOf(line, this.levels.at(-1)));
    const before = this.times.at(-1) ?? null, said = timeOf(line);
    if (said) this.isDated ??= said.isDated;
    if (said?.isDated !== this.isDated) return this.times.push(before);
    let at = said.at;
    if (!said.isDated && before !== null) {
      at += Math.floor(before / DAY) * DAY;
      if (before - at > DAY / 2) at += DAY; // past midnight
    }
    this.times.push(Math.max(before ?? at, at));
  }

  /** The level of a line: the last one may not have ended yet. */
  level(i, line) { return this.levels[i] ?? levelOf(line, this.levels.at(-1)); }

  get hasTimes() { return this.isDated !== null; }

  /** The index of the last line written at or before a time; 0 where all were written later. */
  indexAt(time) { return lastUpTo(this.times, time); }
}

/** The index of the last value at or before `most` in a list that never falls; 0 where all are beyond. Null comes first. */
export function lastUpTo(values, most) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((values[middle] ?? -Infinity) <= most) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

/** The line of `other` that belongs beside line `i` of `told`, or null where their times cannot be compared. */
export function beside(told, i, other) {
  const time = told.times[Math.min(i, told.times.length - 1)] ?? null;
  return time === null || !other.hasTimes || told.isDated !== other.isDated ? null : other.indexAt(time);
}
