"""`dse cost` for HLO modules: evaluated by the native model on a system."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dse.cli.output import TABLE_ENDINGS, checked_ending, write_content, write_report

if TYPE_CHECKING:
    from dse.reporting.programs.cost_record import ModuleCost

FORMATS: Final = ("table", "json", "csv", "parquet", "trace", "dfmodel", "dot", "svg")

#: Forms of a table of machines.
SWEEPS: Final = ("table", "json", "csv", "parquet")

#: Forms of the graph alone, which no machine has a part in.
GRAPHS: Final = ("dfmodel", "dot", "svg")

#: Options of these files alone, and what they are unless given.
DEFAULTS: Final[dict[str, Any]] = {"system": None, "barriers": "barrier", "sweep": None, "output": None}

#: The machine of a module for which none is named.
USUAL_SYSTEM: Final = "a100_80g_dgx"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What only an HLO module takes."""
    options = parser.add_argument_group("HLO modules")
    options.add_argument(
        "--system",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="machine that the module runs on: name of a shipped one (`dse systems`), or a YAML file "
        f"(default: {USUAL_SYSTEM})",
    )
    options.add_argument(
        "--sweep",
        metavar="NAMES",
        nargs="?",
        const="",
        default=argparse.SUPPRESS,
        help="the module on each of these systems, names or YAML files apart by commas, one row each; stands "
        "after FILE, and by itself means all that ship",
    )
    options.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        default=argparse.SUPPRESS,
        help="write a --sweep there, not to stdout: .txt, .csv, .json or .parquet",
    )
    options.add_argument(
        "--barriers",
        choices=["barrier", "element"],
        default=argparse.SUPPRESS,
        help="whether arrays that pass a barrier wait for all of them, or for themselves (default: barrier)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, write."""
    from costmodel.errors import DseError
    from dse.records.tables import json_text
    from dse.reporting.programs.cost_record import ModuleCost

    if args.sweep is not None:
        return run_sweep(args)
    if args.format in ("csv", "parquet"):
        plain = ", ".join(form for form in FORMATS if form not in ("csv", "parquet"))
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
    from dse.records.text import show
    from dse.reporting.programs.cost_report import hlo_report

    show(sys.stdout, lambda width: hlo_report(record, width))
    return 0


def run_sweep(args: argparse.Namespace) -> int:
    """The module on several machines, as a table in one of the forms; 1 where it runs on none."""
    from costmodel.errors import DseError
    from dse.records.tables import csv_pieces, json_text, parquet_pieces
    from dse.reporting.programs.cost_record import ModuleCost
    from dse.reporting.programs.machine_sweep import machines, sweep_frame, sweep_record, sweep_report

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
    """The module's graph for DFModel, or as a picture; what it cannot say on stderr."""
    from costmodel.profiles.dfmodel.files import graph_message, picture, setup_text

    found = cost.dataflow()
    for note in found.notes:
        print(f"dse: {args.file}: {note}", file=sys.stderr)
    if args.format == "dfmodel":
        print(setup_text(graph_message(found.graph, found.traffic)), end="")
        return 0
    from dse.exporting.graphviz import svg

    text = picture(found.graph, traffic=found.traffic)
    print(svg(text).decode() if args.format == "svg" else text, end="")
    return 0
