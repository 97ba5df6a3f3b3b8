"""Errors on measured runs as one commit had them: our own figures, no truth.

`python -m tests.validation_figures` stores those of the tree in `tests/data/validation_figures.csv`, in
docs/validation.md, and a summary in the README. Without the public table of all measurements, its figures
stay as they are.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from dse.output import PLAIN_WIDTH, plain_text
from dse.reporting.measurements.validation_report import validation_report
from dse.validation.comparison import ComparedRow, compared
from dse.validation.summary import accuracy_records, dataset_record
from dse.validation.table import SHIPPED, read_table

ROOT: Final = Path(__file__).parents[1]
KEPT: Final = ROOT / "tests" / "data" / "validation_figures.csv"
README: Final = ROOT / "README.md"
PAGE: Final = ROOT / "docs" / "validation.md"

#: The table of all public measurements, which is not part of this repository.
PUBLIC: Final = ROOT.parent / "shared" / "measured" / "measured_2026.csv"

#: The block of docs/validation.md that shows the output of `dse validate`.
REPORT: Final = re.compile(r"(?<=^```text\n)(?=\d+ rows of \d+ data sets).*?(?=^```$)", re.MULTILINE | re.DOTALL)

#: The table of the README, and the sentence below it.
SUMMARY: Final = re.compile(r"^\| measured \|.*?^Of \d+ runs[^.]*\.", re.MULTILINE | re.DOTALL)


#: Fewest rows of a machine in that table.
FEWEST_ROWS: Final = 5


def tables() -> dict[str, Sequence[Path]]:
    """The tables at hand, by name."""
    return {"shipped": SHIPPED, **({"public": [PUBLIC]} if PUBLIC.exists() else {})}


def rows_of(paths: Sequence[Path]) -> list[ComparedRow]:
    """Every row of some tables with its prediction."""
    return compared([row for path in paths for row in read_table(path)])


def figures(name: str, rows: Sequence[ComparedRow]) -> list[dict[str, Any]]:
    """A line for each data set of a table: the number of rows that are evaluated, and their errors."""
    lines = []
    for dataset in dict.fromkeys(one.row.dataset for one in rows):
        record = dataset_record(dataset, [one for one in rows if one.row.dataset == dataset])
        kernels = {f"{kind} ": by_kind for kind, by_kind in record["kernels"].items()}
        for part, errors in {"": record["step_time"], "memory ": record["memory"], **kernels}.items():
            lines.append(
                {
                    "table": name,
                    "dataset": f"{part}{dataset}",
                    "expressed": record["expressed"],
                    "median": errors["median_abs_error_percent"],
                    "mean": errors["mean_abs_error_percent"],
                    "tau": errors.get("kendall_tau"),
                }
            )
    return [line for line in lines if line["mean"] == line["mean"]]


def report(rows: Sequence[ComparedRow]) -> str:
    """The output of `dse validate` for some rows."""
    return plain_text(validation_report(rows, PLAIN_WIDTH), PLAIN_WIDTH)


def summary(rows: Sequence[ComparedRow]) -> str:
    """The README's table of errors by machine, and its sentence on runs that ran out of memory."""
    every = dataset_record("all", rows)
    lines = ["| measured | rows | median error | mean | 90th percentile | bias |", "|---|---|---|---|---|---|"]
    lines.append(_line("step time, all runs", sum(one.is_step for one in rows), every["step_time"]))
    lines += [
        _line(f"`{group['group']}`", group["rows"], group)
        for group in accuracy_records(rows, "machine")
        if group["rows"] >= FEWEST_ROWS
    ]
    memory = every["memory"]
    lines += [_line("peak memory", memory["rows"], memory), ""]
    out_of_memory = (
        f"Of {memory['out_of_memory_rows']} runs that ran out of memory, dse warns about "
        f"{memory['out_of_memory_recall']:.0%}; of {memory['ran_rows']} that ran, it rejects "
        f"{memory['false_alarms']}."
    )
    return "\n".join([*lines, out_of_memory.replace("%", " %")])


def _line(title: str, count: int, errors: dict[str, float]) -> str:
    """A line of the README's table."""
    sizes = [errors[f"{name}_abs_error_percent"] for name in ("median", "mean", "p90")]
    cells = [title, f"{count}", *(f"{size:.1f} %" for size in sizes), f"{errors['bias_percent']:+.1f} %"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Keep the figures of the tree."""
    actual = {name: rows_of(paths) for name, paths in tables().items()}
    new = pd.DataFrame([line for name, rows in actual.items() for line in figures(name, rows)])
    before = pd.read_csv(KEPT) if KEPT.exists() else new
    kept = pd.concat([new, before[~before.table.isin(actual)]])
    kept.to_csv(KEPT, index=False, float_format="%.2f", lineterminator="\n")
    PAGE.write_text(REPORT.sub(lambda _: report(actual["shipped"]), PAGE.read_text()))
    README.write_text(SUMMARY.sub(lambda _: summary(actual["shipped"]), README.read_text()))


if __name__ == "__main__":
    main()
