"use strict";
// Draws the figures of a report, and keeps the table of the front, the figures and the filters together.

const page = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const narrow = () => root.clientWidth < 640;

// Light and dark.

const system = matchMedia("(prefers-color-scheme: dark)");
const scheme = () => root.dataset.scheme || (system.matches ? "dark" : "light");

function showScheme() {
  document.getElementById("scheme").textContent = scheme() === "dark" ? "Light" : "Dark";
  for (const plot of document.querySelectorAll(".js-plotly-plot"))
    Plotly.relayout(plot, { template: page.looks[scheme()] });
}

document.getElementById("scheme").addEventListener("click", () => {
  root.dataset.scheme = scheme() === "dark" ? "light" : "dark";
  showScheme();
});
system.addEventListener("change", showScheme);

// Figures.

const CONFIG = { responsive: true, displaylogo: false,
  toImageButtonOptions: { format: "svg" },
  modeBarButtonsToRemove: ["sendChartToCloud", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"] };

function draw(plot) {
  const { data, layout } = page.figures[plot.dataset.figure];
  const own = { ...layout, template: page.looks[scheme()] };
  if (narrow()) own.height = layout.height + Number(plot.dataset.taller || 0);
  return Plotly.newPlot(plot, data, own, { ...CONFIG, displayModeBar: narrow() ? false : "hover" });
}

// A design of several: its figures are drawn when it is chosen.

function choose(group, name) {
  for (const button of group.querySelectorAll(".tools button"))
    button.setAttribute("aria-pressed", String(button.dataset.name === name));
  for (const part of group.querySelectorAll(".part")) {
    part.hidden = part.dataset.name !== name;
    if (!part.hidden)
      for (const plot of part.querySelectorAll(".plot:not(.js-plotly-plot)")) draw(plot);
  }
}

for (const group of document.querySelectorAll(".group"))
  for (const button of group.querySelectorAll(".tools button"))
    button.addEventListener("click", () => choose(group, button.dataset.name));

// The front: rows that the filters of the table keep, of those that are marked in figures.

const body = document.querySelector(".front tbody");
const rows = body ? [...body.rows] : [];
const filters = [...document.querySelectorAll(".front input")];
const PREFIXES = { p: 1e-12, n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
const NUMBER = /^(<=|>=|<|>|=)?\s*(\$?)\s*(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([pnumkKMGTPE](?=i?[A-Za-z]*$))?(i?)([A-Za-z/%]*)$/;
let marked = null; // rows marked in a figure, or null where none are

function condition(text) {
  // "<20", ">= 40 GB", "8", "full": a test of a cell, or null where no number follows a sign.
  const wanted = text.trim();
  if (!wanted) return () => true;
  const found = NUMBER.exec(wanted);
  if (!found)
    return /^[<>=]/.test(wanted) ? null : (cell) => cell.textContent.toLowerCase().includes(wanted.toLowerCase());
  const [, sign, dollars, digits, prefix, binary, unit] = found;
  let factor = prefix ? PREFIXES[prefix] : 1;
  if (binary) factor = 1024 ** "KMGTPE".indexOf(prefix) * 1024;
  if (unit === "%") factor = 0.01;
  if (dollars && unit === "B") factor = 1e9;
  const number = Number(digits) * factor;
  const equal = (v) => (Number.isInteger(v) && v < 1000 ? v === number : Math.abs(v - number) <= 5e-3 * Math.abs(number));
  const tests = { "<": (v) => v < number, "<=": (v) => v <= number, ">": (v) => v > number, ">=": (v) => v >= number };
  const test = tests[sign] || equal;
  return (cell) => cell.dataset.value !== undefined && test(Number(cell.dataset.value));
}

function kept() {
  // Row numbers that pass every filter, and are marked where some are.
  const tests = filters.map((input) => condition(input.value));
  filters.forEach((input, place) => input.setAttribute("aria-invalid", String(tests[place] === null)));
  return rows.filter((row) => (marked === null || marked.has(Number(row.dataset.row)))
      && tests.every((test, place) => test === null || test(row.cells[place])))
    .map((row) => Number(row.dataset.row));
}

function show() {
  const shown = new Set(kept());
  for (const row of rows) row.hidden = !shown.has(Number(row.dataset.row));
  document.getElementById("shown").textContent = `${shown.size} of ${rows.length}`;
  const all = shown.size === rows.length;
  for (const plot of document.querySelectorAll(".pairs .js-plotly-plot")) {
    const place = plot.data.findIndex((trace) => trace.customdata);
    const points = plot.data[place].customdata.flatMap((row, point) => (shown.has(row) ? [point] : []));
    Plotly.restyle(plot, { selectedpoints: [all ? null : points] }, [place]);
  }
}

function mark(found) {
  marked = found;
  show();
}

function clear() {
  for (const input of filters) input.value = "";
  for (const plot of document.querySelectorAll(".pairs .js-plotly-plot")) Plotly.relayout(plot, { selections: [] });
  const lines = document.querySelector("[data-figure=parallel].js-plotly-plot");
  if (lines) {
    const open = Object.fromEntries(lines.data[0].dimensions.map((_, n) => [`dimensions[${n}].constraintrange`, null]));
    Plotly.restyle(lines, open, [0]);
  }
  mark(null);
}

function sort(column, heading) {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => (isNaN(key(a)) || isNaN(key(b)) ? key(a).localeCompare(key(b)) : key(a) - key(b));
  rows.sort((a, b) => (up ? order(a, b) : order(b, a)));
  body.append(...rows);
}

function point(row) {
  // Say of a row of the table where it is in the figures.
  for (const plot of document.querySelectorAll(".pairs .js-plotly-plot")) {
    const curve = plot.data.findIndex((trace) => trace.customdata);
    const found = row === null ? -1 : plot.data[curve].customdata.indexOf(row);
    if (found < 0) Plotly.Fx.unhover(plot);
    else Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: found }]);
  }
}

function linked(plot) {
  plot.on("plotly_selected", (event) => {
    if (!event) return;
    mark(new Set(event.points.filter((p) => p.customdata !== undefined).map((p) => p.customdata)));
  });
  plot.on("plotly_deselect", () => mark(null));
  plot.on("plotly_click", (event) => {
    const chosen = event.points.find((p) => p.customdata !== undefined);
    if (!chosen) return;
    for (const row of rows) row.classList.toggle("chosen", Number(row.dataset.row) === chosen.customdata);
    const box = document.querySelector(".front");
    const row = rows.find((one) => one.classList.contains("chosen"));
    box.scrollTop = row.offsetTop - box.clientHeight / 2;
  });
}

function within(dimension, value) {
  // Whether a line passes what is marked on one coordinate.
  const range = dimension.constraintrange;
  if (!range) return true;
  const ranges = Array.isArray(range[0]) ? range : [range];
  return ranges.some(([low, high]) => value >= low && value <= high);
}

function brushed(lines) {
  // The first lines of the parallel coordinates are the front, in the order of the table.
  lines.on("plotly_restyle", () => {
    const { dimensions } = lines.data[0];
    if (!dimensions.some((dimension) => dimension.constraintrange)) return mark(null);
    const found = page.rows.filter((row) => dimensions.every((one) => within(one, one.values[row])));
    return mark(new Set(found));
  });
}

async function start() {
  showScheme();
  for (const plot of document.querySelectorAll(".plot"))
    if (!plot.closest(".part")) await draw(plot);
  for (const group of document.querySelectorAll(".group")) choose(group, group.querySelector(".part").dataset.name);
  for (const plot of document.querySelectorAll(".pairs .js-plotly-plot")) linked(plot);
  const lines = document.querySelector("[data-figure=parallel].js-plotly-plot");
  if (lines) brushed(lines);
  for (const input of filters) input.addEventListener("input", show);
  const headings = [...document.querySelectorAll(".front thead tr:first-child th")];
  headings.forEach((heading, place) => heading.firstElementChild.addEventListener("click", () => sort(place, heading)));
  for (const row of rows) {
    row.addEventListener("mouseenter", () => point(Number(row.dataset.row)));
    row.addEventListener("mouseleave", () => point(null));
  }
  document.getElementById("clear")?.addEventListener("click", clear);
  if (rows.length) show();
  root.dataset.ready = "true";
}

start();
