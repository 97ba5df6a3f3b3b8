"""Pages that need no network and no other file: style, scripts and data are in the HTML.

A page has one JSON object, compressed, from which the scripts in `assets` draw tables and figures as HTML and SVG.
Texts and numbers come from the functions that print reports on a terminal.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from dse.reporting.design_table import Column

#: Folder of styles and scripts.
ASSETS: Final = Path(__file__).with_name("assets")


def page(title: str, data: Mapping[str, Any], script: str) -> str:
    """HTML of a page that `script`, a file of `ASSETS`, draws from data."""
    content = zlib.compress(json.dumps(data, allow_nan=False, separators=(",", ":")).encode(), 9)
    run = f'<script type="module">{asset("draw.js")}{asset(script)}</script>\n'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{asset('style.css')}</style></head>\n"
        '<body><main id="page"><noscript>This page needs JavaScript.</noscript></main>\n'
        f'<script type="text/plain" id="data">{b64encode(content).decode()}</script>\n{run}</body></html>\n'
    )


def asset(name: str) -> str:
    """Text of a file of `ASSETS`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def table_data(columns: Sequence[Column]) -> dict[str, Any]:
    """Columns of a report as a table of a page: headings, rows of texts, and the columns of words."""
    return {
        "head": [" ".join(column.heading).strip() for column in columns],
        "rows": [[cell.strip() for cell in row] for row in zip(*(column.cells for column in columns), strict=True)],
        "left": [number for number, column in enumerate(columns) if column.left],
    }


def rounded(value: float, digits: int = 5) -> float:
    """A number with few significant digits, which takes less room in a page. [unit of `value`]"""
    return float(f"{value:.{digits}g}")
