"""`dse importance`: which parameters matter for each objective."""

from __future__ import annotations

import argparse
import sys

from dse.cli.options import Commands, add_storage, add_study, command


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "importance",
        run,
        summary="say which parameters matter for each objective",
        about="Say which parameters tell the best trials of a study from the others, and which explain the\n"
        "objectives over the whole space, whatever the sampler has looked at.",
        examples=[
            "dse importance gpt3_175b_1024_a100",
            "dse importance gpt3_175b_1024_a100 --format json | jq .objectives.step_time_s",
        ],
    )
    add_study(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a table to read, or one JSON object (default: table)",
    )
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Find importances."""
    from dse.explaining.importance import importance
    from dse.library.study import Study

    study = Study.load(args.study, storage=args.storage)
    found = importance(study.space, study.table, study.profile)
    if args.format == "json":
        from dse.records.tables import json_text

        print(json_text({"study": study.name, **found.to_json()}))
        return 0
    from dse.records.text import show
    from dse.reporting.designs.sensitivity_report import importance_report

    show(sys.stdout, lambda width: importance_report(study.name, found, width))
    return 0
