// A new job as form and file. The specification is one object; the form changes it, the file is its text, and whichever
// the reader edits last wins. The API judges it: its dry run is the preview, its pointers find the fields.
import { call, toast } from "./page.js";
import { clock, gib, num, span, t } from "./text.js";

const known = JSON.parse(document.getElementById("submit-known").textContent);
const page = document.querySelector("[data-submit-page]"), form = page.querySelector("[data-form]"), text = page.querySelector("[data-yaml]");
const find = name => page.querySelector(`[data-${name}]`);
const PLACE = "yard.draft";
let spec = known.spec, at = 0, key = crypto.randomUUID(), asked = null, wait = 0;

// ---- YAML out: plain JSON values only, so a small writer is enough; YAML in is read by the server ----
const PLAIN = /^[A-Za-z_./][\w ./@%+=-]*$/;
const WORD = /^(true|false|null|yes|no|on|off|~)$/i;
function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  return PLAIN.test(value) && !WORD.test(value) && !value.endsWith(" ") ? value : JSON.stringify(value);
}
function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (value && typeof value === "object") return `{${Object.entries(value).map(([k, v]) => `${scalar(k)}: ${flow(v)}`).join(", ")}}`;
  return scalar(value);
}
export function yaml(value, indent = "") {
  if (Array.isArray(value) && value.some(item => item && typeof item === "object")) {
    return value.map(item => `${indent}- ${yaml(item, indent + "  ").trimStart()}`).join("");
  }
  if (!value || typeof value !== "object" || Array.isArray(value)) return `${indent}${flow(value)}\n`;
  return Object.entries(value).map(([k, v]) => {
    if (typeof v === "string" && v.includes("\n")) return `${indent}${scalar(k)}: |${v.endsWith("\n") ? "" : "-"}\n${v.replace(/\n$/, "").split("\n").map(line => (line ? `${indent}  ${line}` : "")).join("\n")}\n`;
    const deep = v && typeof v === "object" && (Array.isArray(v) ? v.some(item => item && typeof item === "object") : flow(v).length > 70);
    return deep ? `${indent}${scalar(k)}:\n${yaml(v, indent + "  ")}` : `${indent}${scalar(k)}: ${flow(v)}\n`;
  }).join("");
}

// ---- form <-> object ----
const stage = () => (spec.stages?.length ? spec.stages[at] : spec);
const put = (target, name, value) => { value === "" || value === null || value === undefined ? delete target[name] : (target[name] = value); };
const typed = (input, value) => (input.type === "number" ? (value === "" ? "" : Number(value)) : value);

function device(devices) {
  if (!devices) return "";
  if (typeof devices !== "object" || devices.any_of || Array.isArray(devices) || devices.vendor || devices.run || devices.env || devices.memory || devices.partition) return "custom";
  if (devices.model) return [...find("device").options].map(o => o.value).find(v => v.split("|")[1]?.toLowerCase() === String(devices.model).toLowerCase()) || "custom";
  return [...find("device").options].some(o => o.value === devices.kind) ? devices.kind : "custom";
}

function fill() {
  at = Math.min(at, Math.max(0, (spec.stages?.length || 1) - 1));
  for (const input of form.querySelectorAll("[data-key-path]")) set(input, spec[input.dataset.keyPath]);
  const one = stage();
  for (const input of form.querySelectorAll("[data-stage-path]")) {
    const name = input.dataset.stagePath;
    const value = name === "run" && Array.isArray(one.command) ? one.command.join(" ") : one[name] ?? (spec.stages?.length && !["name", "needs", "kind"].includes(name) ? undefined : one[name]);
    set(input, Array.isArray(value) ? value.join(", ") : value);
    if (name === "run") input.disabled = Array.isArray(one.command);
  }
  const chosen = device(one.devices);
  find("device").value = chosen;
  set(find("device-count"), chosen === "custom" ? "" : one.devices?.count);
  set(find("device-milli"), chosen === "custom" ? "" : one.devices?.milli);
  find("device-count").disabled = find("device-milli").disabled = chosen === "custom" || chosen === "" || chosen === "cpu";
  set(find("retry"), one.retry?.max);
  const staged = Boolean(spec.stages?.length);
  for (const el of page.querySelectorAll("[data-staged-only]")) el.hidden = !staged;
  find("drop-stage").hidden = !staged || spec.stages.length < 2;
  find("stages").hidden = !staged;
  find("stages").replaceChildren(...(spec.stages || []).map((s, i) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: s.name || `${i + 1}` });
    button.setAttribute("aria-pressed", i === at);
    button.append(Object.assign(document.createElement("small"), { textContent: s.kind || "generic" }));
    button.addEventListener("click", () => { at = i; fill(); faults([]); soon(); });
    return button;
  }));
}

function set(input, value) {
  if (input === document.activeElement) return;
  const shown = value === undefined || value === null ? "" : typeof value === "object" ? flow(value) : String(value);
  if (input.tagName === "SELECT" && ![...input.options].some(o => o.value === shown)) input.append(new Option(shown, shown));
  input.value = shown;
}

