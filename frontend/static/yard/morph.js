// Turns one piece of the page into another while whatever the reader holds stays: focus, open details, charts, logs.
const OWN = new Set(["open", "data-view", "aria-pressed"]);
const key = node => (node.nodeType === 1 ? node.id || node.dataset.key || "" : "");

function attributes(from, to) {
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name) && !OWN.has(name)) from.removeAttribute(name);
  for (const { name, value } of to.attributes) if (!OWN.has(name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
}

function children(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (key(child)) keyed.set(key(child), child);
  let at = from.firstChild;
  for (const want of [...to.childNodes]) {
    const known = key(want) && keyed.get(key(want));
    if (known && known !== at) from.insertBefore(known, at);
    const have = known || at;
    if (have && have.nodeType === want.nodeType && have.nodeName === want.nodeName && key(have) === key(want)) {
      if (have === at) at = at.nextSibling;
      morph(have, want);
    } else {
      from.insertBefore(want, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Makes `from` like `to`, in place. An element marked data-keep is left alone. */
export function morph(from, to) {
  if (from.nodeType !== 1) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  if (from === document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(from.nodeName)) return;
  if (from.hasAttribute("data-keep")) return;
  attributes(from, to);
  children(from, to);
}
