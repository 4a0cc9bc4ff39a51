// What of Plotly the pages draw with: lines and marks, which its core has, bars, and maps of cells. script/vendor bundles it.
"use strict";
const Plotly = require("plotly.js/lib/core");

Plotly.register([require("plotly.js/lib/bar"), require("plotly.js/lib/heatmap")]);
module.exports = Plotly;
