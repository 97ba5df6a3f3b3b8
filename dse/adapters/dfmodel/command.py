"""DFModel set-ups in `dse evaluate`: values of options, the command, and the JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import file_bytes
from costmodel.formats.quantity import readable
from costmodel.rules.registry import profile_named
from dse.adapters.dfmodel.files.setup_files import LARGEST, as_text
from dse.adapters.dfmodel.report import DfmodelReport, Wanted, dfmodel_report, evaluated_file, figures, shortages
from dse.cli.output import write_answer
from dse.cli.terminal import say

#: Generation -> others whose files look the same, but gen1b in exchanges, gen2a in text and gen2b in latencies.
ALIKE: Final = {"gen1": ("gen1b", "gen2a"), "gen3": ("gen2b", "gen4", "gen5"), "gen4": ("gen5",)}


def run(args: argparse.Namespace) -> int:
    """Evaluate a DFModel set-up, text or binary, by the rules of one generation of DFModel."""
    wanted, asked = Wanted(args.resolve, args.prefer, args.groups, args.tile_size), args.profile_is_asked_for
    answer, report = _evaluated(args.design, args.profile, asked, wanted, lambda line: say(f"{args.design}: {line}"))
    write_answer(args.format, answer, lambda width: dfmodel_report(report), args.output)
    return 0


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a set-up; `options` are fields of `Wanted`."""
    return _evaluated(path, profile, asked, Wanted(**options), note)[0]


def _evaluated(
    path: Path, profile: str, asked: bool, wanted: Wanted, note: Callable[[str], None]
) -> tuple[dict[str, Any], DfmodelReport]:
    """The JSON of a set-up and its report; notes name other generations, and resources that are too small."""
    report = evaluated_file(path, generation=profile_named(profile).version, wanted=wanted)
    for line in () if asked else other_times(path, profile, wanted, report):
        note(line)
    for line in shortages(report.file.graph, report.setup, report.groups, report.evaluation):
        note(f"does not fit: {line}")
    return {"file": str(path), "profile": profile, **figures(report)}, report


def other_times(path: Path, profile: str, wanted: Wanted, report: DfmodelReport) -> Iterator[str]:
    """A note if other generations, whose files look like this one, take another time for it; with these times."""
    chosen, time = profile_named(profile).version, report.evaluation.iteration_time.item()
    others, setup, text = {}, report.setup, as_text(file_bytes(path, LARGEST))
    apart = {"gen1b": setup.roles, "gen2a": text is not None, "gen2b": setup.link_latency.any()}
    for other in (other for other in ALIKE.get(chosen, ()) if not apart.get(other)):
        try:
            of_other = evaluated_file(path, generation=other, wanted=wanted).evaluation.iteration_time.item()
        except DseError:
            others[other] = "none"
        else:
            others |= {} if isclose(time, of_other) else {other: readable(of_other, "s", digits=6)}
    if others:
        times = ", ".join(map(" ".join, {chosen: readable(time, "s", digits=6), **others}.items()))
        yield f"evaluated by {chosen}; files of other generations look like it: {times}; choose by --profile"
