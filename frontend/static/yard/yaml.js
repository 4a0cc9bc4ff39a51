// Writes a job file as YAML that the server's reader takes for exactly the same values. Plain JSON values only, so a small
// writer is enough; YAML is read by the server alone.
const PLAIN = /^(?!\.\d)[A-Za-z_./][\w ./@%+=-]*$/;
const WORD = /^(true|false|null|yes|no|on|off|~)$/i;
// What YAML does not take as it is, or takes for a line break.
const UNPRINTABLE = /[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]/g;
// A literal block keeps its lines, unless it begins with a space, ends with several line breaks or holds what YAML reads otherwise.
const BLOCK = /^(?=\S)[^\r\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]*$/;

function scalar(value) {
  if (typeof value === "number") return String(value).replace(/^(-?\d+)e/, "$1.0e");
  if (typeof value !== "string") return JSON.stringify(value) ?? "null";
  if (PLAIN.test(value) && !WORD.test(value) && !value.endsWith(" ")) return value;
  return JSON.stringify(value).replace(UNPRINTABLE, c => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** A value on one line. */
export function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (value && typeof value === "object") return `{${Object.entries(value).map(([k, v]) => `${scalar(k)}: ${flow(v)}`).join(", ")}}`;
  return scalar(value);
}

const isBlock = text => text.includes("\n") && BLOCK.test(text) && !text.endsWith("\n\n");
const isDeep = value => value && typeof value === "object" && (Array.isArray(value) ? value.some(item => item && typeof item === "object") : flow(value).length > 70);

function block(text, indent) {
  const lines = text.replace(/\n$/, "").split("\n").map(line => (line ? indent + line : ""));
  return `|${text.endsWith("\n") ? "" : "-"}\n${lines.join("\n")}\n`;
}

/** A mapping, a list or a scalar on lines of its own, each indented by `indent`. */
export function yaml(value, indent = "") {
  if (isDeep(value) && Array.isArray(value)) return value.map(item => `${indent}- ${yaml(item, indent + "  ").trimStart()}`).join("");
  if (!value || typeof value !== "object" || Array.isArray(value) || !Object.keys(value).length) return `${indent}${flow(value)}\n`;
  return Object.entries(value).map(([k, v]) => {
    if (typeof v === "string" && isBlock(v)) return `${indent}${scalar(k)}: ${block(v, indent + "  ")}`;
    return isDeep(v) ? `${indent}${scalar(k)}:\n${yaml(v, indent + "  ")}` : `${indent}${scalar(k)}: ${flow(v)}\n`;
  }).join("");
}
