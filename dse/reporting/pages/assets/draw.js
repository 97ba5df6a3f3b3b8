"use strict";
// Elements, numbers, axes and tips that all pages share.

// The data of the page: JSON, compressed by zlib, in base64.
const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
const page = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
const main = document.getElementById("page"), root = document.documentElement;
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const sv = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Numbers

const STEPS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "u"], [1e-9, "n"]];
const digits = (value, count = 3) => {
  // So many significant digits; a number that has fewer is printed with fewer.
  const near = Number(value.toPrecision(count));
  if (Math.abs(near) >= 1000) return near.toLocaleString("en-US");
  return Math.abs(near - value) <= 1e-9 * Math.abs(value) ? String(near) : value.toPrecision(count);
};
function readable(value, unit, count = 3) {
  // A number with its unit, as the terminal prints it.
  const size = Math.abs(value);
  if (unit === "$") {
    const [scale, letter] = [[1e9, "B"], [1e6, "M"], [1e3, "K"]].find(([at]) => size >= at * 0.9995) ?? [1, ""];
    return `${value < 0 ? "-" : ""}$${digits(size / scale, count)}${letter}`;
  }
  if (unit === "s" && size >= 86400) return `${digits(value / 86400, count)} days`;
  if (unit === "s" && size >= 600) return `${digits(value / 60, count)} min`;
  if (unit === "-") return size > 0 && size < 1 ? `${digits(100 * value, count)} %` : digits(value, count);
  if (!size) return `0 ${unit}`.replace(" 1/s", "");
  const [scale, letter] = STEPS.find(([at]) => size >= at * 0.9995 && (unit !== "s" || at <= 1)) ?? STEPS.at(-1);
  return `${digits(value / scale, count)} ${letter}${unit === "1/s" ? "" : unit}`.trim();
}
const percent = (share) => `${Math.abs(share) >= 0.0995 ? (100 * share).toFixed(0) : (100 * share).toFixed(1)} %`;

function scale(values, low, high, { pad = 0.06, log } = {}) {
  // A linear or logarithmic axis that has room for values, from pixel `low` to pixel `high`.
  let [least, most] = [Math.min(...values), Math.max(...values)];
  const isLog = log ?? (least > 0 && most >= 8 * least);
  const turn = isLog ? Math.log10 : (value) => value;
  let [a, b] = [turn(least), turn(most)];
  if (a === b) { const room = Math.abs(a) * 0.05 || 1; a -= room; b += room; }
  const room = (b - a) * pad; a -= room; b += room;
  const at = (value) => low + (turn(value) - a) / (b - a) * (high - low);
  at.inside = (value) => (isLog ? value > 0 : true) && turn(value) >= a - 1e-12 && turn(value) <= b + 1e-12;
  at.log = isLog; at.ends = isLog ? [10 ** a, 10 ** b] : [a, b];
  at.back = (pixel) => { const v = a + (pixel - low) / (high - low) * (b - a); return isLog ? 10 ** v : v; };
  return at;
}
function ticks(axis, count = 5) {
  const [low, high] = axis.ends, found = [];
  if (axis.log) {
    const decades = Math.log10(high / low);
    const steps = decades > count ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of steps) { const value = step * 10 ** power; if (value >= low && value <= high) found.push(value); }
    return found;
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= rough);
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

// Tips: a text beside the pointer.

