"use strict";
// A compiled program: its numbers, the step as a tree, kernels, messages by purpose, and memory over time.

const HUES = { forward: "forward", backward: "backward", recompute: "recompute", optimizer: "optimizer", "tensor parallel": "tp", "data parallel": "dp", "pipeline parallel": "pp", "expert parallel": "ep", "context parallel": "cp", "pipeline": "pp", "experts": "ep", "kernels": "forward", "exposed messages": "tp", "host": "host", "cores that messages take": "offload" };
const hue = (name) => part(HUES[name] ?? "other");

function timeTree() {
  // Phases, kinds of kernels in them, and kernels, each with its time; kernels of equal names are one.
  const top = new Map();
  for (const [phase, kind, name, time] of page.tree) {
    let level = top;
    for (const step of [phase, kind, name.replace(/[.\d]+$/, "") || name]) { if (!level.has(step)) level.set(step, { time: 0, count: 0, below: new Map() }); const node = level.get(step); node.time += time; node.count += 1; level = node.below; }
  }
  const whole = page.tree.reduce((sum, row) => sum + row[3], 0) || 1;
  const show = (label, node, phase, depth) => {
    const own = hue(phase), cells = [el("span", {}, node.count > 1 && !node.below.size ? `${label} (${node.count.toLocaleString("en-US")})` : label), el("span", {}, readable(node.time, "s")), el("span", {}, percent(node.time / whole)), el("span", {}, el("i", { ...own, style: `${own.style}width:${100 * node.time / whole}%` }))];
    if (!node.below.size) return el("div", { class: "leaf" }, cells);
    const box = el("details", { open: depth < 1 }, el("summary", {}, cells));
    const fillBox = () => { if (box.open && box.childNodes.length === 1) box.append(...[...node.below].sort((a, b) => b[1].time - a[1].time).slice(0, 60).map(([name, child]) => show(name, child, phase, depth + 1))); };
    box.addEventListener("toggle", fillBox); fillBox();
    return box;
  };
  return el("div", { class: "tree" }, [...top].sort((a, b) => b[1].time - a[1].time).map(([name, node]) => show(name, node, name, 0)));
}
function memoryCurve(width) {
  const height = 220, [left, right, top, bottom] = [66, 12, 10, 26], held = page.held, most = Math.max(...held.map(([, bytes]) => bytes), 1);
  const x = scale([0, held.at(-1)[0] || 1], left, width - right, { pad: 0, log: false }), y = scale([0, most], height - bottom, top, { pad: 0.04, log: false });
  const peak = held.find(([, bytes]) => bytes === most);
  const path = held.map(([at, bytes], n) => n ? `H${x(at).toFixed(1)}V${y(bytes).toFixed(1)}` : `M${x(at)},${y(0)}V${y(bytes)}`).join("") + `V${y(0)}Z`;
  const cover = sv("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom, fill: "transparent", onpointerleave: hideTip, onpointermove: (event) => { const at = x.back(event.clientX - event.currentTarget.ownerSVGElement.getBoundingClientRect().left); const row = held.findLast(([place]) => place <= at) ?? held[0]; showTip(`${readable(row[1], "B")}\n${row[2] || "between kernels"}, instruction ${row[0]}`, event.clientX, event.clientY); } });
  return sv("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `temporaries over the instructions, at most ${readable(most, "B")}` },
    ticks(y, 4).filter((value) => value >= 0 && y(value) >= top).map((value) => [sv("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }), sv("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, readable(value, "B"))]),
    sv("path", { d: path, fill: "var(--activations)" }), sv("text", { x: left, y: height - 6 }, "first instruction"), sv("text", { x: width - right, y: height - 6, "text-anchor": "end" }, "last"),
    sv("circle", { class: "halo", cx: x(peak[0]), cy: y(most), r: 5 }), cover);
}
const parts = el("div", { class: "bar", role: "img", "aria-label": page.parts.map(([name, value]) => `${name} ${readable(value, "s")}`).join(", ") }, page.parts.map(([name, value]) => { const own = hue(name); return el("i", { ...own, style: `${own.style}width:${100 * value / page.step}%`, ...tipped(`${name}: ${readable(value, "s")}`) }); }));
const list = el("ul", { class: "parts" }, page.parts.map(([name, value]) => el("li", {}, el("i", hue(name)), el("span", {}, name), el("b", {}, readable(value, "s")), el("span", {}, percent(value / page.step)))));
const largest = Math.max(...page.messages.map((row) => row[2]), 1);

main.append(el("header", {}, el("div", { class: "top" }, el("div", {}, el("h1", {}, page.question), el("p", { class: "dim" }, page.headline)), schemeButton()),
  el("ul", { class: "large" }, page.large.map(([value, label, below]) => el("li", {}, el("b", {}, value), el("span", {}, label), below ? el("span", {}, below) : null))),
  page.fits ? "" : el("p", {}, el("b", {}, "Does not fit in the memory of a device.")), page.notes.map((note) => el("p", { class: "dim narrow" }, note))),
  el("div", { class: "two" }, el("section", {}, el("h2", {}, "The step"), parts, list, el("h3", {}, "Kernels as a tree"), el("p", { class: "dim" }, "Phase, kind and kernel, one after the other without overlap."), timeTree()),
    el("section", {}, el("h2", {}, "Memory over time"), el("p", { class: "dim" }, "Temporary arrays of one device, in the order of the instructions."), page.held.length ? drawn(el("figure", {}), memoryCurve) : "",
      page.messages.length ? [el("h2", { style: "margin-top:1.6rem" }, "Messages by purpose"), el("div", { class: "tree" }, page.messages.map(([name, kinds, bytes, time]) => { const own = hue(name); return el("div", { class: "leaf" }, el("span", {}, name, el("small", {}, ` ${kinds}`)), el("span", {}, readable(bytes, "B")), el("span", {}, readable(time, "s")), el("span", {}, el("i", { ...own, style: `${own.style}width:${100 * bytes / largest}%` }))); }))] : "",
      el("h2", { style: "margin-top:1.6rem" }, "Heaviest kernels"), table(page.kernels, { caption: "heaviest kernels" }))),
  folded("All tables", "As the terminal prints them.", () => page.sections.map(([title, text]) => [el("h3", {}, title), el("pre", { style: "white-space:pre;overflow-x:auto" }, text)])));
requestAnimationFrame(() => requestAnimationFrame(() => { root.dataset.ready = "true"; }));
