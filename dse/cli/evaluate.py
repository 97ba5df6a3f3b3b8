"""`dse evaluate`: price one named design."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dse.cli.launch_options import add_launch_files, asked_space
from dse.cli.options import Commands, add_profile, add_space, command
from dse.cli.output import ENDINGS, checked_place, form_of, write_content, write_report, write_result
from dse.cli.sweep import EXAMPLES, FORMS, add_sweeps, run_sweep

if TYPE_CHECKING:
    from dse.pricing.profiles import SpaceRules
    from dse.report.text import Record
    from dse.spaces.space import Params, Space


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "evaluate",
        run,
        summary="price one design, or all that a sweep or a file names",
        about="Price one legal design of a space, named by --set: what a step costs, and what binds it.\n"
        "Or price many: every combination of values (--sweep), or the rows of a file (--designs).\n"
        "Parameters that are not named take the simplest value that is legal beside the others, or with\n"
        "--best those of the best design that keeps all limits.\n"
        "Or the run of a launch file, on any system: model, layout and chips are read from it.",
        examples=[
            "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --best",
            "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --set sequence_parallel=true",
            "dse evaluate --from-megatron train.sh --system h100_80g_dgx",
            *EXAMPLES,
        ],
    )
    add_space(parser, optional=True)
    add_launch_files(parser)
    parser.add_argument(
        "--best", action="store_true", help="choose what is not named for the best feasible design"
    )
    add_profile(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "parquet"],
        help="a report to read, one JSON object, or a table with a row for each design (default: what the "
        "ending of FILE says, else table)",
    )
    add_sweeps(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate the design, or the designs."""
    form = form_of(args.format, args.output, FORMS)
    checked_place(args.output)
    if args.sweep or args.designs or form not in ("table", "json"):
        return run_sweep(args)
    from dse.pricing.profiles import NATIVE, rules_for
    from dse.search.exact import priced_design

    space = asked_space(args)
    rules = rules_for(space, args.profile or NATIVE)
    params = best_design(space, rules) if args.best else space.completed({})
    say_what_was_open(space, params)
    record = priced_design(space, params, rules=rules)
    say_why_no_number(args.profile or NATIVE, space, record)
    write_result(lambda where: write(space, record, form, where), args.output, ENDINGS[form])
    return 0


def write(space: Space, record: Record, form: str, output: Path | None) -> None:
    """The design as a report, or as one JSON object."""
    if form == "json":
        from dse.export.tables import EVALUATION_KEYS, json_text

        text = json_text({key: record[key] for key in EVALUATION_KEYS if key in record})
        write_content([f"{text}\n".encode()], form, output)
        return
    from dse.report.study_report import evaluation_report

    write_report(lambda width: evaluation_report(space, record, width), output)


def best_design(space: Space, rules: SpaceRules) -> Params:
    """The design that is best in the first objective and keeps all limits.

    Raises
    ------
    DseError
        If none does.
    """
    from costmodel.errors import DseError
    from dse.search.fitting import nearest_feasible

    found = nearest_feasible(space, {}, rules)
    if found is None:
        raise DseError(
            "--best: no design with these values keeps all limits; `dse fit` finds the nearest that does"
        )
    return found.params


def say_why_no_number(profile: str, space: Space, record: Record) -> None:
    """Name what the profile has no number for, and what would do."""
    from dse.pricing.evaluation import reasons

    has_none = math.isnan(record["breakdown"]["step_time_s"])
    found = reasons(space, profile, record["params"]) if has_none else []
    if found:
        print(f"dse: profile {profile}: no number: {'; '.join(found)}", file=sys.stderr)


def say_what_was_open(space: Space, params: Params) -> None:
    """Name the parameters that the user did not, with what they were taken to be."""
    from dse.report.text import design_text

    taken = {p.name: params[p.name] for p in space.parameters if len(p.choices or "open") > 1}
    if taken:
        print(f"dse: not named by --set, so taken: {design_text(space, taken)}", file=sys.stderr)