form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("input", event => {
  const input = event.target, one = stage();
  if (input.dataset.keyPath) put(spec, input.dataset.keyPath, input.value);
  else if (input.dataset.stagePath === "needs") put(one, "needs", input.value.trim() ? input.value.split(",").map(n => n.trim()).filter(Boolean) : "");
  else if (input.dataset.stagePath) put(one, input.dataset.stagePath, typed(input, input.value));
  else if (input === find("retry")) input.value ? (one.retry = { ...one.retry, max: Number(input.value) }) : delete one.retry;
  else if (find("device").value !== "custom") {
    const [kind, model] = find("device").value.split("|");
    const asks = {};
    if (model) asks.model = model;
    else if (kind) asks.kind = kind;
    if (kind && kind !== "cpu") {
      if (find("device-count").value) asks.count = Number(find("device-count").value);
      if (find("device-milli").value) asks.milli = Number(find("device-milli").value);
    }
    put(one, "devices", kind ? asks : "");
  }
  write();
});
find("add-stage").addEventListener("click", () => {
  if (!spec.stages?.length) {
    const first = { name: "main" };
    for (const name of ["kind", "run", "command", "devices", "nodes", "cpus", "memory", "time_limit", "retry"]) if (name in spec) { first[name] = spec[name]; delete spec[name]; }
    spec.stages = [first];
  }
  spec.stages.push({ name: `stage-${spec.stages.length + 1}`, needs: [spec.stages.at(-1).name], run: "" });
  at = spec.stages.length - 1;
  write();
});
find("drop-stage").addEventListener("click", () => {
  const [gone] = spec.stages.splice(at, 1);
  for (const s of spec.stages) if (s.needs) { s.needs = s.needs.filter(n => n !== gone.name); if (!s.needs.length) delete s.needs; }
  write();
});

function write() {
  text.value = yaml(spec);
  find("yaml-err").textContent = "";
  fill();
  keep();
  soon();
}

let reading = 0;
text.addEventListener("input", () => {
  clearTimeout(reading);
  reading = setTimeout(async () => {
    const sent = text.value;
    const answer = await fetch("/jobs/new/parse", { method: "POST", body: sent, headers: { "Content-Type": "application/yaml", "X-CSRFToken": document.cookie.match(/yard_csrf=([^;]+)/)?.[1] || "" } }).catch(() => null);
    if (!answer || sent !== text.value) return;
    const body = await answer.json().catch(() => ({}));
    find("yaml-err").textContent = answer.ok ? "" : body.detail || "";
    text.setAttribute("aria-invalid", !answer.ok);
    if (answer.ok) { spec = body.spec; fill(); keep(); soon(); }
  }, 300);
});
find("copy-yaml").addEventListener("click", () => navigator.clipboard?.writeText(text.value).then(() => toast(t("Copied"))));

function keep() { try { localStorage.setItem(PLACE, JSON.stringify({ yaml: text.value, spec })); } catch { /* a draft that cannot be kept is no loss of work that was submitted */ } }

// ---- preview ----
function soon() {
  key = crypto.randomUUID();
  clearTimeout(wait);
  wait = setTimeout(preview, 400);
}

async function preview() {
  asked?.abort();
  asked = new AbortController();
  find("verdict-short").textContent = t("Checking…");
  try {
    show(await call("/jobs/new/preview", { json: spec, signal: asked.signal }));
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status >= 400 && error.status < 500 && error.problem) {
      const found = error.problem.errors?.length ? error.problem.errors : [{ pointer: "", detail: error.message }];
      verdict("failed", t("Cannot run as written"), error.problem.hint || "");
      find("verdict-short").textContent = t("{n} to correct", { n: found.length });
      find("preview-stages").replaceChildren();
      faults(found);
    } else {
      verdict("warn", t("No preview"), t("The preview is not available; submitting still works."));
      find("verdict-short").textContent = "";
    }
  }
}

