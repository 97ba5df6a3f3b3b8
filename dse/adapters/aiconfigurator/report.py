"""Errors of kernel tables as text: a table for each kind of kernels, with a column for each chip."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rich.text import Text

from dse.output import Report
from dse.reporting.design_table import Column, fitted_table

#: Group of errors -> the columns that name its rows; a column for each system follows.
ROWS: Final[Mapping[str, tuple[str, ...]]] = {"sizes": ("format", "size"), "releases": ("library", "release")}


def kernel_tables_report(record: Mapping[str, Any], width: int) -> Report:
    """Errors by format and size, then by release, and the rows that were set aside."""
    shown: Report = [
        Text(f"{record['rows_compared']:,} of {record['rows_in_tables']:,} rows: about {record['rows_asked']:,} of "
             f"each chip and kind, drawn with seed {record['seed']}"),
        Text("Median size of the relative error of shapes that are kept apart from fits, in %: with the constants of "
             "each library, then with those of training steps"),
    ]  # fmt: skip
    for title, keys in ROWS.items():
        for kind in dict.fromkeys(one["kind"] for one in record[title]):
            cells = {(*(one[key] for key in keys), one["system"]): _cell(one)
                     for one in record[title] if one["kind"] == kind}  # fmt: skip
            names = [*dict.fromkeys(name[:-1] for name in cells)]
            columns = [Column(key, [name[at] for name in names], left=True) for at, key in enumerate(keys)]
            for system in dict.fromkeys(name[-1] for name in cells):
                texts = [cells.get((*name, system), "-") for name in names]
                columns.append(Column(system, texts, leave_out=1, title=(system,)))
            table = fitted_table(columns, width)
            shown += [Text(), Text(f"{kind.capitalize()}, by {' and '.join(keys)}"), Text(), *table]
    counts: Counter[str] = Counter()
    for one in record["left_out"]:
        counts[f"{one['kind']}: {one['reason']}"] += one["rows"]
    return [*shown, Text(), Text("Rows set aside"), Text(), *(Text(f"  {n:12,}  {why}") for why, n in counts.items())]


def _cell(one: Mapping[str, Any]) -> str:
    """Median error of a group's shapes that are kept apart, with constants of libraries and of steps. [%]"""
    errors = (one[key]["median_abs_error_percent"] for key in ("kept_apart", "in_steps"))
    return " / ".join("-" if math.isnan(error) else f"{error:.0f}" for error in errors)
