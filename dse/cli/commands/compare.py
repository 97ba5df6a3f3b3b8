"""`dse compare`: two studies, two systems, or a study under another cost model or on another system."""

from __future__ import annotations

import argparse
from pathlib import Path

from costmodel import load_system
from costmodel.errors import DseError
from costmodel.formats import shipped
from dse.api.design_files import launch_form
from dse.api.launch_files import compare_launches
from dse.api.study import Study
from dse.cli.options import require_system
from dse.cli.output import write_answer
from dse.cli.terminal import say
from dse.reporting.designs.side_by_side_report import differing, pair_report, system_report
from dse.reporting.studies.comparison import comparison, comparison_report, study_pair, study_pair_report


def run(args: argparse.Namespace) -> int:
    """Compare studies, systems or cost models."""
    if args.other and launch_form(args.study) and launch_form(args.other):
        return launches(args)
    if args.max_memory or args.max_step_time or args.gpus or args.framework:
        raise DseError("--max-memory, --max-step-time, --gpus, --framework: only with two launch files")
    if sum(map(bool, (args.other, args.profile, args.system))) > 1:
        raise DseError("compare: another study, --profile and --system: name one of them")
    built_in = shipped.names("systems")
    words = [word for word in (args.study, args.other) if word]
    systems = [w for w in words if shipped.current_name(w, "systems") in built_in or w.endswith((".yaml", ".yml"))]
    if len(systems) == 2:
        both = load_system(args.study), load_system(args.other)
        quantities = {"systems": [args.study, args.other], "quantities": differing(*both)}
        write_answer(args.format, quantities, lambda width: system_report(*both, width))
        return 0
    if systems and args.other:
        raise DseError(f"compare: {systems[0]} is a system, the other a study; use STUDY --system {systems[0]}")
    if file := next((word for word in words if Path(word).is_file()), ""):
        raise DseError(f"compare: {file}: expected a launch file or a system; name two of one kind, or two studies")
    study = Study.load(args.study, storage=args.storage)
    if args.other:
        pair = study_pair(study, Study.load(args.other, storage=args.storage))
        write_answer(args.format, pair.to_json(), lambda width: study_pair_report(pair, width))
        return 0
    result = comparison(study, args.profile, args.system)
    write_answer(args.format, result.record(), lambda width: comparison_report(result, width))
    return 0


def launches(args: argparse.Namespace) -> int:
    """Two launch files; 1 where the second one exceeds a limit or does not fit."""
    require_system(args.system, args.study)
    pair = compare_launches(
        args.study, args.other, system=args.system, gpus=args.gpus, framework=args.framework, note=say
    )
    exceeded = pair.exceeded(args.max_memory, args.max_step_time)
    record = {**pair.to_json(), "exceeded": exceeded}
    write_answer(args.format, record, lambda width: pair_report(pair, exceeded, width))
    return 1 if exceeded else 0
