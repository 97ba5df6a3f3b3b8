"""`dse compare`: two studies, two systems, or a study under another cost model or on another system."""

from __future__ import annotations

import argparse

from costmodel import load_system
from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.rules.registry import design_profiles
from dse.api.design_files import is_launch
from dse.api.launch_files import compare_launches
from dse.api.study import Study
from dse.cli.options import add_format, add_launch, add_storage, describe, physical, require_system
from dse.cli.output import write_answer
from dse.cli.terminal import say
from dse.reporting.designs.side_by_side_report import differing, pair_report, system_report
from dse.reporting.studies.comparison import comparison, comparison_report, study_pair, study_pair_report, usual_profile


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse compare`."""
    describe(
        parser,
        about="Compare two launch files (faster or slower, and which settings make the difference), two\n"
        "studies (fronts, dominance, best designs) or two systems (quantities that differ). With one\n"
        "study and --system or --profile, evaluate its feasible designs there too and compare the\n"
        "ranking by the first objective.",
        examples=[
            "dse compare old.sh new.sh --system h100",
            "dse compare old.sh new.sh --system h100 --max-memory 80GB --max-step-time 15",
            "dse compare gpt3_175b_1024_a100 gpt3_without_sp",
            "dse compare gpt3_175b_1024_a100 --system h100",
            "dse compare a100_80g_dgx h100_80g_dgx      also files: ./mychip.yaml",
            "dse compare gpt3_175b_1024_a100 --profile simai --format json | jq .rank_correlation",
        ],
    )
    parser.add_argument("study", metavar="A", help="launch file, study (`dse studies`), system or system file")
    parser.add_argument("other", metavar="B", nargs="?", help="second launch file, study or system")
    add_launch(parser, "system of the launch files; or second system for study A")
    parser.add_argument(
        "--max-memory", metavar="SIZE", type=physical("B", "80GB"),
        help="exit with 1 if the second launch file needs more memory on a GPU, such as 80GB",
    )  # fmt: skip
    parser.add_argument(
        "--max-step-time", metavar="SECONDS", type=physical("s", "15"),
        help="exit with 1 if a step of the second launch file takes longer, such as 15",
    )  # fmt: skip
    add_format(parser)
    advanced = parser.add_argument_group("advanced")
    advanced.add_argument(
        "--profile",
        choices=design_profiles(),
        help="second cost model for study A (default: native, or simai for a native study)",
    )
    add_storage(advanced)


def run(args: argparse.Namespace) -> int:
    """Compare studies, systems or cost models."""
    if args.other and is_launch(args.study) and is_launch(args.other):
        return launches(args)
    if args.max_memory or args.max_step_time or args.gpus or args.framework:
        raise DseError("--max-memory, --max-step-time, --gpus, --framework: only with two launch files")
    if sum(map(bool, (args.other, args.profile, args.system))) > 1:
        raise DseError("compare: another study, --profile and --system: name one of them")
    built_in = shipped.names("systems")
    words = [word for word in (args.study, args.other) if word]
    systems = [w for w in words if shipped.current_name(w, "systems") in built_in or w.endswith((".yaml", ".yml"))]
    if len(systems) == 2:
        return machines(args.study, args.other, args.format)
    if systems and args.other:
        raise DseError(f"compare: {systems[0]} is a system, the other a study; use STUDY --system {systems[0]}")
    study = Study.load(args.study, storage=args.storage)
    if args.other:
        return side_by_side(study, Study.load(args.other, storage=args.storage), args.format)
    result = comparison(study, args.profile or (None if args.system else usual_profile(study)), args.system)
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


def machines(one: str, other: str, form: str) -> int:
    """Two systems."""
    both = load_system(one), load_system(other)
    record = {"systems": [one, other], "quantities": differing(*both)}
    write_answer(form, record, lambda width: system_report(*both, width))
    return 0


def side_by_side(one: Study, other: Study, form: str) -> int:
    """Two studies."""
    pair = study_pair(one, other)
    write_answer(form, pair.to_json(), lambda width: study_pair_report(pair, width))
    return 0
