import { clock, clockOf, gib, num, span, t, tn, wall } from "../../frontend/static/yard/text.js";
import { equal, test } from "./check.js";

test("spans have two units at most", () => {
  equal([0, 59.4, 60, 61, 3599, 3600, 7260, 86_400, 90_000].map(span), ["0 s", "59 s", "1 min", "1 min 1 s", "59 min", "1 h", "2 h 1 min", "1 d", "1 d 1 h"]);
});

test("amounts say what they do not know", () => {
  equal([num(null), num(undefined), num(0), gib(2 ** 30 * 1.5)], ["–", "–", "0", "1.5 GiB"]);
});

test("words come from the catalogue, with their values", () => {
  equal(t("{n} of {n}, {nothing}", { n: 3 }), "3 of 3, ");
  const before = globalThis.gettext;
  globalThis.gettext = text => ({ "{n} lines": "{n} 行" })[text] ?? text;
  equal([t("{n} lines", { n: 2 }), t("unknown")], ["2 行", "unknown"]);
  globalThis.gettext = before;
});

test("a count of one has words of its own", () => {
  const found = count => tn(count, "{n} line of {all}", "{n} lines of {all}", { all: 9 });
  equal([0, 1, 2, 1200].map(found), ["0 lines of 9", "1 line of 9", "2 lines of 9", `${num(1200)} lines of 9`]);
  const before = globalThis.ngettext;
  globalThis.ngettext = (one, many, count) => `${count === 1 ? "eine" : "{n}"} ${many}`;
  equal(tn(1, "{n} row", "rows"), "eine rows");
  globalThis.ngettext = before;
});

test("a moment of today is its time alone", () => {
  const noon = new Date();
  noon.setHours(12, 5, 9, 0);
  equal([clock(noon.toISOString()), clock(noon.toISOString(), true)], ["12:05", "12:05:09"]);
});

test("a moment is told in the zone that was chosen, summer or winter", () => {
  const [summer, winter] = ["2026-07-01T22:30:05Z", "2026-01-01T22:30:05Z"];
  equal([summer, winter].map(at => wall(at, clockOf("Europe/Berlin"))), ["2026-07-02 00:30:05", "2026-01-01 23:30:05"]);
  equal([wall(summer, clockOf("Asia/Kathmandu")), wall(summer, clockOf("UTC"))], ["2026-07-02 04:15:05", "2026-07-01 22:30:05"]);
  equal(clock(winter, false, clockOf("Asia/Shanghai")), "01-02 06:30");
});

test("a zone that the browser does not know is that of the browser", () => {
  const at = "2026-07-01T22:30:05Z";
  equal(wall(at, clockOf("Mars/Olympus")), wall(at, clockOf("")));
});
