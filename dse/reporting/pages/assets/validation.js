"use strict";
// Predictions and measurements: the error of every row on a logarithmic axis, one line for each data set.

const BANDS = [0.1, 0.25], MARKS = [0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2];
const median = (values) => { const own = [...values].sort((a, b) => a - b), at = own.length / 2; return own.length % 2 ? own[Math.floor(at)] : (own[at - 1] + own[at]) / 2; };
const signed = (ratio) => { const text = (100 * (ratio - 1)).toFixed(Math.abs(ratio - 1) < 0.0995 ? 1 : 0); return `${ratio > 1 ? "+" : ""}${text} %`; };

function linked(text) {
  // A source with links to papers, repositories and pages that it names.
  const found = [], named = /(https?:\/\/[^\s,;)]+)|arXiv[ :](\d{4}\.\d{4,5})|\b([A-Za-z0-9-]+\/[A-Za-z0-9._-]*[A-Za-z0-9])(?=,? (?:benchmark|release|validation|examples|README|at |repository|tests|docs|simumax))/g;
  let last = 0;
  for (const match of text.matchAll(named)) {
    found.push(text.slice(last, match.index), el("a", { href: match[1] ?? (match[2] ? `https://arxiv.org/abs/${match[2]}` : `https://github.com/${match[3]}`) }, match[0]));
    last = match.index + match[0].length;
  }
  return [...found, text.slice(last)];
}
function strips({ what, series }) {
  const ratios = Object.values(series).flat().map(([, ratio]) => ratio).filter((ratio) => ratio > 0);
  const ends = [Math.min(0.7, Math.max(0.2, Math.min(...ratios))), Math.max(1.4, Math.min(5, Math.max(...ratios)))];
  const at = (width) => scale(ends, 6, width - 6, { pad: 0.03, log: true });
  const line = (points, name) => drawn(el("div", {}), (width) => {
    const x = at(width), high = 26;
    const bands = [...BANDS].reverse().map((band, n) => sv("rect", { class: "band", x: x(1 / (1 + band)), width: x(1 + band) - x(1 / (1 + band)), y: 0, height: high, opacity: n ? 1 : 0.75 }));
    return sv("svg", { width, height: high, viewBox: `0 0 ${width} ${high}`, role: "img", "aria-label": `${name}: ${points.length} errors` }, bands, [-0.25, -0.1, 0.1, 0.25].map((band) => { const at = x(band > 0 ? 1 + band : 1 / (1 - band)); return sv("line", { class: "edge", x1: at, x2: at, y1: 0, y2: high }); }), sv("line", { class: "base", x1: x(1), x2: x(1), y1: 0, y2: high }),
      points.map(([, ratio, about], n) => sv("circle", { class: "dot", cx: Math.max(4, Math.min(width - 4, x(Math.max(ratio, 1e-9)))).toFixed(1), cy: (7 + (n * 7) % 13).toFixed(1), r: 3.2, ...tipped(about) })));
  });
  const axis = drawn(el("div", {}), (width) => { const x = at(width); let last = -99; return sv("svg", { width, height: 18, viewBox: `0 0 ${width} 18`, "aria-hidden": "true" }, [1, ...MARKS].filter((mark) => x.inside(mark)).sort((a, b) => a - b).filter((mark, n, all) => !n || mark !== all[n - 1]).filter((mark) => { if (x(mark) - last < 44 && mark !== 1) return false; last = x(mark); return true; }).map((mark) => sv("text", { x: Math.max(18, Math.min(width - 20, x(mark))), y: 13, "text-anchor": "middle" }, mark === 1 ? "0 %" : signed(mark)))); });
  const rows = Object.entries(series).map(([name, points]) => el("div", { class: "strip" }, el("span", {}, name, el("small", {}, ` ${points.length}`)), line(points, name), el("span", {}, `${(100 * median(points.map(([, ratio]) => Math.abs(ratio - 1)))).toFixed(1)} %`)));
  return el("section", { class: "block" }, el("h2", {}, `${what[0].toUpperCase()}${what.slice(1)}: predicted over measured`),
    el("p", { class: "dim" }, "Every dot is a row; the bands are errors of 10 and 25 %. Numbers: rows, and the median error."),
    el("div", { class: "strip" }, el("span", {}), axis, el("span", {})), rows);
}
main.append(el("header", {}, el("div", { class: "top" }, el("div", {}, el("h1", {}, page.question), el("p", {}, page.headline)), schemeButton())),
  ...page.pictures.map(strips),
  ...page.tables.map((own) => el("section", { class: "block" }, el("h2", {}, own.title), table(own, { caption: own.title }))),
  Object.keys(page.sources).length ? el("section", { class: "block" }, el("h2", {}, "Sources"), el("dl", { class: "answer" }, Object.entries(page.sources).filter(([, texts]) => texts.length).flatMap(([name, texts]) => [el("dt", {}, name), el("dd", {}, texts.map((text) => el("p", {}, linked(text))))]))) : "",
  page.lacking.length ? folded("Rows that the model cannot express", "", () => [table({ head: ["rows", "lack", "data sets"], rows: page.lacking, left: [1, 2] }), table({ head: ["id", "data set", "model", "lacks"], rows: page.lacks, left: [0, 1, 2, 3] })]) : "",
  folded(`Every row: ${page.rows.length.toLocaleString("en-US")}`, "", () => table({ head: ["id", "data set", "model", "measured", "predicted", "error"], rows: page.rows, left: [0, 1, 2] })));
requestAnimationFrame(() => requestAnimationFrame(() => { root.dataset.ready = "true"; }));
