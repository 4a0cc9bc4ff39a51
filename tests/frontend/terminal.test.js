import { ansi, Lines, LONGEST } from "../../frontend/static/yard/terminal.js";
import { equal, test } from "./check.js";

const shown = (...pieces) => {
  const lines = new Lines(100);
  for (const piece of pieces) lines.take(piece);
  return lines.all;
};

test("lines end at line feeds, wherever the pieces end", () => {
  equal(shown("one\ntw", "o\n", "\nthree"), ["one", "two", "", "three"]);
  equal(shown("windows\r", "\nends\r\n"), ["windows", "ends"]);
});

test("a carriage return begins the line anew", () => {
  equal(shown("step 1\rstep 2\rstep 3\ndone\n"), ["step 3", "done"]);
  equal(shown("10 %\r", "20 %", "\r30 %"), ["30 %"]);
  equal(shown("100 %\r"), ["100 %"], "what was written last stays until it is overwritten");
  equal(shown("100 %\r", "\n", "next"), ["100 %", "next"]);
});

test("a progress bar takes no more room however long it runs", () => {
  const lines = new Lines(100);
  for (let i = 0; i < 20_000; i += 1) lines.take(`\repoch 1 ${"#".repeat(i % 60)} ${i}`);
  equal([lines.all.length, lines.open.length < 100], [1, true]);
});

test("a line without an end is cut while it grows, and the next one is whole", () => {
  const lines = new Lines(100);
  for (let i = 0; i < 100; i += 1) lines.take("x".repeat(1000));
  equal(lines.open.length, LONGEST + 2);
  lines.take("\rshort");
  equal(lines.all, ["short"]);
  lines.take("\nnext\n");
  equal(lines.all, ["short", "next"]);
});

test("only the last lines are kept, and counted", () => {
  const lines = new Lines(3);
  lines.take("1\n2\n3\n4\n5\n6");
  equal([lines.all, lines.dropped], [["3", "4", "5", "6"], 2]);
});

test("the first line of a window may have begun before it", () => {
  const lines = new Lines(3);
  lines.take("alf a line\nwhole\n", true);
  equal(lines.all, ["whole"]);
});

test("colours become classes, and other escapes vanish", () => {
  equal(ansi("\x1b[1;31mred\x1b[0m plain\x1b[2K"), [["red", ["a1", "a31"]], [" plain", []]]);
  equal(ansi("<b>&amp;</b>"), [["<b>&amp;</b>", []]], "text stays text");
});
