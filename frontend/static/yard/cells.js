// The map of devices as the server sends it: a byte for each cell. Nothing here knows a page.

/** Why a cell shows no utilisation; `controlplane/queries/device_map.py` has the same. */
const MARKS = { 201: "free", 202: "idle", 203: "bad", 204: "na", 205: "drain" };
const NO_DEVICE = 255, ANOTHER = -1;

export function bytes(text) {
  return Uint8Array.from(atob(text || ""), c => c.charCodeAt(0));
}

/** Numbers of four bytes each, the lowest first. */
export function numbers(text) {
  const found = bytes(text), view = new DataView(found.buffer);
  return Int32Array.from({ length: found.length >> 2 }, (_, i) => view.getInt32(4 * i, true));
}

/** Every cell of a map, row by row: {row, column, used (of 100) or null, value of `tops` or null, mark or "", share, job or 0, other}. */
export function cells({ rows, columns, levels, tops = 100, shares, holders }) {
  const level = bytes(levels), share = bytes(shares), holder = numbers(holders);
  const found = [];
  for (let i = 0; i < rows.length * columns; i += 1) {
    if (level[i] === undefined || level[i] === NO_DEVICE) continue;
    const mark = MARKS[level[i]] ?? "";
    found.push({
      row: Math.floor(i / columns), column: i % columns, used: mark ? null : level[i], value: mark ? null : Math.round(level[i] * tops / 100), mark, share: share[i] ?? 0,
      job: holder[i] > 0 ? holder[i] : 0, isOther: holder[i] === ANOTHER,
    });
  }
  return found;
}
