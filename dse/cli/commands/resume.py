"""`dse resume`: continue a study, whose database holds its space, model and system."""

from __future__ import annotations

import argparse

from dse.api.study import Study
from dse.cli.commands.search import add_machine, add_run, prepare, run_study
from dse.cli.options import add_study, describe


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse resume`."""
    describe(
        parser,
        about="Continue a study until it holds `budget` finished trials in all. Its database holds the\n"
        "space, the model and the system.",
        examples=["dse resume gpt3_175b_1024_a100", "dse resume gpt3_175b_1024_a100 --budget 2000"],
    )
    add_study(parser)
    add_run(parser, "that of the last run")
    add_machine(parser.add_argument_group("advanced"))


def run(args: argparse.Namespace) -> int:
    """Continue a study by its name; 1 when nothing feasible was found."""
    study = Study.load(args.study, storage=args.storage)
    prepare(args, study.space)
    return run_study(study, args)
