// What a terminal would show of a log: lines, of which a carriage return begins the last one anew, and colours. Nothing
// here knows a page; nothing of a log is ever parsed as HTML.

/** A line that is longer is cut, also while it grows: a progress bar without an end takes no memory. */
export const LONGEST = 32_768;

const ESCAPES = /\x1b(?:\[([0-9;?]*)([A-Za-z])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])/g;

/** A line without its escape sequences. */
export const plain = line => (line.includes("\x1b") ? line.replace(ESCAPES, "") : line);

/** Splits one line into [text, classes] pieces; other escape sequences vanish. */
export function ansi(line, on = new Set()) {
  const pieces = [];
  let at = 0;
  for (const found of line.matchAll(ESCAPES)) {
    if (found.index > at) pieces.push([line.slice(at, found.index), [...on]]);
    at = found.index + found[0].length;
    if (found[2] !== "m") continue;
    for (const code of (found[1] || "0").split(";").map(Number)) {
      if (code === 0) on.clear();
      else if (code >= 1 && code <= 4) on.add(`a${code}`);
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) { for (const c of on) if (/^a[39]\d$/.test(c)) on.delete(c); on.add(`a${code}`); }
      else if (code === 39) for (const c of on) if (/^a[39]\d$/.test(c)) on.delete(c);
    }
  }
  if (at < line.length) pieces.push([line.slice(at), [...on]]);
  return pieces;
}

/** What is left of a line once its carriage returns have overwritten it: the last that was written, and whether more may. */
function overwritten(line) {
  const end = line.length - line.match(/\r*$/)[0].length;
  return line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
}

/** The last lines of a text that comes in pieces; `most` are kept, and `dropped` says how many went before them. */
export class Lines {
  constructor(most) {
    this.most = most;
    this.whole = [];
    this.dropped = 0;
    this.open = ""; // the line that has not ended, as its last carriage return left it
    this.returned = false; // whether that line ends with a carriage return: what comes next overwrites it
    this.cut = false; // whether the rest of that line is left out until it is overwritten or ends
  }

  /** Takes a piece. `skipsFirst` leaves out the first line, which began before the piece. */
  take(text, skipsFirst = false) {
    const parts = text.split("\n");
    parts.forEach((part, i) => {
      this.write(part);
      if (i === parts.length - 1) return;
      if (i > 0 || !skipsFirst) this.whole.push(this.open);
      this.open = "";
      this.returned = this.cut = false;
    });
    const over = this.whole.length - this.most;
    if (over > 0) {
      this.dropped += over;
      this.whole.splice(0, over);
    }
  }

  write(part) {
    if (!part) return;
    const isBegunAnew = /\r[^\r]/.test(part) || (this.returned && part[0] !== "\r");
    if (isBegunAnew) this.open = "", this.cut = false;
    this.returned = part.endsWith("\r");
    if (this.cut) return;
    this.open += overwritten(part);
    if (this.open.length > LONGEST) {
      this.open = this.open.slice(0, LONGEST) + " …";
      this.cut = true;
    }
  }

  /** Every line, with the one that has not ended. */
  get all() { return this.open ? [...this.whole, this.open] : this.whole; }
}
