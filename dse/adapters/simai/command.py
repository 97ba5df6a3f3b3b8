"""AICB workloads in `dse evaluate`: options, the command, and the JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dse.adapters.simai import ADAPTER
from dse.adapters.simai.cost import simai_cost
from dse.adapters.simai.files.endtoend import endtoend_csv
from dse.adapters.simai.report import simai_report
from dse.cli.terminal import say
from dse.output.tables import json_text
from dse.output.text import show
from dse.registry import WorkloadKind

[KIND] = (kind for kind in ADAPTER.files if isinstance(kind, WorkloadKind))


def run(args: argparse.Namespace) -> int:
    """Evaluate an AICB workload by SimAI's closed forms."""
    cost = simai_cost(
        args.design,
        profile=args.profile,
        asked=args.profile_is_asked_for,
        note=say,
        **{name: getattr(args, name) for name in KIND.defaults},
    )
    if args.format == "csv":
        sys.stdout.write(endtoend_csv(cost.report, args.design.stem, revision=cost.revision))
    elif args.format == "json":
        print(json_text(cost.to_json()))
    else:
        show(sys.stdout, lambda width: simai_report(cost.report, cost.revision))
    return 0


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a workload; `options` are keyword arguments of `simai_cost`."""
    return simai_cost(path, profile=profile, asked=asked, note=note, **options).to_json()
