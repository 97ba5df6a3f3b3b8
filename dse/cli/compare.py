"""`dse compare`: how two cost models rank the designs of a study."""

from __future__ import annotations

import argparse
import sys

from costmodel.profiles.registry import NATIVE, design_profiles
from dse.cli.options import Commands, add_storage, command


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "compare",
        run,
        summary="rank the designs of a study under another cost model",
        about="Price the feasible designs of a study by another profile as well, and compare how both rank\n"
        "them by the study's first objective.",
        examples=[
            "dse compare gpt3_175b_1024_a100",
            "dse compare gpt3_175b_1024_a100 --profile simai --format json | jq .rank_correlation",
        ],
    )
    parser.add_argument("study", metavar="STUDY", help="name of a study (`dse studies` lists them)")
    parser.add_argument(
        "--profile",
        choices=design_profiles(),
        help="the other cost model (default: native, or simai where that is the study's)",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Compare."""
    from dse.report.comparison import comparison, comparison_report
    from dse.search.study import Study

    study = Study.load(args.study, storage=args.storage)
    found = comparison(study, args.profile or ("simai" if study.profile == NATIVE else NATIVE))
    if args.format == "json":
        from dse.export.tables import json_text

        print(json_text(found.record()))
        return 0
    from dse.report.text import show

    show(sys.stdout, lambda width: comparison_report(found, width))
    return 0
