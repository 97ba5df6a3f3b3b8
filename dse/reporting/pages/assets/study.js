"use strict";
// A study: the answer, the front beside one of its designs, all designs, and how they were found.

const designs = page.designs, many = designs.length;
const state = { chosen: 0, second: null, kept: designs.map(() => true), tab: "Neighbours", framework: null };
const listeners = [], later = [];  // after each change; once, after the first screen is drawn
const changed = () => { for (const listener of listeners) listener(); };
const WORD = page.search ? "trial" : "design";  // a plan evaluates all layouts: it has no trials
const name = (design) => `${WORD} ${design.trial}${design.winner ? `, winner ${design.winner}` : ""}`;
const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
const numbered = (design) => `${design.trial}${design.winner ? `.${design.winner}` : ""}`;
const address = (design) => `#trial=${numbered(design)}`;
if (page.table?.head[0] === "trial") page.table.head[0] = WORD;
const spelled = (step) => step.replace(/(all_gather|all_reduce|all_to_all|reduce_scatter)/, (own) => own.replace(/_/g, "-")).replace(/_/g, " ");
page.paths = (page.paths ?? []).map((path) => path.map(spelled));
const plain = (text) => text.replace(/\u00a0/g, " ");
// Names of parameters in "zero 1 to 2, micro_batch_size 1 to 2" in words.
const changesText = (text) => text.replace(/(^|[,;:] )([a-z]\w*)(?= \S+ to \S)/g, (_, before, own) => before + own.replace(/_/g, " "));
const items = (text) => plain(text).split(", ").map((own, at, all) => [el("span", { class: "item" }, at < all.length - 1 ? `${own},` : own), " "]);

function choose(row, { second = false, write = true } = {}) {
  if (second && row !== state.chosen) state.second = state.second === row ? null : row;
  else { state.chosen = row; if (state.second === row) state.second = null; }
  if (write) history.replaceState(null, "", address(designs[state.chosen]) + (state.second === null ? "" : `&against=${numbered(designs[state.second])}`));
  changed();
}
function fromAddress() {
  // `#trial=17` or `#trial=17&against=40`.
  const numbers = Object.fromEntries(location.hash.slice(1).split("&").map((own) => own.split("=")));
  const at = (text) => designs.findIndex((own) => numbered(own) === text);
  const row = at(numbers.trial), other = at(numbers.against);
  if (row >= 0) { state.chosen = row; state.second = other >= 0 && other !== row ? other : null; changed(); }
}

// The answer

const launchText = (design, form) => {
  const runs = design.launch[form], lines = [];
  for (let at = 0; at < runs.length; at += 2) lines.push(...page.texts.slice(runs[at], runs[at] + runs[at + 1]));
  return lines.join("\n");
};
const FORMS = { megatron: "Megatron-LM", nemo: "NeMo", torchtitan: "torchtitan", maxtext: "MaxText" };
const ENDINGS = { megatron: "sh", nemo: "yaml", torchtitan: "py", maxtext: "yml" };
const exported = (design, form) => `dse export ${page.words} --trial ${design.trial}${design.winner ? ` --winner ${design.winner}` : ""} --format ${form} -o train.${ENDINGS[form]}`;
const large = (design) => el("ul", { class: "large" }, design.large.map(([value, label, below]) => el("li", {}, el("b", {}, value), el("span", {}, label), below ? el("span", {}, below) : null)));
const forms = (design) => Object.keys(design.launch ?? {});

