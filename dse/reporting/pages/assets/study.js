"use strict";
// Keeps the table of the front, the figures and the filters of a report together.

// Light and dark.

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.scheme ? root.dataset.scheme === "dark" : system.matches);
const toggle = document.getElementById("scheme");
const showScheme = () => { toggle.textContent = dark() ? "Light" : "Dark"; };

toggle.addEventListener("click", () => {
  root.dataset.scheme = dark() ? "light" : "dark";
  showScheme();
});
system.addEventListener("change", showScheme);
showScheme();

// A design of several: its figures are drawn when it is chosen.

function choose(group, name) {
  for (const button of group.querySelectorAll(".tools button"))
    button.setAttribute("aria-pressed", String(button.dataset.name === name));
  for (const part of group.querySelectorAll(".part")) {
    part.hidden = part.dataset.name !== name;
    if (!part.hidden && root.dataset.ready)
      for (const place of part.querySelectorAll(".plot")) if (!place.view) draw(place);
  }
}

for (const group of document.querySelectorAll(".group")) {
  for (const button of group.querySelectorAll(".tools button"))
    button.addEventListener("click", () => choose(group, button.dataset.name));
  choose(group, group.querySelector(".part").dataset.name);
}

// The front: rows that the filters of the table keep, of those that are marked in figures.

const body = document.querySelector(".front tbody");
const rows = body ? [...body.rows] : [];
const filters = [...document.querySelectorAll(".front input")];
const PREFIXES = { p: 1e-12, n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
const NUMBER = /^(<=|>=|<|>|=)?\s*(\$?)\s*(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([pnumkKMGTPE](?=i?[A-Za-z]*$))?(i?)([A-Za-z/%]*)$/;
const marked = new Map(); // figure -> rows within the box that is drawn in it

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
  // Row numbers that pass every filter, and are within every box.
  const tests = filters.map((input) => condition(input.value));
  filters.forEach((input, place) => input.setAttribute("aria-invalid", String(tests[place] === null)));
  return rows.filter((row) => [...marked.values()].every((one) => one.has(Number(row.dataset.row)))
      && tests.every((test, place) => test === null || test(row.cells[place])))
    .map((row) => Number(row.dataset.row));
}

function figures(signal) {
  // Figures that follow the table.
  const listening = (place) => place.view && page.figures[place.dataset.figure].params?.some((one) => one.name === signal);
  return [...document.querySelectorAll(".plot")].filter(listening);
}

function show() {
  const shown = kept();
  for (const row of rows) row.hidden = !shown.includes(Number(row.dataset.row));
  document.getElementById("shown").textContent = `${shown.length} of ${rows.length}`;
  for (const place of figures("kept")) place.view.signal("kept", shown.length === rows.length ? null : shown).runAsync();
}

async function clear() {
  for (const input of filters) input.value = "";
  const boxed = [...marked.keys()];
  marked.clear();
  for (const place of boxed) await draw(place);
  show();
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
  for (const place of figures("pointed")) place.view.signal("pointed", row).runAsync();
}

function within(box, one) {
  // Whether a row of a figure's data is in the box that is drawn over the figure.
  const between = (value, [a, b]) => Number(value) >= Math.min(a, b) && Number(value) <= Math.max(a, b);
  if (box.coordinate) return !box.coordinate.includes(one.coordinate) || between(one.at, box.at);
  return Object.entries(box).every(([field, range]) => between(one[field], range));
}

document.addEventListener("drawn", ({ target: place }) => {
  const box = page.figures[place.dataset.figure].params?.find((one) => /^(brush|box)/.test(one.name));
  if (!box) return;
  place.view.addSignalListener(box.name, (_, drawn) => {
    const outside = new Set(place.rows.filter((one) => !within(drawn, one)).map((one) => one.row));
    if (Object.keys(drawn).length) marked.set(place, new Set([...rows.keys()].filter((row) => !outside.has(row))));
    else marked.delete(place);
    show();
  });
  place.view.addEventListener("click", (_, item) => {
    if (!place.closest(".pairs") || item?.datum?.row === undefined) return;
    for (const row of rows) row.classList.toggle("chosen", Number(row.dataset.row) === item.datum.row);
    const table = document.querySelector(".front");
    table.scrollTop = table.querySelector(".chosen").offsetTop - table.clientHeight / 2;
  });
  if (rows.length && root.dataset.ready) show();
});

for (const input of filters) input.addEventListener("input", show);
const headings = [...document.querySelectorAll(".front thead tr:first-child th")];
headings.forEach((heading, place) => heading.firstElementChild.addEventListener("click", () => sort(place, heading)));
for (const row of rows) {
  row.addEventListener("mouseenter", () => point(Number(row.dataset.row)));
  row.addEventListener("mouseleave", () => point(null));
}
document.getElementById("clear")?.addEventListener("click", clear);
if (rows.length) show();
