"""Errors on measured runs as one commit had them: our own figures, no truth.

`python -m tests.validation_figures` keeps those of the tree, in `tests/data/validation_figures.csv` and in
the README. Where the public table of all measurements is not at hand, its figures stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from dse.records.text import PLAIN_WIDTH, plain_text
from dse.reporting.measurements.validation_report import validation_report
from dse.validation.comparison import ComparedRow, compared
from dse.validation.summary import dataset_record
from dse.validation.table import SHIPPED, read_table

ROOT: Final = Path(__file__).parents[1]
KEPT: Final = ROOT / "tests" / "data" / "validation_figures.csv"
README: Final = ROOT / "README.md"

#: The table of all public measurements, which is not part of this repository.
PUBLIC: Final = ROOT.parent / "shared" / "measured" / "measured.csv"

#: Where the README has what `dse validate` prints.
REPORT: Final = re.compile(
    r"(?<=^```text\n)(?=\d+ rows of \d+ data sets).*?(?=^```$)", re.MULTILINE | re.DOTALL
)


def tables() -> dict[str, Sequence[Path]]:
    """The tables at hand, by name."""
    return {"shipped": SHIPPED, **({"public": [PUBLIC]} if PUBLIC.exists() else {})}


def rows_of(paths: Sequence[Path]) -> list[ComparedRow]:
    """Every row of some tables with its prediction."""
    return compared([row for path in paths for row in read_table(path)])


def figures(name: str, rows: Sequence[ComparedRow]) -> list[dict[str, Any]]:
    """A line for each data set of a table: how many rows are priced, and how far off they are."""
    lines = []
    for dataset in dict.fromkeys(one.row.dataset for one in rows):
        record = dataset_record(dataset, [one for one in rows if one.row.dataset == dataset])
        kernels = {f"{kind} ": own for kind, own in record["kernels"].items()}
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
    """What `dse validate` prints of them."""
    return plain_text(validation_report(rows, PLAIN_WIDTH), PLAIN_WIDTH)


def main() -> None:
    """Keep the figures of the tree."""
    found = {name: rows_of(paths) for name, paths in tables().items()}
    new = pd.DataFrame([line for name, rows in found.items() for line in figures(name, rows)])
    before = pd.read_csv(KEPT) if KEPT.exists() else new
    kept = pd.concat([new, before[~before.table.isin(found)]])
    kept.to_csv(KEPT, index=False, float_format="%.2f", lineterminator="\n")
    README.write_text(REPORT.sub(lambda _: report(found["shipped"]), README.read_text()))


if __name__ == "__main__":
    main()
