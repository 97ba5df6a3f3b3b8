"""HLO modules: evaluated by the native model on a system."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from dse.adapters.xla.report.cost_record import ModuleCost, hlo_report, program_page
from dse.cli.output import write_content, write_json, write_report
from dse.cli.terminal import say

#: The machine of a module for which none is named.
USUAL_SYSTEM: Final = "a100_80g_dgx"


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a module; `options` are `barriers` and `system`."""
    cost = ModuleCost.of(path, options.get("barriers", "barrier"), options.get("system"))
    return (cost if "system" in options or not cost.program.kernels else cost.on(USUAL_SYSTEM)).record()


def run(args: argparse.Namespace) -> int:
    """Evaluate a compiled program, and write its time and memory."""
    cost = ModuleCost.of(args.design, args.barriers, args.system)
    if not args.system and cost.program.kernels:
        say(f"{args.design}: no --system, so evaluated on {USUAL_SYSTEM}")
        cost = cost.on(USUAL_SYSTEM)
    if args.format == "json":
        write_json(cost.record(), args.output)
    elif args.format == "html":
        if not cost.system:
            raise DseError(f"{args.design}: runs no kernels, so there is no page; leave out -o")
        write_content([program_page(cost).encode()], args.format, args.output)
    else:
        record = cost.record()
        write_report(lambda width: hlo_report(record, width), args.output)
    return 0