function heading() {
  const [question, ...rest] = page.question.split(", ");
  const best = designs[0];
  const title = el("div", { class: "top" }, el("div", {}, el("h1", {}, question), el("p", { class: "dim" }, rest.join(", "))), schemeButton());
  if (!best) return el("header", {}, title, el("p", {}, page.infeasible || `No feasible ${WORD}s yet.`));
  const label = page.machine ? "Fastest" : "Use";
  const other = page.or.length ? [el("dt", {}, "Or"), el("dd", {}, `${plain(page.or[0]).replace("(trial ", `(${WORD} `)} `, open(page.or[1], "show"))] : [];
  const run = best.run ? [el("dt", {}, "Run"), el("dd", {}, best.run)] : [];
  const [word, counts] = page.exact;
  return el("header", {}, title, large(best),
    el("p", { class: "layout" }, `${label} `, items(best.layout)),
    el("div", { class: "row" }, forms(best).map((form, at) => copyButton(`Copy ${FORMS[form]} file`, () => launchText(best, form), at ? "" : "first")), many > 1 ? open(0, "Open this design") : null),
    el("dl", { class: "answer" }, other, run,
      el("dt", {}, "Result"), el("dd", {}, el("span", { class: `badge ${word}` }, word), ` ${counts}`),
      best.time || forms(best).length ? [el("dt", {}, "Next"), el("dd", {}, forms(best).slice(0, 1).map((form) => command(exported(best, form))), best.time ? command(`dse explain ${page.words}`) : null)] : null),
    page.notes.map((note) => el("p", { class: "dim narrow" }, note)), page.assumed ? el("p", { class: "dim narrow" }, `Assumed: ${page.assumed}`) : null);
}
const open = (row, text) => el("a", { href: address(designs[row]), onclick: (event) => { event.preventDefault(); choose(row, { second: event.shiftKey }); document.getElementById("design").scrollIntoView({ block: "nearest", behavior: "smooth" }); } }, text);

// The front

const axes = { x: 0, y: Math.min(1, page.axes?.length - 1 || 0) };
const shownKinds = { dominated: true, infeasible: false };
const titled = designs.map((own, row) => [row, own.title]).filter(([, text]) => text);

function scatter(width) {
  const height = Math.max(300, Math.min(460, width * 0.72)), [left, right, top, bottom] = [66, 16, 18, 44];
  const [across, up] = [page.axes[axes.x], page.axes[axes.y]];
  const x = scale(across.values, left, width - right, { pad: 0.09 }), y = scale(up.values, height - bottom, top, { pad: 0.09 });
  const sparse = (marks, at, gap) => marks.filter((value, n) => !n || Math.abs(at(value) - at(marks[n - 1])) >= gap);
  const xs = sparse(ticks(x, Math.max(2, width / 110)), x, 46), ys = sparse(ticks(y, 5), y, 18);
  const grid = [
    ...xs.flatMap((value) => [sv("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: height - bottom }), sv("text", { x: x(value), y: height - bottom + 17, "text-anchor": "middle" }, readable(value, across.unit))]),
    ...ys.flatMap((value) => [sv("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }), sv("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, readable(value, up.unit))]),
    sv("text", { class: "axis", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, across.name),
    sv("text", { class: "axis", x: left, y: 11 }, up.name),
  ];
  const objectives = page.objectives.length;
  const around = axes.x < objectives && axes.y < objectives ? ["infeasible", "dominated"].filter((kind) => shownKinds[kind]).flatMap((kind) =>
    page.cloud[kind].filter((row) => x.inside(row[axes.x]) && y.inside(row[axes.y])).map((row) => kind === "dominated"
      ? sv("circle", { class: kind, cx: x(row[axes.x]).toFixed(1), cy: y(row[axes.y]).toFixed(1), r: 2.6 })
      : sv("path", { class: kind, d: `M${x(row[axes.x]) - 3},${y(row[axes.y]) - 3}l6,6m-6,0l6,-6` }))) : [];
  const order = designs.map((_, row) => row).sort((a, b) => across.values[a] - across.values[b]);
  let stairs = null;
  if (objectives === 2 && axes.x < 2 && axes.y < 2 && page.objectives[axes.x].least)
    stairs = sv("path", { class: "stairs", d: order.map((row, n) => n ? `H${x(across.values[row])}V${y(up.values[row])}` : `M${x(across.values[row])},${y(up.values[row])}`).join("") });
  const marks = order.map((row) => sv("circle", { class: `front${state.kept[row] ? "" : " out"}`, cx: x(across.values[row]).toFixed(1), cy: y(up.values[row]).toFixed(1), r: 5.2, "data-row": row,
    onclick: (event) => choose(row, { second: event.shiftKey }), ...tipped(() => `${name(designs[row])}${designs[row].title ? `: ${designs[row].title}` : ""}\n${plain(designs[row].layout)}\n${plain(designs[row].numbers)}`) }));
  const halos = [[state.chosen, ""], [state.second, " second"]].filter(([row]) => row !== null).map(([row, kind]) => sv("circle", { class: `halo${kind}`, cx: x(across.values[row]), cy: y(up.values[row]), r: 9.5 }));
  const taken = [], labels = [];
  const clash = (box) => taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1]);
  for (const row of order) taken.push([x(across.values[row]) - 4, y(up.values[row]) - 4, x(across.values[row]) + 4, y(up.values[row]) + 4]);
  for (const [row, text] of titled) {
    const [cx, cy, wide] = [x(across.values[row]), y(up.values[row]), text.length * 7.1 + 4];
    const places = [[12, 4, "start"], [-12, 4, "end"], [0, -13, "middle"], [0, 22, "middle"], [9, -11, "start"], [9, 20, "start"], [-9, -11, "end"], [-9, 20, "end"], [14, -26, "start"], [-14, 34, "end"]];
    for (const [dx, dy, anchor] of places) {
      const from = cx + dx - (anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0);
      const box = [from, cy + dy - 12, from + wide, cy + dy + 3];
      if (box[0] < left || box[2] > width - 2 || box[1] < top - 4 || box[3] > height - bottom || clash(box)) continue;
      taken.push(box); labels.push(sv("text", { class: "name", x: cx + dx, y: cy + dy, "text-anchor": anchor }, text)); break;
    }
  }
  const about = `${across.name} and ${up.name} of ${many} designs; arrow keys move between them, Enter pins one for comparison`;
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const ends = { Home: 0, End: order.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") { state.second = state.second === null ? state.chosen : null; changed(); event.preventDefault(); return; }
    if (step === undefined && ends === undefined) return;
    event.preventDefault();
    const place = ends ?? Math.max(0, Math.min(order.length - 1, order.indexOf(state.chosen) + step));
    choose(order[place]); document.querySelector("#front svg")?.focus();
  };
  return sv("svg", { width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-label": about, onkeydown: move }, grid, around, stairs, marks, halos, labels);
}
function frontSection() {
  const plot = el("figure", { id: "plot" });
  let width = 0;
  const draw = () => { if (width) { const had = plot.contains(document.activeElement); plot.replaceChildren(scatter(width)); if (had) plot.firstChild.focus(); } };
  new ResizeObserver(() => { if (plot.clientWidth && plot.clientWidth !== width) { width = plot.clientWidth; draw(); } }).observe(plot);
  listeners.push(draw);
  const pick = (letter) => el("select", { "aria-label": `${letter === "x" ? "horizontal" : "vertical"} axis`, onchange: (event) => { axes[letter] = Number(event.target.value); draw(); } },
    page.axes.map((axis, at) => el("option", { value: at, selected: at === axes[letter] }, axis.name)));
  const chip = (kind, count, dot) => count ? el("button", { type: "button", class: "chip", "aria-pressed": String(shownKinds[kind]), onclick: (event) => { shownKinds[kind] = !shownKinds[kind]; event.currentTarget.setAttribute("aria-pressed", String(shownKinds[kind])); draw(); } }, el("i", { style: dot }), `${kind === "dominated" ? "beaten" : kind} ${count.toLocaleString("en-US")}`) : null;
  const [dominated, infeasible] = page.cloud.counts[0];
  const proposals = titled.length > 1 ? el("div", { class: "row" }, titled.map(([row, text]) => { const button = el("button", { type: "button", onclick: (event) => choose(row, { second: event.shiftKey }) }, text); listeners.push(() => button.setAttribute("aria-pressed", String(state.chosen === row))); return button; })) : null;
  const one = page.objectives.length === 1;
  const shown = many < page.count ? ` ${many} of ${page.count.toLocaleString("en-US")} are shown, evenly spread.` : "";
  return el("section", { id: "front", class: "sticky", "aria-label": "front" }, el("h2", {}, one ? "The best designs" : `The front: ${page.count.toLocaleString("en-US")} designs`),
    el("p", { class: "dim" }, `${one ? "Feasible designs, the best first." : "No design found is better in one objective without being worse in another."}${shown} Click a point to open it, Shift-click to compare.`),
    proposals, plot, el("div", { class: "row" }, el("label", { class: "dim" }, "across ", pick("x")), el("label", { class: "dim" }, "up ", pick("y")),
      chip("dominated", dominated, "border:1.5px solid currentColor"), chip("infeasible", infeasible, "border:1.5px solid var(--broken)")));
}

// One design, or two

function totals(parts, whole, unit, capacity) {
  const end = Math.max(capacity ?? 0, whole), free = capacity > whole ? capacity - whole : 0;
  const width = (value) => `width:${(100 * value / end).toFixed(3)}%;`;
  const item = (label, value, style) => el("li", {}, el("i", style), el("span", {}, label), el("b", {}, readable(value, unit)), el("span", {}, percent(value / (capacity ?? whole))));
  const bar = el("div", { class: "bar", role: "img", "aria-label": parts.map(([label, value]) => `${label} ${readable(value, unit)}`).join(", ") },
    parts.map(([label, value]) => { const own = part(label); return el("i", { ...own, style: own.style + width(value), ...tipped(`${label}: ${readable(value, unit)}, ${percent(value / (capacity ?? whole))}`) }); }),
    free ? el("i", { class: "free", style: width(free) }) : null);
  return [bar, el("ul", { class: "parts" }, parts.map(([label, value]) => item(label, value, part(label))), free ? item("headroom", free, { class: "free" }) : null)];
}
const leavesOf = (flat) => { const found = []; for (let at = 0; at < flat.length; at += 2) found.push([page.paths[flat[at]], flat[at + 1]]); return found; };

function tree(flat, unit, whole) {
  const top = { value: 0, children: new Map() };
  for (const [path, value] of leavesOf(flat)) {
    let node = top; top.value += value;
    for (const step of path) { if (!node.children.has(step)) node.children.set(step, { value: 0, children: new Map() }); node = node.children.get(step); node.value += value; }
  }
  const show = (label, node, first, depth) => {
    const own = part(first);
    const cells = [el("span", {}, label), el("span", {}, readable(node.value, unit)), el("span", {}, percent(node.value / whole)), el("span", {}, el("i", { ...own, style: `${own.style}width:${(100 * node.value / whole).toFixed(2)}%` }))];
    if (!node.children.size) return el("div", { class: "leaf" }, cells);
    return el("details", { open: depth < 1 && node.value > 0.25 * whole }, el("summary", {}, cells), [...node.children].sort((a, b) => b[1].value - a[1].value).map(([name, child]) => show(name, child, first, depth + 1)));
  };
  return el("div", { class: "tree" }, [...top.children].sort((a, b) => b[1].value - a[1].value).map(([name, node]) => show(name, node, name, 0)));
}

// Works of a stage with their times and micro-batches, from the runs that are stored.
function passes(data, [, ...runs]) {
  const all = [], next = new Map();
  let time = 0;
  for (const [count, ...own] of runs) for (let n = 0; n < count; n++) for (const place of own) {
    const work = data.works[place], [kind, chunk, long] = work, key = (kind < -1 ? -2 - kind : kind) + 16 * chunk, batch = next.get(key) ?? 0;
    if (kind < -1) { next.set(key, batch + long); continue; }
    if (kind >= 0) { next.set(key, batch + 1); all.push({ work, start: time, stop: time + long, batch: chunk < 0 ? -1 : batch }); }
    time += long;
  }
  return all;
}

const called = (exposed) => (exposed === "offload" ? exposed : `${exposed} communication`);
function pipeline(data) {
  const KIND = (place) => ({ dp_communication: "dp", weight_cast: "weight-cast", weight_gradient: "weight-gradient" }[data.kinds[place]] ?? data.kinds[place]);
  const kinds = [...new Set(data.works.filter(([kind]) => kind >= 0).map(([kind]) => KIND(kind)))], exposed = data.exposed.filter((_, at) => data.works.some((work) => work[3 + at] > 0));
  const legend = el("ul", { class: "parts" }, [...new Set([...kinds.map((kind) => (kind === "dp" ? "dp communication" : kind)), ...exposed.map(called)])].map((kind) => el("li", {}, el("i", part(kind)), el("span", {}, kind.replace(/-/g, " ")))), el("li", {}, el("i", { style: "background:var(--panel)" }), el("span", {}, "idle")));
  const rows = data.rows.map((row) => [row[0], passes(data, row)]);
  const end = Math.max(...rows.map(([, row]) => row.at(-1)?.stop ?? 0));
  const [begin, lasts] = data.period ?? [0, Math.min(end, 40 * Math.max(...rows[0][1].map((own) => own.work[2])))];
  const few = Math.min(end, 12 * Math.max(...data.works.filter(([, chunk]) => chunk >= 0).map((work) => work[2]), 1));
  const windows = { "Whole step": [0, end], "Warm-up": [0, Math.max(begin, lasts / 4)], "One period": [begin, begin + lasts], "A few passes": [begin, Math.min(end, begin + few)], "Cool-down": [Math.min(begin + lasts, end * 0.75), end] };
  if (!data.period) delete windows["One period"];
  let shown = "Whole step";
  const draw = (width) => {
    const [left, high, top] = [62, Math.max(9, Math.min(24, 280 / rows.length)), data.period ? 34 : 8];
    const [first, last] = windows[shown], right = width - 8, x = (time) => left + (time - first) / (last - first) * (right - left);
    const height = top + rows.length * (high + 3) + 26;
    const shapes = rows.flatMap(([stage, row], n) => {
      const y = top + n * (high + 3), found = [sv("rect", { x: left, y, width: width - left - 8, height: high, fill: "var(--panel)" }), n % Math.ceil(rows.length / 18) === 0 ? sv("text", { x: left - 7, y: y + high / 2 + 4, "text-anchor": "end" }, `stage ${stage}`.slice(rows.length > 9 ? 6 : 0)) : null];
      for (const { work: [kind, chunk, long, ...beside], start, stop: ends, batch } of row) {
        if (ends <= first || start >= last) continue;
        const gone = beside.reduce((sum, own) => sum + own, 0), from = Math.max(left, x(start)), stop = Math.min(right, x(ends)), wide = Math.max(0.4, stop - from - (stop - from > 3 ? 0.7 : 0));
        const said = `${data.kinds[kind].replace(/_/g, " ")}${batch >= 0 ? `, micro-batch ${batch}, chunk ${chunk}` : ""}\n${readable(long * data.unit, "s")}` + beside.map((own, k) => own ? `\n${called(data.exposed[k])} ${readable(own * data.unit, "s")} of it` : "").join("");
        found.push(sv("rect", { x: from.toFixed(2), y, width: wide.toFixed(2), height: high, fill: `var(--${KIND(kind)}, var(--other))`, opacity: batch % 2 === 1 ? 0.78 : 1, ...tipped(said) }));
        let tail = from + wide;
        beside.forEach((own, k) => { if (!own) return; const size = wide * own / long; tail -= size; if (gone <= long) found.push(sv("rect", { x: tail.toFixed(2), y, width: size.toFixed(2), height: high, fill: `var(--${data.exposed[k]}, var(--other))`, "pointer-events": "none" })); });
      }
      return found;
    });
    const brace = [];
    if (data.period && shown === "Whole step") {
      const [start, time, count] = data.period, [a, b] = [x(start), x(start + time)];
      brace.push(sv("path", { d: `M${a},26v-5H${b}v5`, fill: "none", stroke: "var(--ink)" }), sv("text", { class: "name", x: Math.min(Math.max((a + b) / 2, left + 60), width - 70), y: 14, "text-anchor": "middle" }, `× ${count}, ${readable(time * data.unit, "s")} each`));
      if (a - left > 70) brace.push(sv("text", { x: left, y: 26 }, "warm-up"));
      if (width - b > 90) brace.push(sv("text", { x: width - 8, y: 26, "text-anchor": "end" }, "cool-down"));
    }
    return sv("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `pipeline of ${data.stages} stages over one step` }, shapes, brace, sv("text", { x: left, y: height - 6 }, shown === "Whole step" ? "0 s" : shown.toLowerCase()), sv("text", { x: right, y: height - 6, "text-anchor": "end" }, shown !== "Whole step" ? readable((last - first) * data.unit, "s") : data.period ? `${readable((end + (data.period[2] - 1) * data.period[1]) * data.unit, "s")}, repetitions folded` : readable(end * data.unit, "s")));
  };
  const figure = drawn(el("figure", {}), draw);
  const some = data.rows.length < data.stages ? ` ${data.rows.length} of ${data.stages} stages are drawn.` : "";
  const about = data.period ? `One optimizer step: warm-up, one period that repeats ${data.period[2]} times, and cool-down.` : "One optimizer step.";
  return [el("p", { class: "dim" }, `${about} A coloured end of a bar is exposed communication.${some}`),
    el("div", { class: "row" }, Object.keys(windows).map((own) => el("button", { type: "button", "aria-pressed": String(own === shown), onclick: (event) => { shown = own; for (const button of event.currentTarget.parentNode.children) button.setAttribute("aria-pressed", String(button.textContent === own)); figure.replaceChildren(draw(figure.clientWidth)); } }, own))), figure, legend];
}

function launch(design) {
  const known = forms(design), refused = Object.entries(design.refused ?? {});
  if (!design.launch) return [el("p", {}, "Write the launch file of this design:"), Object.keys(FORMS).filter((form) => !forms(designs[0]).length || forms(designs[0]).includes(form)).map((form) => command(exported(design, form)))];
  const form = known.includes(state.framework) ? state.framework : known[0];
  const text = form ? launchText(design, form) : "";
  const save = () => { const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: `train.${ENDINGS[form]}` }); link.click(); URL.revokeObjectURL(link.href); };
  return [known.length > 1 ? el("div", { class: "row" }, known.map((own) => el("button", { type: "button", "aria-pressed": String(own === form), onclick: () => { state.framework = own; changed(); } }, FORMS[own]))) : null,
    form ? [el("div", { class: "row" }, copyButton(`Copy ${FORMS[form]} file`, text, "first"), el("button", { type: "button", onclick: save }, "Save"), el("code", {}, exported(design, form))), el("pre", {}, text)] : null,
    refused.map(([own, reason]) => el("p", { class: "dim" }, `${FORMS[own]}: ${page.texts[reason]}.`))];
}

const TABS = {
  Neighbours: (design) => [design.faster ? el("p", {}, el("b", {}, "Faster: "), changesText(design.faster)) : null, design.levers ? el("p", {}, el("b", {}, `${design.levers[0]}: `), changesText(design.levers[1])) : null, design.near ? table({ ...design.near, rows: design.near.rows.map(([first, ...rest]) => [changesText(first), ...rest]) }, { caption: "neighbours" }) : null, design.why ? el("p", {}, design.why) : null],
  "Step tree": (design) => [design.stages.map((text) => el("p", { class: "dim" }, text)), tree(design.time, "s", design.seconds), design.hidden.length ? [el("h3", {}, "Hidden behind kernels"), tree(design.hidden, "s", design.seconds)] : null],
  "Memory tree": (design) => tree(design.held, "B", design.capacity),
  Kernels: (design) => design.kernels ? table(design.kernels, { caption: "kernels" }) : null,
  Pipeline: (design) => design.pipeline ? pipeline(design.pipeline) : design.no_pipeline ? el("p", {}, design.no_pipeline) : el("p", {}, "Write the events of this design for Perfetto:", command(`dse export ${page.words} --trial ${design.trial} --format trace -o step.json`)),
  Launch: launch,
};
function designPanel(design) {
  const known = Object.keys(TABS).filter((tab) => (tab === "Neighbours" ? design.faster || design.why : tab === "Kernels" ? design.kernels : tab === "Launch" ? !("launch" in design) || forms(design).length + Object.keys(design.refused).length : tab === "Pipeline" ? design.pipeline || page.machine || !("launch" in design) : design.time));
  const tab = known.includes(state.tab) ? state.tab : known[0];
  const buttons = known.map((own) => el("button", { type: "button", role: "tab", "aria-selected": String(own === tab), onclick: () => { state.tab = own; changed(); [...document.querySelectorAll(".tabs button")].find((button) => button.textContent === own)?.focus(); } }, own));
  return [el("h2", {}, `${capital(name(design))}${design.title ? `, ${design.title}` : ""}`),
    el("p", { class: "layout" }, items(design.layout)), el("p", {}, plain(design.numbers)), design.run ? el("p", {}, design.run) : null,
    el("h3", {}, design.per_step), totals(design.step, design.seconds, "s"),
    design.memory.length ? [el("h3", {}, `${readable(design.bytes, "B")} of ${readable(design.capacity, "B")}`), totals(design.memory, design.bytes, "B", design.capacity)] : null,
    el("p", { style: "margin-top:.8rem" }, design.sentence), design.below.map((line) => el("p", { class: "dim" }, line)),
    known.length ? [el("div", { class: "tabs", role: "tablist" }, buttons), el("div", { role: "tabpanel" }, TABS[tab](design))] : null];
}

function differences(one, other, key, unit, whole) {
  // Parts and leaves of which two designs differ; their changes add up to the difference of the totals.
  const sums = new Map(), add = (path, value) => { const top = sums.get(path[0]) ?? { change: 0, leaves: new Map() }; top.change += value; const leaf = path.slice(1, 4).join(" > "); top.leaves.set(leaf, (top.leaves.get(leaf) ?? 0) + value); sums.set(path[0], top); };
  for (const [path, value] of leavesOf(other[key])) add(path, value);
  for (const [path, value] of leavesOf(one[key])) add(path, -value);
  const parts = [...sums].filter(([, own]) => Math.abs(own.change) > 1e-6 * whole).sort((a, b) => Math.abs(b[1].change) - Math.abs(a[1].change));
  const largest = Math.max(...parts.map(([, own]) => Math.abs(own.change)), 1e-30), signed = (value) => `${value > 0 ? "+" : "-"}${readable(Math.abs(value), unit)}`;
  const [from, to] = unit === "s" ? [one.seconds, other.seconds] : [one.bytes, other.bytes];
  let reached = from;
  const bar = (label, value) => { const own = part(label), long = 100 * Math.abs(value) / largest; return el("div", {}, el("i", { ...own, style: `${own.style}width:${long}%;${value > 0 ? "left:0" : "right:100%"}` })); };
  const rows = parts.flatMap(([label, own]) => { reached += own.change; const below = [...own.leaves].filter(([leaf, value]) => leaf && Math.abs(value) > 0.02 * whole * 0.2).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 3);
    return [el("tr", {}, el("td", { class: "left" }, label), el("td", {}, signed(own.change)), el("td", {}, readable(reached, unit)), el("td", {}, bar(label, own.change))), ...below.map(([leaf, value]) => el("tr", { class: "sub" }, el("td", { class: "left wrap" }, leaf), el("td", {}, signed(value)), el("td"), el("td")))]; });
  return el("table", { class: "waterfall" }, el("thead", {}, el("tr", {}, el("th", { class: "left" }, unit === "s" ? "why the step differs" : "why the memory differs"), el("th", {}, "change"), el("th", {}, "leads to"), el("th"))),
    el("tbody", {}, el("tr", {}, el("td", { class: "left" }, name(one)), el("td"), el("td", {}, readable(from, unit)), el("td")), rows, el("tr", { class: "sum" }, el("td", { class: "left" }, name(other)), el("td", { "data-sum": parts.reduce((sum, [, own]) => sum + own.change, 0) }, to === from ? "=" : signed(to - from)), el("td", {}, readable(to, unit)), el("td"))));
}
function comparison(one, other) {
  const heads = page.table.head, rows = [state.chosen, state.second].map((row) => page.table.rows[row]);
  const changes = heads.map((head, at) => [head || "best at", rows[0][at], rows[1][at]]).filter(([, a, b], at) => at && a !== b);
  return [el("div", { class: "top" }, el("h2", {}, `${capital(name(one))} and ${name(other)}`), el("button", { type: "button", onclick: () => choose(state.second, { second: true }) }, "End comparison")),
    el("p", {}, `${capital(name(other))} takes ${readable(Math.abs(other.seconds - one.seconds), "s")} ${other.seconds > one.seconds ? "more" : "less"} (${other.seconds > one.seconds ? "+" : ""}${(100 * (other.seconds / one.seconds - 1)).toFixed(1)} %)${one.memory.length ? ` and needs ${readable(Math.abs(other.bytes - one.bytes), "B")} ${other.bytes > one.bytes ? "more" : "less"} memory` : ""}.`),
    table({ head: ["", name(one), name(other)], rows: changes }, { caption: "settings that differ" }),
    one.time && other.time ? [el("h3", {}, "Step time"), differences(one, other, "time", "s", one.seconds), el("h3", {}, "Memory"), differences(one, other, "held", "B", one.bytes)] : null,
    one.time ? el("p", { style: "margin-top:1rem" }, command(`dse explain ${page.words} --trial ${one.trial} --against ${other.trial}`)) : null];
}
function designSection() {
  const box = el("section", { id: "design", "aria-label": "design", "aria-live": "polite" });
  listeners.push(() => box.replaceChildren(...(state.second === null ? designPanel(designs[state.chosen]) : comparison(designs[state.chosen], designs[state.second])).flat(9).filter(Boolean)));
  return box;
}

// All designs

const PREFIX = { p: 1e-12, n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
function numberOf(text) {
  // The number in a text with its unit: [value, unit], or null.
  const found = /^\$?\s*(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([pnumkKMGTPE](?=i?[A-Za-z/]*$))?(i?)([A-Za-z/%]*)/.exec(text.trim().replace(/\*$/, ""));
  if (!found) return null;
  const [, digitsOf, prefix, binary, unit] = found, money = text.trim().startsWith("$"), whole = `${prefix ?? ""}${unit}`;
  if (whole === "min") return [Number(digitsOf) * 60, "s"];
  if (whole === "days" || whole === "d") return [Number(digitsOf) * 86400, "s"];
  if (money && (unit === "B" && !prefix)) return [Number(digitsOf) * 1e9, "$"];
  const factor = binary ? 1024 ** ("KMGTPE".indexOf(prefix) + 1) : prefix ? PREFIX[prefix] : 1;
  return [Number(digitsOf.replace(/,/g, "")) * factor * (unit === "%" ? 0.01 : 1), money ? "$" : unit];
}
function conditions(text) {
  // "step time < 20 s and tp = 8", "full": tests of a row of texts; null where a bound has no number or no column.
  const heads = page.table.head, found = [];
  for (const word of text.split(/,|\band\b/i).map((own) => own.trim()).filter(Boolean)) {
    const match = /^(.*?)\s*(<=|>=|<|>|=)\s*(.+)$/.exec(word);
    if (!match) { found.push((row) => row.some((cell) => cell.toLowerCase().includes(word.toLowerCase()))); continue; }
    const [, column, sign, value] = match, wanted = numberOf(value);
    const unitAt = () => heads.findIndex((_, at) => { const own = numberOf(page.table.rows[0][at]); return own && own[1] === wanted?.[1]; });
    const at = column ? heads.findIndex((head) => head.toLowerCase() === column.toLowerCase().replace(/_/g, " ")) : unitAt();
    const close = column && at < 0 ? heads.findIndex((head) => head.toLowerCase().startsWith(column.toLowerCase())) : at;
    if (close < 0 || (!wanted && sign !== "=")) return null;
    const tests = { "<": (v) => v < wanted[0], "<=": (v) => v <= wanted[0], ">": (v) => v > wanted[0], ">=": (v) => v >= wanted[0], "=": (v) => Math.abs(v - wanted[0]) <= 5e-3 * Math.abs(wanted[0]) };
    found.push((row) => { const own = numberOf(row[close]); return own && wanted ? tests[sign](own[0]) : sign === "=" && row[close].toLowerCase() === value.toLowerCase(); });
  }
  return found;
}
function allDesigns() {
  const { head, rows, left } = page.table, count = el("span", { class: "dim", id: "shown", role: "status" });
  const noted = head.length - 1 === head.indexOf("") ? head.length - 1 : -1;
  const lines = rows.map((cells, row) => el("tr", { "data-row": row, onclick: (event) => { if (!getSelection().toString()) choose(row, { second: event.shiftKey }); } }, cells.map((cell, at) => el("td", { class: at === noted ? "note" : left.includes(at) ? "left" : undefined }, at ? cell : el("a", { href: address(designs[row]), onclick: (event) => { event.preventDefault(); event.stopPropagation(); choose(row, { second: event.shiftKey }); } }, cell)))));
  const body = el("tbody", { onkeydown: (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], link = event.target.closest("a");
    if (!step || !link) return;
    const seen = [...body.rows].filter((row) => !row.hidden), next = seen[seen.indexOf(link.closest("tr")) + step];
    if (next) { event.preventDefault(); next.querySelector("a").focus(); choose(Number(next.dataset.row)); }
  } }, lines);
  const sort = (at, heading) => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => rows[Number(row.dataset.row)][at];
    const order = (a, b) => { const [one, two] = [numberOf(key(a)), numberOf(key(b))]; return one && two ? one[0] - two[0] : key(a).localeCompare(key(b)); };
    body.append(...[...lines].sort((a, b) => (up ? order(a, b) : order(b, a))));
  };
  const heads = head.map((text, at) => el("th", { scope: "col", class: left.includes(at) || at === noted ? "left" : undefined }, el("button", { type: "button", onclick: (event) => sort(at, event.currentTarget.parentNode) }, text || "best at")));
  const grid = el("table", { class: "all early" }, el("caption", { class: "skip" }, "designs"), el("thead", {}, el("tr", {}, heads)), body);
  const input = el("input", { type: "search", id: "filter", size: 34, style: "max-width:100%", placeholder: page.objectives.length ? `${page.objectives[0].name} < ${page.table.rows[Math.floor(many / 2)][Math.max(0, head.indexOf(page.objectives[0].name))].replace("*", "")}` : "", "aria-label": "filter designs", oninput: () => {
    const tests = conditions(input.value);
    input.setAttribute("aria-invalid", String(tests === null));
    state.kept = rows.map((row) => !tests || tests.every((test) => test(row)));
    changed();
  } });
  const box = el("div", {}, grid);
  const first = [...page.objectives.map((own) => head.indexOf(own.name)), ...(noted >= 0 ? [noted] : [])];
  const order = [...head.map((_, at) => at).slice(1).filter((at) => !first.includes(at)).reverse(), ...first.slice(1).reverse()];
  const more = fitting(grid, box, order);
  later.push(() => { grid.classList.remove("early"); more.fit(); });
  listeners.push(() => { let shown = 0; lines.forEach((line, row) => { const keep = state.kept[row]; shown += keep; line.hidden = !keep; line.setAttribute("aria-selected", String(row === state.chosen)); line.classList.toggle("second", row === state.second); }); count.textContent = `${shown} of ${many} designs`; });
  return el("section", { class: "block", id: "all" }, el("h2", {}, "All designs"), el("div", { class: "row" }, input, count, more),
    el("p", { class: "dim" }, "Filter by words and bounds, such as ", el("code", {}, "recompute = full and < 40 GB"), ". Click a row to open it, Shift-click to compare."), box);
}

// Parameters and objectives as lines

function parallel() {
  const order = page.lines.map((_, at) => at), brushes = new Map(), box = el("figure", {}), rows = page.lines[0].values.length;
  const place = (axis, value) => { const [low, high] = [Math.min(...axis.values), Math.max(...axis.values)]; const log = !axis.texts && low > 0 && high >= 8 * low; const turn = log ? Math.log : (v) => v; return high > low ? (turn(value) - turn(low)) / (turn(high) - turn(low)) : 0.5; };
  const places = page.lines.map((axis) => axis.values.map((value) => place(axis, value)));
  const inside = (row) => [...brushes].every(([at, [a, b]]) => places[at][row] >= a - 1e-9 && places[at][row] <= b + 1e-9);
  const text = (axis, row) => (axis.texts ? axis.texts[axis.values[row]] : readable(axis.values[row], axis.unit));
  const draw = (width) => {
    const per = Math.max(2, Math.floor(width / 84)), bands = [];
    for (let at = 0; at < order.length; at += per - (at ? 1 : 0)) { const from = at ? at - 1 : 0; bands.push(order.slice(from, from + per)); if (from + per >= order.length) break; at = from + per - (at ? 0 : 0) - (per - (at ? 1 : 0)); }
    return el("div", {}, bands.map((band) => strip(band, width)));
  };
  const strip = (band, width) => {
    const [top, tall, side] = [58, 210, 52], gap = band.length > 1 ? (width - side - 72) / (band.length - 1) : 0;
    const x = (n) => side + n * gap, y = (share) => top + tall * (1 - share);
    const lines = Array.from({ length: rows }, (_, n) => rows - 1 - n).map((row) => sv("path", { class: `line${row < many ? " on" : ""}${inside(row) && (row >= many || state.kept[row]) ? "" : " off"}${row === state.chosen ? " chosen" : ""}`, d: band.map((at, n) => `${n ? "L" : "M"}${x(n).toFixed(1)},${y(places[at][row]).toFixed(1)}`).join(""),
      onclick: (event) => { if (row < many) choose(row, { second: event.shiftKey }); }, ...tipped(() => `${row < many ? name(designs[row]) : "another feasible design"}\n${page.lines.map((axis) => `${axis.name} ${text(axis, row)}`).join("\n")}`) }));
    const marks = band.map((at, n) => {
      const axis = page.lines[at], room = Math.max(9, gap / 6.9), lines = [];
      for (const word of axis.name.split(" ")) if (lines.length && `${lines.at(-1)} ${word}`.length <= room) lines.push(`${lines.pop()} ${word}`); else lines.push(word);
      const values = axis.texts ? axis.texts.map((own, k) => [own, axis.texts.length > 1 ? k / (axis.texts.length - 1) : 0.5]) : [Math.min(...axis.values), Math.max(...axis.values)].map((v) => [readable(v, axis.unit), place(axis, v)]);
      const move = (event) => { const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key]; if (!step) return; event.preventDefault(); const from = order.indexOf(at), to = Math.max(0, Math.min(order.length - 1, from + step)); order.splice(from, 1); order.splice(to, 0, at); redraw(); [...box.querySelectorAll(".axisname")].find((own) => own.dataset.axis === String(at))?.focus(); };
      const drag = (event) => { event.preventDefault(); const start = event.clientX; const up = (last) => { removeEventListener("pointerup", up); const steps = Math.round((last.clientX - start) / gap); if (!steps) return; const from = order.indexOf(at), to = Math.max(0, Math.min(order.length - 1, from + steps)); order.splice(from, 1); order.splice(to, 0, at); redraw(); }; addEventListener("pointerup", up); };
      const brush = (event) => { event.preventDefault(); const svg = event.currentTarget.ownerSVGElement, share = (own) => Math.max(0, Math.min(1, 1 - (own.clientY - svg.getBoundingClientRect().top - top) / tall)); const first = share(event); const up = (last) => { removeEventListener("pointerup", up); const ends = [first, share(last)].sort((a, b) => a - b); if (ends[1] - ends[0] < 0.02) brushes.delete(at); else brushes.set(at, ends); state.kept = designs.map((_, row) => inside(row)); changed(); }; addEventListener("pointerup", up); };
      const own = brushes.get(at), last = n === band.length - 1;
      const side = (text) => (last && text.length > 9 ? { x: x(n) - 6, "text-anchor": "end" } : { x: x(n) + 6 });
      return sv("g", {}, sv("line", { class: "base", x1: x(n), x2: x(n), y1: top, y2: top + tall }), own ? sv("rect", { class: "brush", x: x(n) - 7, width: 14, y: y(own[1]), height: y(own[0]) - y(own[1]) }) : null,
        sv("rect", { x: x(n) - 9, width: 18, y: top, height: tall, fill: "transparent", style: "cursor:ns-resize;touch-action:none", onpointerdown: brush }),
        values.filter((_, k) => k % Math.ceil(values.length / 9) === 0 || k === values.length - 1).map(([own, share]) => sv("text", { ...side(own), y: Math.min(y(share) + 4, top + tall), "pointer-events": "none", style: "paint-order:stroke;stroke:var(--paper);stroke-width:3px" }, own)),
        sv("text", { class: "axisname axis", "data-axis": at, x: x(n), y: top - 2 - 14 * lines.length, "text-anchor": "middle", tabindex: 0, role: "button", "aria-label": `${axis.name}: arrow keys move this axis`, onkeydown: move, onpointerdown: drag }, lines.map((own, k) => sv("tspan", { x: x(n), dy: k ? 14 : 0 }, own))));
    });
    return sv("svg", { width, height: top + tall + 12, viewBox: `0 0 ${width} ${top + tall + 12}`, role: "img", "aria-label": `lines over ${band.map((at) => page.lines[at].name).join(", ")}` }, lines, marks);
  };
  const redraw = () => { if (box.clientWidth) box.replaceChildren(draw(box.clientWidth)); };
  listeners.push(redraw);
  return drawn(box, draw);
}

// How it was searched

function bars(rows, label) {
  const largest = Math.max(...rows.map((row) => row[1]), 1e-9);
  return el("div", { class: "tree" }, rows.map(([text, share]) => el("div", { class: "leaf" }, el("span", {}, text), el("span", {}, percent(share)), el("span"), el("span", {}, el("i", { style: `background:var(--mark);width:${100 * share / largest}%` })))), label ? el("p", { class: "dim" }, label) : null);
}
function importances() {
  const rows = page.search.importance;
  if (!rows) return el("p", {}, page.search.no_importance);
  const best = (column, at) => rows.map((row) => [row[0], row[column][at]]).sort((a, b) => b[1] - a[1]).filter(([, share], n) => n < 8 && share > 0.001);
  return page.objectives.map((objective, at) => [el("h3", {}, objective.name), el("div", { class: "two", style: "border:0;margin:0;padding:0" },
    el("div", {}, el("p", { class: "dim" }, "What the best tenth of the trials has in common; shares add up to 100 %."), bars(best(1, at))),
    el("div", {}, el("p", { class: "dim" }, "Variance over random legal designs that a parameter explains alone; shares overlap."), bars(best(2, at))))]);
}
function searched() {
  const { facts, progress } = page.search;
  const draw = (width) => {
    const [wide, high] = [Math.min(width, 560), 120], x = scale(progress.map(([n]) => n + 1), 44, wide - 8, { pad: 0, log: true }), y = scale(progress.map(([, v]) => v), high - 22, 8);
    const path = progress.map(([n, v], k) => k ? `H${x(n + 1)}V${y(v)}` : `M${x(n + 1)},${y(v)}`).join("");
    return sv("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "hypervolume by trial" }, [...new Set([progress[0], progress.at(-1)])].map(([n, v], k) => [sv("text", { x: 38, y: y(v) + (k ? 4 : 0), "text-anchor": "end" }, v.toFixed(3)), sv("text", { x: x(n + 1), y: high - 5, "text-anchor": k ? "end" : "start" }, `trial ${n}`)]), sv("path", { d: path, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 }));
  };
  return [el("p", {}, Object.entries(facts).map(([key, text]) => `${key} ${text}`).join(", "), "."), el("p", { class: "dim narrow" }, "Hypervolume: the share of a box, spanned by random legal designs, that the front dominates after each trial; trials on a logarithmic axis."), drawn(el("figure", {}), draw), / \S+\.yaml /.test(page.search.command) ? el("p", {}, "To repeat it, save the text of the last section as the file that this command names:") : "", el("p", {}, command(page.search.command))];
}

function start() {
  document.title = `${page.question}: dse report`;
  main.append(el("a", { href: "#all", class: "skip" }, "Skip to the designs"), heading());
  if (many) main.append(el("div", { class: "two" }, frontSection(), designSection()), allDesigns(),
    page.lines?.length > 2 ? folded("Parameters and objectives as lines", `Each line is a design; dark lines are the designs above, grey ones other feasible designs. Drag along an axis to keep what passes there, drag a name or press arrow keys on it to move its axis, click a line to open it.`, parallel) : "");
  if (page.search && many) main.append(folded("Which parameters matter", "Two views of each objective. Parameters of legal designs depend on each other.", importances), folded("How the search went", "", searched));
  if (page.infeasible && many) main.append(folded("Designs that do not fit", "", () => el("p", { class: "narrow" }, page.infeasible)));
  main.append(folded("Space and versions", page.search ? "The same space, seed and versions give the same trials." : "", () => [el("p", {}, Object.entries(page.versions).map(([key, text]) => `${key} ${text}`).join(", ")), el("pre", {}, page.space)]));
  if (many) { changed(); fromAddress(); addEventListener("hashchange", fromAddress); }
  requestAnimationFrame(() => requestAnimationFrame(() => { root.dataset.ready = "true"; setTimeout(() => later.forEach((own) => own()), 50); }));
}
start();
