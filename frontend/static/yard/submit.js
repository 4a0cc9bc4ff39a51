// A new job as form and file. The file's text is the job: it is what the preview judges and what is submitted, to the
// letter. The form is a view of what the text says; it writes the text anew, and rests while the text cannot be read.
import { call, toast } from "./page.js";
import { clock, gib, num, span, t, tn } from "./text.js";
import { flow, yaml } from "./yaml.js";

const known = JSON.parse(document.getElementById("submit-known").textContent);
const page = document.querySelector("[data-submit-page]"), form = page.querySelector("[data-form]"), text = page.querySelector("[data-yaml]");
const find = name => page.querySelector(`[data-${name}]`);
// What is kept for a reload never holds the value of a secret: the server says what of the file may be kept.
const PLACE = "yard.masked-draft";
let spec = known.spec, at = 0, key = crypto.randomUUID(), asked = null, wait = 0;

// ---- form <-> object ----
const stage = () => (spec.stages?.length ? spec.stages[at] : spec);
// A stage has the keys of the whole job that it does not give itself; a command of its own replaces either form of the job's.
const isOwn = (one, name) => one === spec || (one[name] ?? undefined) !== undefined || (["run", "command"].includes(name) && (one.run ?? one.command) !== undefined);
const effective = (one, name) => (isOwn(one, name) || !known.inherited.includes(name) ? one[name] : spec[name]);
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
    const name = input.dataset.stagePath, argv = effective(one, "command");
    const value = name === "run" && Array.isArray(argv) ? argv.join(" ") : effective(one, name);
    set(input, Array.isArray(value) ? value.join(", ") : value, !isOwn(one, name));
    if (name === "run") input.disabled = Array.isArray(argv);
  }
  const devices = effective(one, "devices"), chosen = device(devices), given = !isOwn(one, "devices");
  set(find("device"), chosen, given);
  set(find("device-count"), chosen === "custom" ? "" : devices?.count, given);
  set(find("device-milli"), chosen === "custom" ? "" : devices?.milli, given);
  find("device-count").disabled = find("device-milli").disabled = chosen === "custom" || chosen === "" || chosen === "cpu";
  set(find("retry"), effective(one, "retry")?.max, !isOwn(one, "retry"));
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

function set(input, value, given = false) {
  const told = given && value !== undefined && value !== "" ? t("given by the whole job") : "";
  input.classList.toggle("given", Boolean(told));
  input.title = told;
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
  fill();
  readSoon();
  soon();
}

// While the text is being read, or cannot be, the form rests: it would write over what it has not seen.
let reading = 0;
text.addEventListener("input", () => {
  form.inert = true;
  soon();
  readSoon();
});
function readSoon() { clearTimeout(reading); reading = setTimeout(follow, 300); }

/** Reads the text and shows it in the form, or says why it cannot be read. */
async function follow() {
  const sent = text.value;
  let answer = null, fault = "";
  try {
    answer = await call("/jobs/new/parse", { yaml: sent });
  } catch (error) {
    fault = error.message;
  }
  if (sent !== text.value) return;
  find("yaml-err").textContent = fault;
  find("unread").hidden = !fault;
  text.setAttribute("aria-invalid", Boolean(fault));
  form.inert = Boolean(fault);
  if (!answer) return;
  if (yaml(answer.spec) !== yaml(spec)) { spec = answer.spec; fill(); }
  keep(answer.draft);
}
find("copy-yaml").addEventListener("click", () => navigator.clipboard?.writeText(text.value).then(() => toast(t("Copied"))));

