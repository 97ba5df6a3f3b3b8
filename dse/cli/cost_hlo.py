"""`dse cost` for HLO modules: evaluated by the native model on a system."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dse.report.hlo_cost import ModuleCost

FORMATS: Final = ("table", "json", "trace", "dfmodel", "dot", "svg")

#: Forms of the graph alone, which no machine has a part in.
GRAPHS: Final = ("dfmodel", "dot", "svg")

#: Options of these files alone, and what they are unless given.
DEFAULTS: Final[dict[str, Any]] = {"system": None, "barriers": "barrier"}

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
        "--barriers",
        choices=["barrier", "element"],
        default=argparse.SUPPRESS,
        help="whether arrays that pass a barrier wait for all of them, or for themselves (default: barrier)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, write."""
    from costmodel.errors import DseError
    from dse.export.tables import json_text
    from dse.report.hlo_cost import ModuleCost

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
    from dse.report.hlo_report import hlo_report
    from dse.report.text import show

    show(sys.stdout, lambda width: hlo_report(record, width))
    return 0


def write_graph(args: argparse.Namespace, cost: ModuleCost) -> int:
    """The module's graph for DFModel, or as a picture; what it cannot say on stderr."""
    from costmodel.profiles.dfmodel.files import graph_message, picture, setup_text

    found = cost.dataflow()
    for note in found.notes:
        print(f"dse: {args.file}: {note}", file=sys.stderr)
    if args.format == "dfmodel":
        print(setup_text(graph_message(found.graph, found.traffic)), end="")
        return 0
    from dse.report.picture import svg

    text = picture(found.graph, traffic=found.traffic)
    print(svg(text).decode() if args.format == "svg" else text, end="")
    return 0
