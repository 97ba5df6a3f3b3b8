"""Pages that need nothing else: their style, their scripts and their data are in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Where the style and the script of pages are.
ASSETS: Final = Path(__file__).with_name("assets")


@dataclass(frozen=True)
class PageSection:
    """A part of the page: its heading, a sentence, its body and the figures that are in it."""

    name: str
    title: str
    about: str
    body: str
    figures: Mapping[str, go.Figure] = field(default_factory=dict)

    @property
    def html(self) -> str:
        """The part as it stands on the page."""
        about = f"<p>{escape(self.about)}</p>" if self.about else ""
        return f'<section id="{self.name}"><h2>{escape(self.title)}</h2>{about}{self.body}</section>'


def asset(name: str) -> str:
    """A file that pages are made of."""
    return (ASSETS / name).read_text(encoding="utf-8")


def page(title: str, body: str, *, style: str = "", scripts: Sequence[str] = ()) -> str:
    """A whole page, in the look of all.

    Parameters
    ----------
    title : str
        What its tab is called.
    body : str
        HTML.
    style : str
        CSS beside that of all pages.
    scripts : sequence of str
        JavaScript that runs when the body is there.
    """
    run = "".join(f"<script>{script}</script>\n" for script in scripts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{asset('style.css')}{style}</style></head>\n"
        f"<body>{body}\n{run}</body></html>\n"
    )


def plot(name: str, *, taller: int = 0) -> str:
    """Where a figure is drawn; `taller` is its additional height where it is narrow. [pixels]"""
    return f'<div class="plot" data-figure="{name}" data-taller="{taller}"></div>'


def table(headings: Sequence[str], cells: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of texts."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