const tip = el("div", { id: "tip", role: "tooltip", hidden: true });
document.body.append(tip);
function showTip(text, x, y) {
  tip.textContent = text; tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 16}px`;
}
const hideTip = () => { tip.hidden = true; };
const tipped = (text) => ({ onpointermove: (event) => showTip(typeof text === "function" ? text() : text, event.clientX, event.clientY), onpointerleave: hideTip });

// Parts: a class, a custom property and a pattern of each.

const part = (name) => {
  const key = name.replace(/ (communication|states?)$/, "").replace(/ /g, "-");
  const known = getComputedStyle(root).getPropertyValue(`--${key}`);
  return { class: key === "bubble" ? "part hatched" : "part", style: known ? `--c: var(--${key});` : "" };
};

// Clipboard, files, tables, schemes.

function copied(button, text) {
  const said = button.textContent, done = (word) => { button.textContent = word; setTimeout(() => { button.textContent = said; }, 1600); };
  const plain = () => {
    const area = el("textarea", { style: "position:fixed;opacity:0" }); area.value = text; document.body.append(area); area.select();
    const worked = document.execCommand("copy"); area.remove(); done(worked ? "Copied" : "Select the text and copy it");
  };
  if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(() => done("Copied"), plain); else plain();
}
const copyButton = (label, text, kind = "") => el("button", { class: kind, type: "button", onclick: (event) => copied(event.currentTarget, typeof text === "function" ? text() : text) }, label);
const command = (text) => el("span", { class: "row", style: "margin:.15rem 0;flex-wrap:nowrap" }, el("code", {}, text), copyButton("Copy", text));

function fitting(grid, box, order) {
  // Hide the columns of `order`, one after the other, until a table fits its box; a button shows all of them.
  let every = false, width = 0;
  const button = el("button", { type: "button", class: "more", hidden: true, onclick: () => { every = !every; fit(); } });
  const hide = (at, hidden) => { for (const row of grid.rows) if (row.cells[at]) row.cells[at].hidden = hidden; };
  const fit = () => {
    order.forEach((at) => hide(at, false));
    box.classList.toggle("wide", every);
    const widths = order.map((at) => grid.rows[0].cells[at].offsetWidth);
    let hidden = 0, wide = grid.scrollWidth;
    while (!every && hidden < order.length && wide > box.clientWidth) wide -= widths[hidden++];
    order.slice(0, hidden).forEach((at) => hide(at, true));
    while (!every && hidden < order.length && grid.scrollWidth > box.clientWidth) hide(order[hidden++], true);
    button.hidden = !every && !hidden; button.textContent = every ? "Only columns that fit" : `${hidden} more column${hidden === 1 ? "" : "s"}`;
  };
  button.fit = fit;
  new ResizeObserver(() => { if (box.clientWidth && box.clientWidth !== width) { width = box.clientWidth; fit(); } }).observe(box);
  return button;
}
function table({ head, rows, left = [0] }, { wrap = true, caption } = {}) {
  const side = (at) => (at === 0 || left.includes(at) ? "left" : undefined);
  const cell = (text, at) => el("td", { class: [side(at), wrap && at === 0 && String(text).trim().length > 18 ? "wrap" : ""].filter(Boolean).join(" ") || undefined }, text);
  const grid = el("table", {}, caption ? el("caption", { class: "skip" }, caption) : null,
    el("thead", {}, el("tr", {}, head.map((text, at) => el("th", { scope: "col", class: side(at) }, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))));
  const box = el("div", {}, grid);
  return el("div", {}, box, fitting(grid, box, head.map((_, at) => at).slice(2).reverse()));
}
function schemeButton() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.scheme ? root.dataset.scheme === "dark" : system.matches);
  const button = el("button", { type: "button", id: "scheme", onclick: () => { root.dataset.scheme = dark() ? "light" : "dark"; show(); } });
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; };
  system.addEventListener("change", show); show();
  return button;
}
function drawn(node, draw) {
  // Draw a figure for the width that it has, again when that changes.
  let width = 0;
  new ResizeObserver(() => {
    if (!node.clientWidth || Math.abs(node.clientWidth - width) < 1) return;
    width = node.clientWidth; node.replaceChildren(draw(width));
  }).observe(node);
  return node;
}
const folded = (title, about, body, open = false) => {
  const box = el("details", { class: "block", open }, el("summary", {}, title));
  const show = () => { if (box.open && box.childNodes.length === 1) box.append(about ? el("p", { class: "dim narrow" }, about) : "", ...[body()].flat(9).filter(Boolean)); };
  box.addEventListener("toggle", show); show();
  return box;
};
