"""DeepFlow configurations."""

from __future__ import annotations

import argparse
import sys

from costmodel.profiles.deepflow import price
from costmodel.profiles.deepflow.file import load_configuration, power_notes
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.programs.deepflow_report import deepflow_report, figures


def run(args: argparse.Namespace) -> int:
    """Evaluate a file of DeepFlow's, and write what it costs."""
    config = load_configuration(args.design)
    for note in power_notes(config):
        print(f"dse: {args.design}: {note}", file=sys.stderr)
    report = price(config)
    if args.format == "json":
        print(json_text({"file": str(args.design), "profile": args.profile, "figures": figures(report)}))
        return 0
    show(sys.stdout, lambda width: deepflow_report(report))
    return 0
