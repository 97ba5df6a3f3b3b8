"""`dse report`: a study as one page, or its front as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from dse.cli.options import Commands, add_storage, add_study, command
from dse.cli.output import checked_ending


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "report",
        run,
        summary="write a study as one page",
        about="Write a study as one page that needs no network: the front by every pair of objectives, its\n"
        "notable designs and what binds them, a step of each, parameters, how the search went, what is\n"
        "infeasible and why, and the space. A FILE that ends in .svg becomes a picture of the front.",
        examples=["dse report gpt3_175b_1024_a100", "dse report gpt3_175b_1024_a100 -o front.svg"],
    )
    add_study(parser)
    parser.add_argument(
        "-o",
        dest="out",
        metavar="FILE",
        type=Path,
        help="where to write it: a page, or a picture if it ends in .svg (default: STUDY.html)",
    )
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Read, draw, write."""
    from dse.library.study import Study
    from dse.records.tables import write_file
    from dse.reporting.pages.study_page import study_page, study_picture
    from dse.storage.atomic_files import file_name

    checked_ending(args.out, (".html", ".svg"))
    study = Study.load(args.study, storage=args.storage)
    out = args.out or Path(f"{file_name(study.name)}.html")
    made = study_picture(study) if out.suffix == ".svg" else study_page(study)
    write_file(out, made.encode())
    print(out)
    return 0
