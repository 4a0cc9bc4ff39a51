import { beside, levelOf, timeOf, Told } from "../../frontend/static/yard/log_lines.js";
import { Lines } from "../../frontend/static/yard/terminal.js";
import { equal, test } from "./check.js";

const SAID = {
  error: [
    "ERROR: cannot bind", "2026-11-28 01:02:03,123 - train - ERROR - lost a worker", "[2026-11-28 01:02:03] [error] 12#0: refused", "E1128 01:02:03.456789 12 process.cc:9] dead",
    '{"time": "now", "level":"error", "msg": "no"}', "level=fatal msg=gone", "main.c:12:3: error: no such name", "error[E0382]: borrow of moved value", "fatal: not a git repository",
    "Traceback (most recent call last):", "ValueError: no such step", "torch.cuda.OutOfMemoryError: CUDA out of memory.", "[rank3]: RuntimeError: NCCL error", "KeyboardInterrupt",
    "Segmentation fault (core dumped)", "Killed", "\x1b[31mERROR\x1b[0m red", "[1,0]<stderr>:ERROR: of mpirun", "CRITICAL: stop", "process exited with error 5",
  ],
  warning: [
    "WARNING: slow", "[WARN] slow", "W1128 01:02:03.456789 12 a.cc:9] slow", "/site/x.py:3: UserWarning: old", "node-3:71:90 [0] misc.cc:1 NCCL WARN no network", "level=warning msg=x", "ld: warning: no symbol", "2026-11-28 01:02:03 \x1b[33mwarning:\x1b[0m slow", "(trainer) <warning> old",
  ],
  info: [
    "INFO: an ERROR was repaired", "step 12 loss 1.23", "0 errors", "error=0.12 after 3 epochs", "validation error 0.3", "mean absolute error: 0.2", "epoch 12 error: 0.2", "I1128 01:02:03.456789 12 a.cc:9] ready", "DEBUG: ERROR is a word", "", "no warnings",
    "saved error.log", "TERROR: a film",
  ],
};

for (const [level, lines] of Object.entries(SAID))
  test(`lines of level ${level}`, () => {
    for (const line of lines) equal(levelOf(line), level, JSON.stringify(line));
  });

test("what is indented goes on with the line before", () => {
  equal(levelOf('  File "train.py", line 3, in <module>', "error"), "error");
  equal(levelOf("step 3", "error"), "info", "what is not indented does not");
  equal(levelOf('[rank0]:   File "train.py", line 3', "error"), "error", "the rank before it is no text");
  equal(levelOf("   INFO: indented", "error"), "info", "what names its level has that");
});

test("a very long line is not read to its end", () => {
  equal(levelOf("x".repeat(1_000_000) + " ERROR: far away"), "info");
});

const at = text => timeOf(text) && [new Date(timeOf(text).at).toISOString(), timeOf(text).isDated];

test("times with a date, in whatever zone they name", () => {
  equal(at("2026-11-28T01:02:03.5Z ready"), ["2026-11-28T01:02:03.500Z", true]);
  equal(at("[2026-11-28 01:02:03,123] ready"), ["2026-11-28T01:02:03.123Z", true]);
  equal(at("2026/11/28 09:02:03+08:00 ready"), ["2026-11-28T01:02:03.000Z", true]);
  equal(at("2026-11-27 21:32:03.1234567-0330 ready"), ["2026-11-28T01:02:03.123Z", true]);
  equal(at("[rank1]: \x1b[32m2026-11-28 01:02:03\x1b[0m ready"), ["2026-11-28T01:02:03.000Z", true]);
  equal(at("W1128 01:02:03.456789 12 a.cc:9] slow").map(part => String(part).slice(4)), ["-11-28T01:02:03.456Z", ""]);
});

test("times without a date count from midnight", () => {
  equal(at("01:02:03 ready"), ["1970-01-01T01:02:03.000Z", false]);
  equal(at("[23:59:59.999] ready"), ["1970-01-01T23:59:59.999Z", false]);
});

test("what only looks like a time is none", () => {
  for (const line of ["step 12", "2026-13-40 01:02:03 x".replace("01:02:03", "1:2:3"), "99:99:99 x", "fe80:01:02:03:04", "10:00", ""]) equal(at(line), null, line);
});

const told = (text, most = 100) => {
  const lines = new Lines(most), one = new Told();
  lines.take(text);
  one.read(lines);
  return [one, lines];
};

test("a line without a time has that of the line before, and time never goes back", () => {
  const [one] = told("begin\n00:00:02 a\n  more\n00:00:01 late\n00:00:03 b\n");
  equal(one.times, [null, 2000, 2000, 2000, 3000]);
});

test("after midnight the next day begins", () => {
  const [one] = told("23:59:59 a\n00:00:01 b\n00:00:02 c\n");
  equal(one.times, [86_399_000, 86_401_000, 86_402_000]);
});

test("a log with dates does not take a clock in its text for a time", () => {
  const [one] = told("2026-11-28 01:00:00 a\nETA 00:10:00\n2026-11-28 01:00:01 b\n");
  equal([one.isDated, one.times.map(time => time - one.times[0])], [true, [0, 0, 1000]]);
});

test("what is dropped at the beginning is forgotten, also more than was read", () => {
  const [one, lines] = told("00:00:01 a\n00:00:02 ERROR b\n00:00:03 c\n", 3);
  lines.take("00:00:04 d\n");
  one.read(lines);
  equal([one.levels, one.times], [["error", "info", "info"], [2000, 3000, 4000]]);
  lines.take("00:00:05 e\n00:00:06 f\n00:00:07 g\n00:00:08 WARNING h\n00:00:09 i\n");
  one.read(lines);
  equal([one.levels, one.times], [["info", "warning", "info"], [7000, 8000, 9000]]);
});

test("the line that has not ended has a level too", () => {
  const [one, lines] = told("Traceback (most recent call last):\n  File");
  equal(lines.all.map((line, i) => one.level(i, line)), ["error", "error"]);
});

test("lines of the same time lie beside each other", () => {
  const [a] = told("00:00:01 a\n00:00:05 b\n00:00:09 c\n"), [b] = told("00:00:02 d\n00:00:03 e\n00:00:05 f\n00:00:05 g\n00:00:08 h\n");
  equal([0, 1, 2].map(i => beside(a, i, b)), [0, 3, 4]);
  equal([0, 1, 2, 3, 4, 5].map(i => beside(b, i, a)), [0, 0, 1, 1, 1, 1], "a line that has not ended belongs to the last");
});

test("times with and without a date, or none, are not compared", () => {
  const [a] = told("00:00:01 a\n"), [b] = told("2026-11-28 00:00:01 b\n"), [c] = told("no time\n"), [d] = told("");
  equal([beside(a, 0, b), beside(a, 0, c), beside(c, 0, a), beside(d, 0, a), beside(a, 0, d)], [null, null, null, null, null]);
});
