"""AICB workloads: evaluated by SimAI's closed forms."""

from __future__ import annotations

import argparse
import sys

from costmodel.profiles.simai.files.endtoend import endtoend_csv
from dse.cli.files.options import COSTS
from dse.library.workload_files import simai_cost
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.programs.simai_report import simai_report


def run(args: argparse.Namespace) -> int:
    """Evaluate an AICB workload, and write what it costs."""
    found = simai_cost(
        args.design,
        profile=args.profile,
        asked=args.profile_is_asked_for,
        note=lambda text: print(f"dse: {text}", file=sys.stderr),
        **{name: getattr(args, name) for name in COSTS["aicb"].defaults},
    )
    if args.format == "csv":
        sys.stdout.write(endtoend_csv(found.report, args.design.stem, revision=found.revision))
    elif args.format == "json":
        print(json_text(found.to_json()))
    else:
        show(sys.stdout, lambda width: simai_report(found.report, found.revision))
    return 0
