import { bytes, cells, numbers } from "../../frontend/static/yard/cells.js";
import { equal, test } from "./check.js";

const pack = list => btoa(String.fromCharCode(...list));
const four = list => pack(list.flatMap(n => [n & 255, (n >> 8) & 255, (n >> 16) & 255, (n >> 24) & 255]));

test("bytes and numbers come as they were packed", () => {
  equal([...bytes(pack([0, 1, 100, 255]))], [0, 1, 100, 255]);
  equal([...numbers(four([0, -1, 70_000, 2_000_000_000]))], [0, -1, 70_000, 2_000_000_000]);
  equal([[...bytes("")], [...numbers(undefined)]], [[], []]);
});

test("a cell says how busy it is, or why not, and who holds it", () => {
  const found = cells({ rows: ["a", "b"], columns: 2, levels: pack([42, 201, 204, 255]), shares: pack([100, 0, 50, 0]), holders: four([12, 0, -1, 0]) });
  equal(found, [
    { row: 0, column: 0, used: 42, value: 42, mark: "", share: 100, job: 12, isOther: false },
    { row: 0, column: 1, used: null, value: null, mark: "free", share: 0, job: 0, isOther: false },
    { row: 1, column: 0, used: null, value: null, mark: "na", share: 50, job: 0, isOther: true },
  ]);
});

test("a value is a share of what the darkest colour stands for", () => {
  equal(cells({ rows: ["a"], columns: 2, levels: pack([50, 204]), tops: 700 }).map(cell => cell.value), [350, null]);
});

test("a map whose holders have not come yet is drawn all the same", () => {
  equal(cells({ rows: ["a"], columns: 1, levels: pack([7]) }), [{ row: 0, column: 0, used: 7, value: 7, mark: "", share: 0, job: 0, isOther: false }]);
});
