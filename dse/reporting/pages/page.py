"""Pages that need nothing else: their style, their scripts and their data are in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

import altair as alt
import vl_convert

#: Where the style and the script of pages are.
ASSETS: Final = Path(__file__).with_name("assets")


@dataclass(frozen=True)
class PageSection:
    """A part of the page: its heading, a sentence, its body and the figures that are in it."""

    name: str
    title: str
    about: str
    body: str
    figures: Mapping[str, alt.ChartType] = field(default_factory=dict)

    @property
    def html(self) -> str:
        """The part as it stands on the page."""
        about = f"<p>{escape(self.about)}</p>" if self.about else ""
        return f'<section id="{self.name}"><h2>{escape(self.title)}</h2>{about}{self.body}</section>'


def asset(name: str) -> str:
    """A file that pages are made of."""
    return (ASSETS / name).read_text(encoding="utf-8")


def page(
    title: str, body: str, *, style: str = "", figures: Mapping[str, alt.ChartType], scripts: Sequence[str] = ()
) -> str:
    """A whole page, in the look of all."""
    drawn = {name: chart.to_dict(validate=False) for name, chart in figures.items()}
    data = json.dumps({"figures": drawn}, allow_nan=False).replace("</", "<\\/")
    vega = _vega_embed() if figures else ""
    run = "".join(f"<script>{script}</script>\n" for script in (vega, asset("figures.js"), *scripts))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{asset('style.css')}{style}</style></head>\n"
        f'<body>{body}\n<script type="application/json" id="data">{data}</script>\n{run}</body></html>\n'
    )


@cache
def _vega_embed() -> str:
    """Script of the libraries that draw figures; bundling it takes more than a second."""
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)


def plot(name: str) -> str:
    """Where a figure is drawn."""
    return f'<div class="plot" data-figure="{name}"></div>'


def table(headings: Sequence[str], cells: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of texts."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
