"""DeepFlow configurations in `dse evaluate`: the command and the JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dse.adapters.deepflow.configuration import load_configuration, power_notes
from dse.adapters.deepflow.report import deepflow_report, figures, price
from dse.cli.terminal import say
from dse.output import json_text, show


def run(args: argparse.Namespace) -> int:
    """Evaluate a DeepFlow configuration."""
    config = load_configuration(args.design)
    for note in power_notes(config):
        say(f"{args.design}: {note}")
    report = price(config)
    if args.format == "json":
        print(json_text({"file": str(args.design), "profile": args.profile, "figures": figures(report)}))
    else:
        show(sys.stdout, lambda width: deepflow_report(report))
    return 0


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a configuration, which takes no options."""
    return {"file": str(path), "profile": profile, "figures": figures(price(load_configuration(path)))}
