import { split } from "../../frontend/static/yard/log_search.js";
import { equal, test } from "./check.js";

test("a text is split at the needle, whatever its case and signs", () => {
  equal(split("Loss loss", "LOSS"), ["", "Loss", " ", "loss", ""]);
  equal(split("a.b a+b", "a.b"), ["", "a.b", " a+b"]);
  equal(split("(a+)+$", "(a+)+$"), ["", "(a+)+$", ""]);
  equal(split("nothing", "x"), ["nothing"]);
});
