"""Comparisons with measurements as text.

Errors are listed by data set, machine, release and model family, each with its number of rows: a mean over a few runs
says little. Reasons why rows are not expressed follow, the most frequent first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.output import counted
from dse.reporting.design_table import columns_of, fitted_table
from dse.validation import summary
from dse.validation.comparison import ComparedRow
from dse.validation.pairs import ComparedPair, pairs_record


def pairs_report(pairs: Sequence[ComparedPair], width: int) -> list[RenderableType]:
    """The summary, a row for each pair with an effect, and the reasons of the others."""
    record = pairs_record(pairs)
    known = [pair for pair in pairs if not pair.why_not]
    shown: list[RenderableType] = [Text(f"{counted(len(pairs), 'pair')}, {len(known)} expressed")]
    if known:
        headings = ("pair", "changed", "measured", "predicted", "sign", "within\n5 points")
        rows = [
            (one.id, one.changed, f"{one.measured:+.1%}", f"{one.predicted:+.1%}",
             "right" if one.sign_right else "wrong", "yes" if one.close else "no")
            for one in known
        ]  # fmt: skip
        columns = columns_of(headings, rows, (0, 1), {"changed": 1})
        sign, close = record["sign_right"], record["within_5_points"]
        total = (
            f"Sign right in {sign} of {len(known)} ({sign / len(known):.0%}), effect within 5 points in {close} "
            f"({close / len(known):.0%}); mean difference {record['mean_abs_difference_points']:.1f} points"
        )
        shown += [Text(), Text("Step time after the change over the one before, less 1"), Text()]
        shown += [*fitted_table(columns, width), Text(), Text(total)]
    lacking = [pair for pair in pairs if pair.why_not]
    if lacking:
        shown += [Text(), Text("Pairs that the model cannot express, by missing input"), Text()]
        shown += [Text(f"  {pair.id}: {pair.why_not}") for pair in lacking]
    return shown


#: A table: its title, its headings, and its rows of cells.
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]

#: Heading of a column of errors -> key, in order; and those of errors of memory.
ERRORS: Final[Mapping[str, str]] = {
    "median": "median_abs_error_percent",
    "mean": "mean_abs_error_percent",
    "p90": "p90_abs_error_percent",
    "max": "max_abs_error_percent",
    "bias": "bias_percent",
}
OF_MEMORY: Final = ("median", "mean", "bias")

#: Reasons that are listed.
MOST_REASONS: Final = 40

#: Columns that a narrow terminal goes without, the highest first.
_LEFT_OUT: Final = {"max": 4, "p90": 3, "mean": 2, "bias": 1}


def validation_report(rows: Sequence[ComparedRow], width: int) -> list[RenderableType]:
    """All tables, each with its heading, and the reasons of rows that are not expressed."""
    shown: list[RenderableType] = [Text(headline(rows))]
    for title, headings, cells in tables(rows):
        shown += [Text(), Text(title), Text(), *fitted_table(columns_of(headings, cells, leave_out=_LEFT_OUT), width)]
    lacking = reason_rows(rows)
    if lacking:
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(justify="right")
        for cells_of_reason in lacking:
            grid.add_row(*cells_of_reason)
        shown += [Text(), Text("Rows that the model cannot express, by missing input"), Text(), grid]
    return shown


def headline(rows: Sequence[ComparedRow]) -> str:
    """Number of rows, and of rows that are evaluated."""
    expressed = sum(one.expressed for one in rows)
    sets = counted(len({one.row.dataset for one in rows}), "data set")
    return f"{counted(len(rows), 'row')} of {sets}, {expressed:,} expressed"


def tables(rows: Sequence[ComparedRow]) -> list[Table]:
    """Steps, memory and kernels, those that there are."""
    every = [step_table(sets := summary.data_sets(rows)), memory_table(sets), kernel_table(rows)]
    return [table for table in every if table[2]]


def accuracy_tables(rows: Sequence[ComparedRow]) -> list[Table]:
    """Errors by machine, software release and model family, with the sources of each group."""
    return [
        (
            f"Accuracy by {grouping}",
            (grouping, "rows", *ERRORS, "in the 90 % interval", "false alarms", "sources"),
            [
                (
                    record["group"],
                    str(record["rows"]),
                    *error_cells(record),
                    number(record["coverage_percent"], "{:.0f} %"),
                    f"{record['false_alarms']} of {record['ran_rows']}",
                    "; ".join(record["sources"]),
                )
                for record in summary.accuracy_records(rows, grouping)
            ],
        )
        for grouping in summary.GROUPINGS
    ]


def step_table(sets: Mapping[str, Sequence[ComparedRow]]) -> Table:
    """Errors of step times of each data set, and the order of its layouts."""
    timed = {
        name: [one for one in compared if one.row.row_type in ("train_step", "layer_time")]
        for name, compared in sets.items()
    }
    return (
        "Step time: |predicted / measured - 1|, and Kendall's tau of layouts of one run",
        ("data set", "rows", "expressed", *ERRORS, "tau"),
        [
            (
                record["dataset"],
                str(record["rows"]),
                str(record["expressed"]),
                *error_cells(record["step_time"]),
                number(record["step_time"]["kendall_tau"], "{:.2f}"),
            )
            for record in records_of({name: compared for name, compared in timed.items() if compared}, timed)
        ],
    )


def memory_table(sets: Mapping[str, Sequence[ComparedRow]]) -> Table:
    """Errors of memory of each data set, and runs that are predicted not to fit."""
    measured = {
        name: compared
        for name, compared in sets.items()
        if any(
            (one.expressed and not math.isnan(one.measured_bytes)) or (one.ran and one.said_not_to_fit)
            for one in compared
        )
    }
    return (
        "Memory, and runs that did not fit",
        ("data set", "rows", *OF_MEMORY, *_FITS),
        [
            (record["dataset"], str(memory["rows"]), *error_cells(memory, OF_MEMORY), *fit_cells(memory))
            for record in records_of(measured, sets)
            for memory in [record["memory"]]
        ],
    )


def fit_cells(memory: Mapping[str, float]) -> list[str]:
    """Precision and recall of runs that do not fit; precision only if some runs do not fit."""
    full = memory["out_of_memory_rows"]
    precision = memory["out_of_memory_precision"] if full else math.nan
    return [
        str(full or "-"),
        number(100 * memory["out_of_memory_recall"], "{:.0f} %"),
        number(100 * precision, "{:.0f} %"),
        f"{memory['false_alarms']} of {memory['ran_rows']}" if memory["ran_rows"] else "-",
        str(memory["tight_rows"]) if memory["ran_rows"] else "-",
    ]


#: Headings of the cells of `fit_cells`.
_FITS: Final = ("did not\nfit", "recall", "precision", "false\nalarms", "tight")


def kernel_table(rows: Sequence[ComparedRow]) -> Table:
    """Errors of single kernels of each kind, of all and by size."""
    cells = []
    for kind, compared in summary.kernels_by_kind(rows).items():
        record = summary.kernel_record(compared)
        cells.append((kind, str(record["expressed"]), *error_cells(record)))
        for part in record["by_size"]:
            size = f"  from {readable(part['from'], part['unit'])}"
            cells.append((size, str(part["rows"]), *error_cells(part)))
    return "Kernels", ("kind and\nsize", "rows", *ERRORS), cells


def records_of(
    shown: Mapping[str, Sequence[ComparedRow]], sets: Mapping[str, Sequence[ComparedRow]]
) -> list[dict[str, Any]]:
    """Sums of data sets, and of the whole table where there are several."""
    whole = {summary.ALL: [one for compared in sets.values() for one in compared]} if len(shown) > 1 else {}
    return [summary.dataset_record(name, compared) for name, compared in {**shown, **whole}.items()]


def error_cells(errors: Mapping[str, float], names: Iterable[str] = ERRORS) -> list[str]:
    """Errors as they are printed, under some of the headings `ERRORS`."""
    return [number(errors[ERRORS[name]], "{:+.1f} %" if name == "bias" else "{:.1f} %") for name in names]


def number(value: float, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if math.isnan(value) else form.format(value)


def reason_rows(rows: Sequence[ComparedRow]) -> list[tuple[str, str, str]]:
    """Numbers of rows, the reason why they are not expressed, and their data sets, the most frequent first."""
    lines = [
        (str(sum(counts.values())), lacks, ", ".join(f"{name} ({count})" for name, count in counts.items()))
        for lacks, counts in summary.reasons(rows).items()
    ]
    rest = sum(int(count) for count, *_ in lines[MOST_REASONS:])
    return lines[:MOST_REASONS] + ([(str(rest), "other reasons (--format json has all)", "")] if rest else [])
