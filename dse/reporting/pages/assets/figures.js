"use strict";
// Draws the figures of a page; `place.view` is Vega's view of a figure, and a "drawn" event says that it is there.

const page = JSON.parse(document.getElementById("data").textContent);
const LEGEND_ENTRY = 150; // pixels

async function draw(place) {
  const figure = page.figures[place.dataset.figure];
  const columns = Math.max(1, Math.floor(place.clientWidth / LEGEND_ENTRY));
  const config = { ...figure.config, legend: { ...figure.config.legend, columns } };
  const size = { width: "container", autosize: { type: "fit-x", contains: "padding" } };
  const options = { renderer: "svg", downloadFileName: place.dataset.figure,
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false } };
  const { view } = await vegaEmbed(place, { ...figure, ...size, config }, options);
  place.view = view;
  place.rows = Object.keys(figure.datasets).flatMap((name) => view.data(name))
    .filter((one) => one.row !== undefined).map((one) => ({ ...one, row: Number(one.row) }));
  place.dispatchEvent(new Event("drawn", { bubbles: true }));
}

async function start() {
  for (const place of document.querySelectorAll(".plot")) if (!place.closest("[hidden]")) await draw(place);
  document.documentElement.dataset.ready = "true";
}

addEventListener("load", start);
