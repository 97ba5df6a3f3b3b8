"""`dse cost` for HLO modules: evaluated by the native model on a system."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from costmodel.errors import DseError
from costmodel.profiles.dfmodel.files import graph_message, setup_text
from dse.cli.act.words import COSTS, USUAL_SYSTEM
from dse.cli.output import TABLE_ENDINGS, checked_ending, write_content, write_report
from dse.records.tables import csv_pieces, json_text, parquet_pieces
from dse.records.text import show
from dse.reporting.programs.cost_record import ModuleCost
from dse.reporting.programs.cost_report import hlo_report
from dse.reporting.programs.machine_sweep import machines, sweep_frame, sweep_record, sweep_report

#: Forms of a table of machines.
SWEEPS: Final = ("table", "json", "csv", "parquet")

#: Forms of the graph alone, which no machine has a part in.
GRAPHS: Final = ("dfmodel",)


def run(args: argparse.Namespace) -> int:
    """Evaluate a compiled program, and write what it costs."""
    if args.sweep is not None:
        return run_sweep(args)
    if args.format in ("csv", "parquet"):
        plain = ", ".join(form for form in COSTS["hlo"].formats if form not in ("csv", "parquet"))
        raise DseError(f"{args.file}: an HLO module has no {args.format}; ask for {plain}, or add --sweep")
    if args.output:
        raise DseError(f"{args.file}: -o is of a table of systems; add --sweep, or redirect stdout")
    if args.format in GRAPHS and args.system:
        raise DseError(f"{args.file}: {args.format} is of the graph alone; leave out --system")
    cost = ModuleCost.of(args.file, args.barriers, args.system)
    if not args.system and cost.program.kernels and args.format not in GRAPHS:
        print(f"dse: {args.file}: no --system named, so priced on {USUAL_SYSTEM}", file=sys.stderr)
        cost = cost.on(USUAL_SYSTEM)
    if args.format in GRAPHS:
        return write_graph(args, cost)
    if args.format == "trace":
        print(json_text(cost.trace()))
        return 0
    record = cost.record()
    if args.format == "json":
        print(json_text(record))
        return 0
    show(sys.stdout, lambda width: hlo_report(record, width))
    return 0


def run_sweep(args: argparse.Namespace) -> int:
    """The module on several machines, as a table in one of the forms; 1 where it runs on none."""
    if args.system:
        raise DseError(f"{args.file}: --system and --sweep: name one system or several, not both")
    if args.format not in SWEEPS:
        raise DseError(f"{args.file}: --sweep has no {args.format}; ask for {', '.join(SWEEPS)}")
    checked_ending(args.output, TABLE_ENDINGS)
    systems = machines(args.sweep)
    cost = ModuleCost.of(args.file, args.barriers, None)
    if not cost.program.kernels:
        raise DseError(f"{args.file}: runs no kernels, so that there is nothing to price; leave out --sweep")
    record = sweep_record(cost, systems)
    if args.format == "table":
        write_report(lambda width: sweep_report(record, width), args.output)
    elif args.format == "json":
        write_content([f"{json_text(record)}\n".encode()], args.format, args.output)
    else:
        pieces = csv_pieces if args.format == "csv" else parquet_pieces
        write_content(pieces([sweep_frame(record)]), args.format, args.output)
    if any(not row["problem"] for row in record["systems"]):
        return 0
    print(f"dse: {args.file}: fits on none of these systems", file=sys.stderr)
    return 1


def write_graph(args: argparse.Namespace, cost: ModuleCost) -> int:
    """Write the module's graph for DFModel; stderr gets a line for each property that the format lacks."""
    found = cost.dataflow()
    for note in found.notes:
        print(f"dse: {args.file}: {note}", file=sys.stderr)
    print(setup_text(graph_message(found.graph, found.traffic)), end="")
    return 0
