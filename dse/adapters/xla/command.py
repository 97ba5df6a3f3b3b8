"""HLO modules: evaluated by the native model on a system."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from dse.adapters.xla import ADAPTER
from dse.adapters.xla.report.cost_record import ModuleCost
from dse.adapters.xla.report.cost_report import hlo_report
from dse.adapters.xla.report.machine_sweep import machines, sweep_frame, sweep_record, sweep_report
from dse.adapters.xla.report.program_page import program_page
from dse.cli.output import TABLE_ENDINGS, checked_ending, write_content, write_json, write_report
from dse.cli.terminal import say
from dse.output.tables import csv_pieces, json_text, parquet_pieces
from dse.output.text import show
from dse.registry import WorkloadKind

[KIND] = (kind for kind in ADAPTER.files if isinstance(kind, WorkloadKind))

#: The machine of a module for which none is named.
USUAL_SYSTEM: Final = "a100_80g_dgx"
#: Forms of a table of machines.
SWEEPS: Final = ("table", "json", "csv", "parquet")


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a module; `options` are `barriers` and `system`."""
    cost = ModuleCost.of(path, options.get("barriers", "barrier"), options.get("system"))
    return (cost if "system" in options or not cost.program.kernels else cost.on(USUAL_SYSTEM)).record()


def run(args: argparse.Namespace) -> int:
    """Evaluate a compiled program, and write what it costs."""
    if args.sweep:
        return run_sweep(args)
    if args.format in ("csv", "parquet"):
        plain = ", ".join(form for form in KIND.formats if form not in ("csv", "parquet"))
        raise DseError(f"{args.design}: an HLO module has no {args.format}; use {plain}, or add --sweep")
    if args.output and args.format != "html":
        raise DseError(f"{args.design}: -o writes FILE.html, or the table of a --sweep; else redirect stdout")
    cost = ModuleCost.of(args.design, args.barriers, args.system)
    if not args.system and cost.program.kernels:
        say(f"{args.design}: no --system, so evaluated on {USUAL_SYSTEM}")
        cost = cost.on(USUAL_SYSTEM)
    if args.format == "trace":
        print(json_text(cost.trace()))
        return 0
    if args.format == "html":
        if not cost.system:
            raise DseError(f"{args.design}: runs no kernels, so there is no page; leave out -o")
        write_content([program_page(cost).encode()], args.format, args.output)
        return 0
    record = cost.record()
    if args.format == "json":
        print(json_text(record))
        return 0
    show(sys.stdout, lambda width: hlo_report(record, width))
    return 0


def run_sweep(args: argparse.Namespace) -> int:
    """Evaluate the module on several systems; 1 where it fits on none."""
    if args.system:
        raise DseError(f"{args.design}: --system and --sweep: name one system or several, not both")
    if args.format not in SWEEPS:
        raise DseError(f"{args.design}: --sweep has no {args.format}; use {', '.join(SWEEPS)}")
    checked_ending(args.output, TABLE_ENDINGS)
    [named, *others] = args.sweep
    if others:
        raise DseError("--sweep: given twice; name systems between commas")
    systems = machines(named.removeprefix("system="))
    cost = ModuleCost.of(args.design, args.barriers, None)
    if not cost.program.kernels:
        raise DseError(f"{args.design}: runs no kernels, so there is nothing to evaluate; leave out --sweep")
    record = sweep_record(cost, systems)
    if args.format == "table":
        write_report(lambda width: sweep_report(record, width), args.output)
    elif args.format == "json":
        write_json(record, args.output)
    else:
        pieces = csv_pieces if args.format == "csv" else parquet_pieces
        write_content(pieces([sweep_frame(record)]), args.format, args.output)
    if any(not row["problem"] for row in record["systems"]):
        return 0
    say(f"{args.design}: fits on none of these systems")
    return 1
