// The form of a schedule: while the line and the zone are typed, the server tells the next times or what is wrong.
const form = document.querySelector("[data-schedule]");
let wait = 0, turn = 0;

async function look() {
  const mine = ++turn, fields = form.elements, place = form.querySelector("[data-times]");
  if (!fields.cron.value.trim()) return;
  const answer = await fetch(`/schedules/times?${new URLSearchParams({ cron: fields.cron.value.trim(), zone: fields.zone.value.trim() })}`);
  if (mine !== turn || !answer.ok) return;
  const { times, field, fault } = await answer.json();
  place.textContent = times.length ? `${place.dataset.title} ${times.join(" · ")}` : "";
  for (const name of ["cron", "zone"]) {
    form.querySelector(`#f-${name}`).textContent = field === name ? fault : "";
    fields[name].toggleAttribute("aria-invalid", false);
    if (field === name) fields[name].setAttribute("aria-invalid", "true");
  }
}

if (form) {
  for (const name of ["cron", "zone"]) {
    form.elements[name].addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(look, 300); });
  }
  look();
}
