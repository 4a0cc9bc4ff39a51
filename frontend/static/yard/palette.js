// The command palette: Ctrl-K or / asks /search, and the arrows choose among what it found and what this page can do.
import { num, t, tn } from "./text.js";

const palette = document.getElementById("yard-palette"), field = palette.querySelector("input");
const list = document.getElementById("yard-found"), said = palette.querySelector("[role=status]");
const PAUSE = 120;
let due = 0, asked = null, shownFor = null;

const options = () => [...list.querySelectorAll("[role=option]")];
const chosen = () => list.querySelector("[aria-selected=true]");

function choose(option) {
  chosen()?.setAttribute("aria-selected", "false");
  option?.setAttribute("aria-selected", "true");
  option?.scrollIntoView({ block: "nearest" });
  option ? field.setAttribute("aria-activedescendant", option.id) : field.removeAttribute("aria-activedescendant");
}

/** The buttons at the head of this page that open a dialog, as options that press them. */
function here(words) {
  const buttons = [...document.querySelectorAll(".y-head [data-dialog]:not([disabled], [aria-disabled=true])")];
  const found = buttons.filter(button => button.offsetParent && button.textContent.toLowerCase().includes(words));
  if (!found.length) return;
  const group = document.createElement("div"), title = t("On this page");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", title);
  group.append(Object.assign(document.createElement("p"), { className: "y-cap", textContent: title, ariaHidden: "true" }));
  found.forEach((button, at) => {
    const option = Object.assign(document.createElement("div"), { className: "y-option", id: `found-here-${at}`, role: "option", ariaSelected: "false", textContent: button.textContent.trim() });
    option.addEventListener("click", () => (palette.close(), button.click()));
    group.append(option);
  });
  list.prepend(group);
}

async function search() {
  asked?.abort();
  asked = new AbortController();
  const words = field.value.trim();
  try {
    const answer = await fetch(`/search?q=${encodeURIComponent(words)}`, { headers: { "X-Yard-Part": "palette" }, cache: "no-store", signal: asked.signal });
    if (answer.redirected || answer.status === 401) return location.reload();
    if (!answer.ok) throw new Error(answer.status);
    list.replaceChildren(...new DOMParser().parseFromString(await answer.text(), "text/html").body.children);
    here(words.toLowerCase());
    shownFor = words;
    const count = options().length;
    said.textContent = tn(count, "{n} result", "{n} results");
    choose(options()[0]);
  } catch (error) {
    if (error.name === "AbortError") return;
    list.replaceChildren();
    shownFor = null;
    choose(null);
    said.textContent = t("The search did not answer; try again.");
  }
}

/** Take the chosen option: of what is found for the words that stand in the field, not of what was found before. */
async function enter() {
  const words = field.value.trim();
  if (words !== shownFor) {
    clearTimeout(due);
    await search();
  }
  if (palette.open && words === shownFor && words === field.value.trim()) chosen()?.click();
}

function open() {
  if (palette.open) return;
  palette.showModal();
  field.select();
  search();
}

field.addEventListener("input", () => {
  clearTimeout(due);
  due = setTimeout(search, PAUSE);
});
field.addEventListener("keydown", event => {
  if (event.isComposing) return; // the input method of Chinese has the keys
  const all = options(), at = all.indexOf(chosen());
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    choose(event.key.startsWith("Arrow") ? all.at(to % all.length) : all[Math.max(0, Math.min(all.length - 1, to))]);
  } else if (event.key === "Enter") {
    event.preventDefault();
    enter();
  }
});
list.addEventListener("pointermove", event => choose(event.target.closest("[role=option]") ?? chosen()));
// A link to a dialog of the page that is shown does not load it anew.
list.addEventListener("click", event => {
  const to = event.target.closest("a");
  if (!to || event.ctrlKey || event.metaKey || event.button) return;
  if (to.pathname + to.search !== location.pathname + location.search || !to.hash) return;
  event.preventDefault();
  palette.close();
  (document.querySelector(`[data-dialog="${to.hash.slice(1)}"]`) ?? document.querySelector(to.hash))?.[to.hash.startsWith("#ask-") ? "click" : "scrollIntoView"]();
});
palette.addEventListener("click", event => event.target === palette && palette.close()); // beside it
document.addEventListener("click", event => {
  if (event.ctrlKey || event.metaKey || !event.target.closest("[data-palette]")) return;
  event.preventDefault();
  open();
});
document.addEventListener("keydown", event => {
  const isCommand = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
  // A single key is a letter in a field, and the log's own where it has the focus.
  const isSlash = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select, [contenteditable], [data-keys]");
  if (!(isCommand || isSlash) || (document.querySelector("dialog[open]") && !palette.open)) return;
  event.preventDefault();
  open();
});
