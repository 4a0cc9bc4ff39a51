// Runs before anything is drawn, so that a page does not flash in the other theme.
document.body.dataset.theme = localStorage.getItem("theme") || "auto";
