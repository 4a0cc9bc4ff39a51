// What would let a stage start: loaded after the page, and within something that opens only once it is open.
import { onRefresh } from "./page.js";

/** Each answer is a plan that the server makes: asked for once the page stands, and again while it is looked at. */
const TRY_AGAIN = 30_000;
const tried = new WeakMap();
async function otherwise() {
  for (const place of document.querySelectorAll("[data-otherwise]")) {
    if (document.hidden || place.closest("details:not([open])") || Date.now() - (tried.get(place) || 0) < TRY_AGAIN) continue;
    tried.set(place, Date.now());
    try {
      const answer = await fetch(place.dataset.otherwise, { headers: { Accept: "text/html" } });
      if (answer.ok) place.innerHTML = await answer.text();
    } catch { /* the reasons above stand without it; it is asked again */ }
  }
}
otherwise();
onRefresh(otherwise);
document.addEventListener("toggle", otherwise, true);
