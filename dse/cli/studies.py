"""`dse studies`, `dse pareto` and `dse trials`: what a database holds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dse.cli.options import Commands, add_robust, add_storage, command

if TYPE_CHECKING:
    from dse.search.study import Study
    from dse.search.trial_table import Selection

FORMATS = ("table", "csv", "json", "parquet")

#: A table in a file leaves nothing out. [characters]
FILE_WIDTH = 400


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
        parser.add_argument("study", metavar="STUDY", help="name of a study (`dse studies` lists them)")
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
    from dse.search.summaries import studies

    found = studies(args.storage)
    if args.format == "json":
        from dataclasses import asdict

        from dse.export.tables import json_text

        print(json_text({"studies": [asdict(summary) for summary in found]}))
    else:
        from dse.report.study_report import studies_table
        from dse.report.text import show

        show(sys.stdout, lambda width: studies_table(found))
    return 0


def run_pareto(args: argparse.Namespace) -> int:
    """Print the front; 1 when it is empty."""
    from dse.report.study_report import nothing_feasible
    from dse.search.study import Study

    study = Study.load(args.study, storage=args.storage)
    if args.robust and study.space.robust().fingerprint != study.space.fingerprint:
        from dse.search.robust import RobustStudy

        study = RobustStudy(study)
    table = study.table
    write(args, study, "front")
    if table.feasible.any():
        return 0
    print(f"dse: {nothing_feasible(study.space, table.each_record(), study.profile)}", file=sys.stderr)
    return 1


def run_trials(args: argparse.Namespace) -> int:
    """Print all finished trials."""
    from dse.search.study import Study

    write(args, Study.load(args.study, storage=args.storage), "trials")
    return 0


def write(args: argparse.Namespace, study: Study, part: Selection) -> None:
    """The front or the trials of a study, as `--format` and `-o` say."""
    from dse.export.tables import encoded, write_file
    from dse.report.study_report import designs_report
    from dse.report.text import plain_text, show

    suffix = args.output.suffix.removeprefix(".") if args.output else ""
    form = args.format or (suffix if suffix in FORMATS else "table")
    if args.columns:
        write_columns(args, study, part, form)
    elif form != "table":
        content = encoded(study, part, form)
        write_file(args.output, content) if args.output else to_stdout(content, form)
    elif args.output:
        write_file(args.output, plain_text(designs_report(study, part, FILE_WIDTH), FILE_WIDTH).encode())
    else:
        show(sys.stdout, lambda width: designs_report(study, part, width))


def write_columns(args: argparse.Namespace, study: Study, part: Selection, form: str) -> None:
    """The columns that `--columns` names."""
    from costmodel.errors import DseError
    from dse.export.tables import csv_pieces, parquet_pieces, write_file
    from dse.report.chosen_columns import chosen_frame, chosen_report
    from dse.report.text import plain_text, show

    if form == "json":
        raise DseError("--columns: JSON holds every column; choose among them with jq, or write csv")
    if form == "table":
        shown = chosen_report(study, part, args.columns)
        if args.output:
            write_file(args.output, plain_text(shown, FILE_WIDTH).encode())
        else:
            show(sys.stdout, lambda width: shown)
        return
    frame = chosen_frame(
        study.space, study.pareto_front() if part == "front" else study.trials(), args.columns
    )
    content = csv_pieces(frame) if form == "csv" else parquet_pieces(frame)
    write_file(args.output, content) if args.output else to_stdout(content, form)


def name_list(text: str) -> list[str]:
    """Names between commas."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r}: expected names between commas, such as tp,mfu")
    return names


def to_stdout(content: Iterable[bytes], form: str) -> None:
    """A file's content for another program, or for a terminal if it is text."""
    if form != "parquet":
        sys.stdout.writelines(piece.decode() for piece in content)
        return
    if sys.stdout.isatty():
        from costmodel.errors import DseError

        raise DseError("parquet is not for reading on a terminal; name a file with -o, or pipe it")
    sys.stdout.buffer.writelines(content)
