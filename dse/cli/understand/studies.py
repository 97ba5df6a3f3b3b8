"""`dse studies`, `dse pareto` and `dse trials`: what a database holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dse.cli.options import Commands, add_robust, add_storage, add_study, command
from dse.cli.output import form_of, write_content, write_report

if TYPE_CHECKING:
    from dse.searching.study import BaseStudy
    from dse.searching.trials.trial_table import Selection

FORMATS = ("table", "csv", "json", "parquet")

#: Most rows of a table that a terminal shows in full; of more, the first and the last of them.
ROWS_ON_A_TERMINAL = 1000


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the three commands."""
    studies = command(
        commands,
        "studies",
        run_studies,
        summary="list the studies of a database",
        about="List the studies of a database: their trials, and their best feasible values.",
        examples=["dse studies", "dse studies --storage postgresql://me@host/dse --format json"],
    )
    studies.add_argument("--format", choices=["table", "json"], default="table", help="default: table")
    add_storage(studies)
    for name, run, summary, shown in (
        ("pareto", run_pareto, "print the Pareto front of a study", "the designs that no other beats"),
        (
            "trials",
            run_trials,
            "print every finished trial of a study",
            "in their order, infeasible ones marked",
        ),
    ):
        parser = command(
            commands,
            name,
            run,
            summary=summary,
            about=f"{summary[0].upper()}{summary[1:]}: {shown}. All formats but the table\n"
            "hold everything that pricing says about a design.",
            examples=[f"dse {name} gpt3_175b_1024_a100", f"dse {name} gpt3_175b_1024_a100 -o {name}.csv"],
        )
        add_study(parser)
        if name == "pareto":
            add_robust(parser)
        parser.add_argument(
            "--format", choices=FORMATS, help="default: what the ending of FILE says, else table"
        )
        add_columns(parser)
        parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")
        add_storage(parser)


def add_columns(parser: argparse.ArgumentParser) -> None:
    """``--columns NAME,...``."""
    parser.add_argument(
        "--columns",
        metavar="NAME,...",
        type=name_list,
        help="only these, in this order, such as tp,clock,mfu (`dse columns SPACE` lists them)",
    )


def run_studies(args: argparse.Namespace) -> int:
    """List the studies."""
    from dse.searching.summaries import studies

    found = studies(args.storage)
    if args.format == "json":
        from dataclasses import asdict

        from dse.records.tables import json_text

        print(json_text({"studies": [asdict(summary) for summary in found]}))
    else:
        from dse.records.text import show
        from dse.reporting.study_report import studies_table

        show(sys.stdout, lambda width: studies_table(found))
    return 0


def run_pareto(args: argparse.Namespace) -> int:
    """Print the front; 1 when it is empty."""
    from dse.library.study import Study
    from dse.reporting.studies.nothing_feasible import nothing_feasible

    study: BaseStudy = Study.load(args.study, storage=args.storage)
    if args.robust and study.space.robust().fingerprint != study.space.fingerprint:
        from dse.searching.robust import RobustStudy

        study = RobustStudy(study)
    table = study.table
    write(args, study, "front")
    if table.feasible.any():
        return 0
    print(f"dse: {nothing_feasible(study.space, table.each_record(), study.profile)}", file=sys.stderr)
    return 1


def run_trials(args: argparse.Namespace) -> int:
    """Print all finished trials."""
    from dse.library.study import Study

    write(args, Study.load(args.study, storage=args.storage), "trials")
    return 0


def write(args: argparse.Namespace, study: BaseStudy, part: Selection) -> None:
    """The front or the trials of a study, as `--format` and `-o` say."""
    from dse.records.tables import encoded
    from dse.reporting.studies.designs_report import designs_report

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
    from costmodel.errors import DseError
    from dse.records.tables import csv_pieces, parquet_pieces
    from dse.reporting.studies.designs_report import chosen_frame, chosen_report

    if form == "json":
        raise DseError("--columns: JSON holds every column; choose among them with jq, or write csv")
    if form == "table":
        shown = chosen_report(study, part, args.columns)
        write_report(lambda width: shown, args.output)
        return
    table = study.table.front() if part == "front" else study.table
    chosen = (chosen_frame(study.space, frame, args.columns) for frame in table.frames())
    write_content(csv_pieces(chosen) if form == "csv" else parquet_pieces(chosen), form, args.output)


def name_list(text: str) -> list[str]:
    """Names between commas."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r}: expected names between commas, such as tp,mfu")
    return names