/** Keeps what may be kept: the text as it is, or without comments and values where a secret stands in it. */
function keep(masked) {
  const kept = masked || TELLING.test(comments(text.value)) ? yaml(masked || spec) : text.value;
  try { localStorage.setItem(PLACE, JSON.stringify({ yaml: kept })); } catch { /* a draft that cannot be kept is no loss of work that was submitted */ }
}
// A line that was commented out may hold what it held before.
const TELLING = /secret|token|passw|passphrase|credential|key/i;
const comments = content => content.split("\n").map(line => line.match(/(?:^|\s)#(.*)/)?.[1] || "").join("\n");

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
    show(await call("/api/v1/jobs?dry_run=placement", { yaml: text.value, signal: asked.signal }));
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

/** How long a stage runs: about half of such within the first, nine of ten within the second; or why that is unknown. */
function runTime({ p50, p90, basis, held, seen }) {
  const hits = seen ? `; ${t("in this pool {held} of {seen} ended within it", { held, seen })}` : "";
  return p50 ? `${t("about {half}, nine of ten within {most}", { half: span(p50), most: span(p90) })} · ${basis}${hits}` : basis;
}

function memory(said) {
  const on = said.kind ? `${t("memory of each {kind}", { kind: said.kind })}: ` : "";
  const sizes = { asked: gib(said.asked_bytes), largest: gib(said.largest_bytes), suggested: gib(said.suggested_bytes) };
  return on + t(said.verdict === "tight" ? "{asked} of memory may not do: stages like it needed {largest}; ask {suggested}" : "{suggested} of memory would do: the most that stages like it used is {largest}", sizes);
}

function show(answer) {
  faults(answer.refused);
  find("verdict-short").textContent = answer.refused.length ? t("{n} to correct", { n: answer.refused.length }) : t("Valid");
  const first = answer.stages[0], when = first?.expected_start;
  const nodes = s => [...new Set(s.devices.map(d => d.node))].join(", ");
  if (answer.verdict === "starts_now") verdict("completed", t("Starts now"), first?.why || nodes(first));
  else if (answer.verdict === "never") verdict("failed", answer.refused.length ? t("Would be refused") : t("Could never start"), answer.stages.flatMap(s => s.reasons)[0]?.text || "");
  else verdict("running", when ? t("Starts about {from}", { from: `${clock(when.low_at)}–${clock(when.high_at)}` }) : t("Would wait"), first?.reasons[0]?.text || "");
  find("preview-stages").replaceChildren(...answer.stages.map(s => {
    const rows = [el("h3", "", s.name), el("div", "y-parts", ...Object.entries(s.devices.reduce((all, d) => ({ ...all, [`${d.node} ${d.kind === "cpu" ? "cpu" : d.model}`]: [...(all[`${d.node} ${d.kind === "cpu" ? "cpu" : d.model}`] || []), d] }), {})).map(([where, list]) => {
      const size = list[0].kind === "cpu" ? coresOf(list.reduce((sum, d) => sum + d.milli, 0) / 1000) : list[0].partition ? `${list.length} × ${list[0].partition}` : list.length + (list[0].milli < 1000 ? ` × ${num(list[0].milli / 1000)}` : "");
      return el("span", "y-ask", `${where} · ${size}`);
    }))];
    const needs = (spec.stages || []).find(own => own.name === s.name)?.needs;
    const reason = s.starts_now ? s.why : s.reasons[0]?.code === "DependencyPending" && needs ? t("after {stages}", { stages: [needs].flat().join(", ") }) : s.reasons[0]?.text || "";
    if (reason) rows.push(el("p", "y-3", reason));
    if (s.expected_s) rows.push(el("p", "y-3", runTime(s.expected_s)));
    if (s.expected_start?.seen) rows.push(el("p", "y-3", tn(s.expected_start.seen, "in this pool {held} of {n} such start held", "in this pool {held} of {n} such starts held", { held: s.expected_start.held })));
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
  if (button.disabled) return;
  button.disabled = true;
  try {
    const job = await call("/api/v1/jobs", { yaml: text.value, headers: { "Idempotency-Key": key } });
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

localStorage.removeItem("yard.draft"); // of an earlier release, as it was typed
const draft = known.source ? null : JSON.parse(localStorage.getItem(PLACE) || "null");
text.value = draft?.yaml || yaml(spec);
text.readOnly = false; // what is typed before this line would be written over
fill();
soon();
if (draft?.yaml) { document.querySelector("[data-draft]").textContent = t("Draft restored"); form.inert = true; follow(); }