function verdict(look, title, more) {
  const box = find("verdict");
  box.dataset.s = look;
  const use = box.querySelector("use");
  use.setAttribute("href", use.getAttribute("href").replace(/#.*/, `#s-${look}`));
  find("verdict-title").textContent = title;
  find("verdict-text").textContent = more;
}

const coresOf = n => `${num(n)} ${n === 1 ? t("core") : t("cores")}`;
const el = (tag, className, ...content) => { const made = Object.assign(document.createElement(tag), { className }); made.append(...content); return made; };

/** What a forecast rests on: one of three phrases, or how many finished stages were like this one. */
function basisOf(text) {
  const [, n, stage, project] = text.match(/^(\d+) finished stages like (.+) in (.+)$/) || [];
  return n ? t("{n} finished stages like {stage} in {project}", { n, stage, project }) : t(text);
}

function memory(said) {
  const on = said.kind ? `${t("memory of each {kind}", { kind: said.kind })}: ` : "";
  const sizes = { asked: gib(said.asked_bytes), largest: gib(said.largest_bytes), suggested: gib(said.suggested_bytes) };
  return on + t(said.verdict === "tight" ? "{asked} of memory may not do: stages like it needed {largest}; ask {suggested}" : "{suggested} of memory would do: the most that stages like it used is {largest}", sizes);
}

function show(answer) {
  faults([]);
  find("verdict-short").textContent = t("Valid");
  const first = answer.stages[0], when = first?.expected_start;
  const nodes = s => [...new Set(s.devices.map(d => d.node))].join(", ");
  if (answer.verdict === "starts_now") verdict("completed", t("Starts now"), first?.why || nodes(first));
  else if (answer.verdict === "never") verdict("failed", t("Would wait"), first?.reasons[0]?.text || "");
  else verdict("running", when ? t("Starts about {from}", { from: `${clock(when.low_at)}–${clock(when.high_at)}` }) : t("Would wait"), first?.reasons[0]?.text || "");
  find("preview-stages").replaceChildren(...answer.stages.map(s => {
    const rows = [el("h3", "", s.name), el("div", "y-parts", ...Object.entries(s.devices.reduce((all, d) => ({ ...all, [`${d.node} ${d.kind === "cpu" ? "cpu" : d.model}`]: [...(all[`${d.node} ${d.kind === "cpu" ? "cpu" : d.model}`] || []), d] }), {})).map(([where, list]) => {
      const size = list[0].kind === "cpu" ? coresOf(list.reduce((sum, d) => sum + d.milli, 0) / 1000) : list[0].partition ? `${list.length} × ${list[0].partition}` : list.length + (list[0].milli < 1000 ? ` × ${num(list[0].milli / 1000)}` : "");
      return el("span", "y-ask", `${where} · ${size}`);
    }))];
    const needs = (spec.stages || []).find(own => own.name === s.name)?.needs;
    const reason = s.starts_now ? s.why : s.reasons[0]?.code === "DependencyPending" && needs ? t("after {stages}", { stages: [needs].flat().join(", ") }) : s.reasons[0]?.text || "";
    if (reason) rows.push(el("p", "y-3", reason));
    if (s.expected_s?.p50) rows.push(el("p", "y-3", `≈ ${span(s.expected_s.p50)} – ${span(s.expected_s.p90)} · ${basisOf(s.expected_s.basis)}`));
    for (const said of [s.memory, s.device_memory]) if (said) rows.push(el("p", "y-3", memory(said)));
    return el("div", "y-sect", ...rows);
  }));
  const stopped = [...(answer.preempts ?? []), ...(answer.resizes ?? [])].map(p => p.sizes ? `${p.stage}: ${p.sizes.join(" → ")}` : p.stage);
  if (stopped.length) find("preview-stages").append(el("div", "y-sect", el("h3", "", t("Preempts")), ...stopped.map(text => el("p", "y-3", text))));
}

/** Each fault at the field that its pointer names; all of them in a list too. */
function faults(list) {
  for (const said of page.querySelectorAll("[data-err]")) said.textContent = "";
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  for (const { pointer, detail } of list) {
    const parts = (pointer || "").split("/").slice(1);
    const [name, index, leaf] = parts;
    const where = name === "stages" && index !== undefined ? (Number(index) === at && leaf ? `stage.${leaf}` : "stages") : page.querySelector(`[data-err="${CSS.escape(name || "")}"]`) ? name : `stage.${name}`;
    const said = page.querySelector(`[data-err="${CSS.escape(where)}"]`);
    if (!said) continue;
    said.textContent = detail;
    said.closest(".y-field")?.querySelector("input, select, textarea")?.setAttribute("aria-invalid", "true");
  }
  find("faults").hidden = !list.length;
  find("fault-list").replaceChildren(...list.slice(0, 20).map(({ pointer, detail }) => el("li", "", "•", el("span", "t", pointer || "job.yaml"), el("span", "d", detail))));
}

// ---- submit ----
async function submit() {
  const button = document.querySelector("[data-submit]");
  button.disabled = true;
  try {
    const job = await call("/api/v1/jobs", { json: spec, headers: { "Idempotency-Key": key } });
    localStorage.removeItem(PLACE);
    location.href = `/jobs/${job.number}`;
  } catch (error) {
    toast(error.message, "failed");
    if (error.problem?.errors) faults(error.problem.errors);
    button.disabled = false;
  }
}
document.querySelector("[data-submit]").addEventListener("click", submit);
document.addEventListener("keydown", event => (event.ctrlKey || event.metaKey) && event.key === "Enter" && (event.preventDefault(), submit()));

const draft = known.source ? null : JSON.parse(localStorage.getItem(PLACE) || "null");
if (draft?.spec) { spec = draft.spec; document.querySelector("[data-draft]").textContent = t("Draft restored"); }
text.value = draft?.yaml || yaml(spec);
fill();
soon();
