"""Workload files of other simulators: AICB (SimAI), DFModel set-ups, DeepFlow configurations."""

from __future__ import annotations

import argparse
import sys

from dse.cli.files.options import COSTS
from dse.cli.terminal import say
from dse.records.tables import json_text
from dse.records.text import show


def aicb(args: argparse.Namespace) -> int:
    """Evaluate an AICB workload by SimAI's closed forms."""
    from costmodel.profiles.simai.files.endtoend import endtoend_csv
    from dse.library.workload_files import simai_cost
    from dse.reporting.programs.simai_report import simai_report

    found = simai_cost(
        args.design,
        profile=args.profile,
        asked=args.profile_is_asked_for,
        note=say,
        **{name: getattr(args, name) for name in COSTS["aicb"].defaults},
    )
    if args.format == "csv":
        sys.stdout.write(endtoend_csv(found.report, args.design.stem, revision=found.revision))
    elif args.format == "json":
        print(json_text(found.to_json()))
    else:
        show(sys.stdout, lambda width: simai_report(found.report, found.revision))
    return 0


def dfmodel(args: argparse.Namespace) -> int:
    """Evaluate a DFModel set-up, text or binary, by the rules of one generation of DFModel."""
    from costmodel.profiles.registry import profile_named
    from dse.reporting.programs.dfmodel_report import Wanted, dfmodel_report, figures, priced_file, shortages

    wanted = Wanted(args.resolve, args.prefer, args.groups, args.tile_size)
    report = priced_file(args.design, generation=profile_named(args.profile).version, wanted=wanted)
    for line in shortages(report.file.graph, report.setup, report.groups, report.evaluation):
        say(f"{args.design}: does not fit: {line}")
    if args.format == "json":
        print(json_text({"file": str(args.design), "profile": args.profile, **figures(report)}))
    else:
        show(sys.stdout, lambda width: dfmodel_report(report))
    return 0


def deepflow(args: argparse.Namespace) -> int:
    """Evaluate a DeepFlow configuration."""
    from costmodel.profiles.deepflow import price
    from costmodel.profiles.deepflow.file import load_configuration, power_notes
    from dse.reporting.programs.deepflow_report import deepflow_report, figures

    config = load_configuration(args.design)
    for note in power_notes(config):
        say(f"{args.design}: {note}")
    report = price(config)
    if args.format == "json":
        print(json_text({"file": str(args.design), "profile": args.profile, "figures": figures(report)}))
    else:
        show(sys.stdout, lambda width: deepflow_report(report))
    return 0
