"""`dse compare`: two studies side by side; or a study under another cost model, or on another machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from costmodel.profiles.registry import NATIVE, design_profiles
from dse.cli.options import Commands, add_storage, command

if TYPE_CHECKING:
    from dse.library.study import Study


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "compare",
        run,
        summary="compare two studies, two systems, or a study under another cost model or machine",
        about="Two studies: their fronts, who dominates whom, their best designs and what differs in them.\n"
        "Two systems: the quantities that differ.\n"
        "One study: price its feasible designs by another profile, or on another machine, as well, and\n"
        "compare how both rank them by the study's first objective.",
        examples=[
            "dse compare gpt3_175b_1024_a100 gpt3_without_sp",
            "dse compare gpt3_175b_1024_a100 --system h100_80g_dgx",
            "dse compare a100_80g_dgx h100_80g_dgx",
            "dse compare gpt3_175b_1024_a100 --profile simai --format json | jq .rank_correlation",
        ],
    )
    parser.add_argument("study", metavar="STUDY", help="name of a study (`dse studies`), or of a system")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another one to compare with")
    parser.add_argument(
        "--profile",
        choices=design_profiles(),
        help="the other cost model (default: native, or simai where that is the study's)",
    )
    parser.add_argument(
        "--system", metavar="NAME", help="the other machine: one that ships (`dse systems`), or a YAML file"
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
    from costmodel.errors import DseError
    from costmodel.formats import shipped
    from dse.library.study import Study

    if sum(map(bool, (args.other, args.profile, args.system))) > 1:
        raise DseError("compare: another study, --profile and --system: name one of them")
    if {args.study, args.other} <= {*shipped.names("systems")}:
        return machines(args.study, args.other, args.format)
    study = Study.load(args.study, storage=args.storage)
    if args.other:
        return side_by_side(study, Study.load(args.other, storage=args.storage), args.format)
    from dse.reporting.studies.comparison import comparison, comparison_report

    usual = None if args.system else "simai" if study.profile == NATIVE else NATIVE
    found = comparison(study, args.profile or usual, args.system)
    if args.format == "json":
        from dse.records.tables import json_text

        print(json_text(found.record()))
        return 0
    from dse.records.text import show

    show(sys.stdout, lambda width: comparison_report(found, width))
    return 0


def machines(one: str, other: str, form: str) -> int:
    """Two systems."""
    from costmodel import load_system
    from dse.reporting.designs.system_comparison import differing, system_report

    both = load_system(one), load_system(other)
    if form == "json":
        from dse.records.tables import json_text

        print(json_text({"systems": [one, other], "quantities": differing(*both)}))
        return 0
    from dse.records.text import show

    show(sys.stdout, lambda _: system_report(*both))
    return 0


def side_by_side(one: Study, other: Study, form: str) -> int:
    """Two studies."""
    from dse.reporting.studies.study_comparison import study_pair, study_pair_report

    pair = study_pair(one, other)
    if form == "json":
        from dse.records.tables import json_text

        print(json_text(pair.to_json()))
        return 0
    from dse.records.text import show

    show(sys.stdout, lambda _: study_pair_report(pair))
    return 0
