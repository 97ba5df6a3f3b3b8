"""DFModel set-ups, text or binary: evaluated by the rules of one generation of DFModel."""

from __future__ import annotations

import argparse
import sys

from costmodel.profiles.registry import profile_named
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.programs.dfmodel_report import Wanted, dfmodel_report, figures, priced_file, shortages


def run(args: argparse.Namespace) -> int:
    """Evaluate a set-up of DFModel's, and write what it costs."""
    generation = profile_named(args.profile).version
    wanted = Wanted(args.resolve, args.prefer, args.groups, args.tile_size)
    report = priced_file(args.design, generation=generation, wanted=wanted)
    for line in shortages(report.file.graph, report.setup, report.groups, report.evaluation):
        print(f"dse: {args.design}: does not fit: {line}", file=sys.stderr)
    if args.format == "json":
        print(json_text({"file": str(args.design), "profile": args.profile, **figures(report)}))
        return 0
    show(sys.stdout, lambda width: dfmodel_report(report))
    return 0
