// What the tests of modules are written with: node's own runner where there is node, else a list for the browser.
const node = globalThis.process?.versions?.node ? await import("node:test") : null;
const listed = (globalThis.__tests ??= []);

export function test(name, act) {
  node ? node.test(name, act) : listed.push([name, act]);
}

/** Equal as JSON is, in which an undefined entry is none. */
export function equal(actual, expected, what = "") {
  const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${what} ${a} is not ${b}`);
}
