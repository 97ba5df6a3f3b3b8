"""Errors of kernel tables as text: a table for each kind, with a column for each chip."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from dse.reporting.design_table import Column, fitted_table

#: Group of errors -> the columns that name its rows; a column for each system follows.
ROWS: Final[Mapping[str, tuple[str, ...]]] = {"sizes": ("format", "size"), "releases": ("library", "release")}


def kernel_tables_report(record: Mapping[str, Any], width: int) -> list[RenderableType]:
    """Errors by format and size, then by release, and the rows that were set aside."""
    shown: list[RenderableType] = [
        Text(f"{record['rows_compared']:,} of {record['rows_in_tables']:,} rows: about {record['rows_asked']:,} of "
             f"each chip and kind, drawn with seed {record['seed']}"),
        Text("Median size of the relative error, then that of shapes that are kept apart from fits, in %"),
    ]  # fmt: skip
    for title, keys in ROWS.items():
        for kind in dict.fromkeys(one["kind"] for one in record[title]):
            cells = {(*(one[key] for key in keys), one["system"]): _cell(one)
                     for one in record[title] if one["kind"] == kind}  # fmt: skip
            names = [*dict.fromkeys(name[:-1] for name in cells)]
            columns = [Column(key, (key,), [name[at] for name in names], left=True) for at, key in enumerate(keys)]
            for system in dict.fromkeys(name[-1] for name in cells):
                texts = [cells.get((*name, system), "-") for name in names]
                columns.append(Column(system, (system,), texts, leave_out=1))
            table = fitted_table(columns, width)
            shown += [Text(), Text(f"{kind.capitalize()}, by {' and '.join(keys)}"), Text(), *table]
    counts: Counter[str] = Counter()
    for one in record["left_out"]:
        counts[f"{one['kind']}: {one['reason']}"] += one["rows"]
    return [*shown, Text(), Text("Rows set aside"), Text(), *(Text(f"  {n:12,}  {why}") for why, n in counts.items())]


def _cell(one: Mapping[str, Any]) -> str:
    """Median error of a group and that of its shapes that are kept apart. [%]"""
    apart = one["kept_apart"]["median_abs_error_percent"]
    return f"{one['median_abs_error_percent']:.0f} / {'-' if math.isnan(apart) else f'{apart:.0f}'}"
