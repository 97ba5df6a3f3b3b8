"""`dse studies`, `dse pareto` and `dse trials`: what a database holds."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from costmodel.errors import DseError
from dse.cli.output import form_of, write_content, write_report
from dse.library.study import Study
from dse.records.tables import csv_pieces, encoded, json_text, parquet_pieces
from dse.records.text import show
from dse.reporting.studies.designs_report import chosen_frame, chosen_report, designs_report
from dse.reporting.studies.nothing_feasible import nothing_feasible
from dse.reporting.study_report import studies_table
from dse.searching.robust import RobustStudy
from dse.searching.study import BaseStudy
from dse.searching.summaries import studies
from dse.searching.trials.trial_table import Selection

#: Most rows of a table that a terminal shows in full; of more, the first and the last of them.
ROWS_ON_A_TERMINAL = 1000


def run_studies(args: argparse.Namespace) -> int:
    """List the studies."""
    found = studies(args.storage)
    if args.format == "json":
        print(json_text({"studies": [asdict(summary) for summary in found]}))
    else:
        show(sys.stdout, lambda width: studies_table(found))
    return 0


def run_pareto(args: argparse.Namespace) -> int:
    """Print the front; 1 when it is empty."""
    study: BaseStudy = Study.load(args.study, storage=args.storage)
    if args.robust and study.space.robust().fingerprint != study.space.fingerprint:
        study = RobustStudy(study)
    table = study.table
    write(args, study, "front")
    if table.feasible.any():
        return 0
    print(f"dse: {nothing_feasible(study.space, table.each_record(), study.profile)}", file=sys.stderr)
    return 1


def run_trials(args: argparse.Namespace) -> int:
    """Print all finished trials."""
    write(args, Study.load(args.study, storage=args.storage), "trials")
    return 0


def write(args: argparse.Namespace, study: BaseStudy, part: Selection) -> None:
    """The front or the trials of a study, as `--format` and `-o` say."""
    form = form_of(args.format, args.output)
    if args.columns:
        write_columns(args, study, part, form)
        return
    if form != "table":
        write_content(encoded(study, part, form), form, args.output)
        return
    most = ROWS_ON_A_TERMINAL if sys.stdout.isatty() and not args.output else None
    write_report(lambda width: designs_report(study, part, width, most=most), args.output)


def write_columns(args: argparse.Namespace, study: BaseStudy, part: Selection, form: str) -> None:
    """The columns that `--columns` names."""
    if form == "json":
        raise DseError("--columns: JSON holds every column; choose among them with jq, or write csv")
    if form == "table":
        shown = chosen_report(study, part, args.columns)
        write_report(lambda width: shown, args.output)
        return
    table = study.table.front() if part == "front" else study.table
    chosen = (chosen_frame(study.space, frame, args.columns) for frame in table.frames())
    write_content(csv_pieces(chosen) if form == "csv" else parquet_pieces(chosen), form, args.output)
