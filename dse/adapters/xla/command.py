"""HLO modules: evaluated by the native model on a system."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from costmodel.errors import DseError
from dse.adapters.xla.report.cost_record import USUAL_SYSTEM, ModuleCost, hlo_report, program_page
from dse.cli.output import write_answer, write_content
from dse.cli.terminal import say


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a module; `options` are `barriers`, `system` and `large`."""
    large = options.get("large", False)
    return ModuleCost.of(path, options.get("barriers", "barrier"), options.get("system"), large=large).record()


def run(args: argparse.Namespace) -> int:
    """Evaluate a compiled program, and write its time and memory."""
    cost = ModuleCost.of(args.design, args.barriers, args.system, large=args.large)
    if cost.system and not args.system:
        say(f"{args.design}: no --system, so evaluated on {USUAL_SYSTEM}")
    if args.format == "html":
        if not cost.system:
            raise DseError(f"{args.design}: runs no kernels, so there is no page; leave out -o")
        write_content([program_page(cost).encode()], args.format, args.output)
    else:
        answer = cost.record()
        write_answer(args.format, answer, lambda width: hlo_report(answer, width), args.output)
    return 0
