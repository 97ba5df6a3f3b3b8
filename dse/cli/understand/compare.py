"""`dse compare`: two studies side by side; or a study under another cost model, or on another machine."""

from __future__ import annotations

import argparse
import sys

from costmodel import load_system
from costmodel.errors import DseError
from costmodel.formats import shipped
from dse.library.study import Study
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.designs.system_comparison import differing, system_report
from dse.reporting.studies.comparison import comparison, comparison_report, usual_profile
from dse.reporting.studies.study_comparison import study_pair, study_pair_report


def run(args: argparse.Namespace) -> int:
    """Compare studies, systems or cost models."""
    if sum(map(bool, (args.other, args.profile, args.system))) > 1:
        raise DseError("compare: another study, --profile and --system: name one of them")
    systems = [word for word in (args.study, args.other) if word and is_system(word)]
    if len(systems) == 2:
        return machines(args.study, args.other, args.format)
    if systems and args.other:
        raise DseError(
            f"compare: {systems[0]} is a system, the other a study; use STUDY --system {systems[0]}"
        )
    study = Study.load(args.study, storage=args.storage)
    if args.other:
        return side_by_side(study, Study.load(args.other, storage=args.storage), args.format)
    found = comparison(study, args.profile or (None if args.system else usual_profile(study)), args.system)
    if args.format == "json":
        print(json_text(found.record()))
        return 0
    show(sys.stdout, lambda width: comparison_report(found, width))
    return 0


def is_system(word: str) -> bool:
    """Whether a word names a machine: one that ships, or a file."""
    return word in shipped.names("systems") or word.endswith((".yaml", ".yml"))


def machines(one: str, other: str, form: str) -> int:
    """Two systems."""
    both = load_system(one), load_system(other)
    if form == "json":
        print(json_text({"systems": [one, other], "quantities": differing(*both)}))
        return 0
    show(sys.stdout, lambda _: system_report(*both))
    return 0


def side_by_side(one: Study, other: Study, form: str) -> int:
    """Two studies."""
    pair = study_pair(one, other)
    if form == "json":
        print(json_text(pair.to_json()))
        return 0
    show(sys.stdout, lambda _: study_pair_report(pair))
    return 0
