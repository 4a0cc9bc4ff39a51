import { flow, yaml } from "../../frontend/static/yard/yaml.js";
import { equal, test } from "./check.js";

test("plain words stay plain, others are quoted", () => {
  equal(["train", "yes", "no", "1.5", "", "a: b", "# no", "null"].map(flow), ["train", '"yes"', '"no"', '"1.5"', '""', '"a: b"', '"# no"', '"null"']);
  equal(flow({ a: [1, true, null], b: {} }), "{a: [1, true, null], b: {}}");
});

test("a command of several lines is a block", () => {
  equal(yaml({ name: "a", run: "one\ntwo\n" }).includes("run: |\n  one\n  two\n"), true);
});
