// Before the first paint: the theme that this browser's user chose, or the system's. Loaded as a blocking classic script.
(() => {
  const root = document.documentElement;
  const chosen = new URLSearchParams(location.search).get("theme") || localStorage.getItem("yard.theme") || root.dataset.theme;
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  else delete root.dataset.theme;
})();
