// The form of a new simulation: it shows what belongs to the chosen trace, reads a file as text, and asks the API.
import { call } from "./page.js";
import { t } from "./text.js";

const form = document.querySelector("[data-simulate]");
const LARGEST = 15 * 2 ** 20;

function choose() {
  for (const part of form.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== form.elements.source.value;
}

const numbers = text => text.split(",").map(part => part.trim()).filter(Boolean).map(Number);

async function trace(fields) {
  const source = fields.get("source");
  if (source === "history") return { history: { days: Number(fields.get("days")) } };
  if (source === "queue") return { queue: {} };
  if (source === "generate") {
    return { generate: { jobs: Number(fields.get("jobs")), per_hour: Number(fields.get("per_hour")), median_s: Number(fields.get("median_s")), seed: Number(fields.get("trace_seed")) } };
  }
  const file = fields.get("file");
  if (!file?.size) throw new Error(t("Choose a file first."));
  if (file.size > LARGEST) throw new Error(t("The file is larger than 15 MiB."));
  return { text: await file.text(), ...(file.name.endsWith(".swf") ? { format: "swf" } : {}) };
}

async function simulate(event) {
  event.preventDefault();
  const fields = new FormData(form), said = form.querySelector("[data-said]"), button = form.querySelector("[type=submit]");
  said.textContent = "";
  button.disabled = true;
  try {
    const begun = await call("/api/v1/simulations", {
      json: {
        name: fields.get("name") || "simulation", trace: await trace(fields), profiles: fields.getAll("profiles"), loads: numbers(fields.get("loads")), seeds: numbers(fields.get("seeds")),
        world: { nodes: fields.get("nodes"), error: Number(fields.get("error")), mtbf_h: Number(fields.get("mtbf_h")) },
      },
    });
    location.href = `/simulations/${begun.id}`;
  } catch (error) {
    said.textContent = error.message;
    button.disabled = false;
  }
}

form.addEventListener("change", choose);
form.addEventListener("submit", simulate);
choose();
