"""DFModel set-ups in `dse evaluate`: values of options, the command, and the JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from costmodel.rules.registry import profile_named
from dse.adapters.dfmodel.report import Wanted, dfmodel_report, evaluated_file, figures, shortages
from dse.cli.output import write_answer
from dse.cli.terminal import say


def run(args: argparse.Namespace) -> int:
    """Evaluate a DFModel set-up, text or binary, by the rules of one generation of DFModel."""
    wanted = Wanted(args.resolve, args.prefer, args.groups, args.tile_size)
    report = evaluated_file(args.design, generation=profile_named(args.profile).version, wanted=wanted)
    if args.profile == "dfmodel-gen3" and not args.profile_is_asked_for:
        say(f"{args.design}: evaluated by gen3; gen2b, gen4 and gen5 have files like this: see --profile")
    for line in shortages(report.file.graph, report.setup, report.groups, report.evaluation):
        say(f"{args.design}: does not fit: {line}")
    answer = {"file": str(args.design), "profile": args.profile, **figures(report)}
    write_answer(args.format, answer, lambda width: dfmodel_report(report), args.output)
    return 0


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a set-up; `options` are fields of `Wanted`."""
    report = evaluated_file(path, generation=profile_named(profile).version, wanted=Wanted(**options))
    return {"file": str(path), "profile": profile, **figures(report)}
