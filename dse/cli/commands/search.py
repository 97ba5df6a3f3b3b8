"""`dse search`: run the study of a space up to a budget, then print its Pareto front.

A study is stored batch by batch and can be resumed with the same command. The end of a search says how far the result
may be from the best."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from costmodel.errors import DseError
from dse.api.searching import opened_study
from dse.api.study import Study
from dse.cli.options import (
    DEFAULT_BUDGET,
    DEFAULT_SPACE,
    add_format,
    add_profile,
    add_space,
    add_storage,
    add_workers,
    changed_space,
    describe,
    natural,
    positive,
)
from dse.cli.progress import progress_of
from dse.cli.terminal import say
from dse.output import json_text, show, study_record, writable_directory, write_study
from dse.pricing.workers import Workers
from dse.registry import export_forms
from dse.reporting.answers import study_words
from dse.reporting.studies.nothing_feasible import nothing_feasible
from dse.reporting.study_report import certificate_text, study_report, surroundings_text
from dse.searching.batches.loop import Outcome
from dse.searching.exact.certificate import quick_certificate, surroundings
from dse.searching.trials.trial_table import Selection
from dse.spaces.space import Space


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse search`."""
    describe(
        parser,
        about="Sample a space with Optuna until its study holds `budget` finished trials in all, then print\n"
        "the Pareto front and the bottleneck of the fastest design. An existing study is continued.",
        examples=[
            "dse search --budget 500",
            "dse search llama3_70b_512_h100 --set recompute=none --study no_recompute",
            "dse search my_space.yaml --objective step_time --objective energy_per_step --out results",
            "dse search gpt_1t_codesign --focus 'system_power < 5 MW' --study frugal",
            "dse search --format json | jq '.front[0].params'",
            "dse search --profile simai --study simai --out results --emit aicb",
        ],
    )
    add_space(parser, default=DEFAULT_SPACE)
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: that of the space)")
    add_steering(parser)
    add_run(parser, str(DEFAULT_BUDGET))
    advanced = parser.add_argument_group("advanced")
    advanced.add_argument(
        "--sampler",
        metavar="NAME",
        help="sampler: screening (default), nsga2, nsga3, tpe, gp or random; fixed when a study starts",
    )
    advanced.add_argument(
        "--seed", metavar="N", type=natural, help="random seed; the same seed gives the same trials (default: 0)"
    )
    add_profile(advanced, ", fixed when a study starts")
    add_machine(advanced)
    parser.set_defaults(budget=DEFAULT_BUDGET)


def add_steering(parser: argparse._ActionsContainer) -> None:
    """Add the options that steer a search."""
    parser.add_argument(
        "--start",
        metavar="NAME=VALUE,...",
        action="append",
        default=[],
        help="evaluate this design first; unset values get the simplest legal choice; expert: the design "
        "of rules of thumb; repeatable",
    )
    parser.add_argument(
        "--warm-start",
        metavar="STUDY",
        help="evaluate the best designs of another study first, or the nearest legal ones",
    )
    parser.add_argument(
        "--robust",
        action="store_true",
        help="rank by the 95th percentile of the step time (the upper end of its 90 %% interval) instead of "
        "the expected step time",
    )
    parser.add_argument(
        "--focus",
        metavar="CONDITION",
        help="only search designs that satisfy this condition, such as 'step_time < 15 s'; '': all designs",
    )


def add_run(parser: argparse._ActionsContainer, default_budget: str) -> None:
    """Add the options that `dse search` and `dse resume` share."""
    parser.add_argument(
        "--budget",
        metavar="N",
        type=positive,
        help=f"finished trials in all, earlier runs included (default: {default_budget})",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="also write trials, front and hypervolume history to DIR, as CSV and Parquet",
    )
    parser.add_argument(
        "--emit",
        metavar="FORMAT",
        choices=[*export_forms()],
        help=f"also write each design of the front to DIR/FORMAT: {', '.join(export_forms())}",
    )
    parser.add_argument("--emit-all", action="store_true", help="--emit every finished trial instead of the front")
    add_format(parser)


def add_machine(parser: argparse._ActionsContainer) -> None:
    """Add where to evaluate, and where to store."""
    add_workers(parser)
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Start or continue the study of a space."""
    space = changed_space(args)
    prepare(args, space)
    options = ("study", "storage", "seed", "sampler", "profile", "focus", "start", "warm_start", "robust")
    return run_study(opened_study(space, **{name: getattr(args, name) for name in options}), args)


def prepare(args: argparse.Namespace, space: Space) -> None:
    """Refuse, before the search, results that cannot be written; a `DseError`."""
    if args.emit_all and not args.emit:
        raise DseError("--emit-all: needs --emit FORMAT")
    if args.emit and space.workloads:
        raise DseError("--emit: the space has several workloads; `dse export STUDY --workload NAME` writes one")
    if args.emit and not args.out:
        raise DseError(f"--emit {args.emit}: needs --out, the folder to write to")
    if args.out:
        writable_directory(args.out)


def run_study(study: Study, args: argparse.Namespace) -> int:
    """Search, print, write; 1 when nothing feasible was found."""
    workers = Workers(args.jobs, args.backend, args.scheduler)
    try:
        with progress_of(study.space, sys.stderr) as progress:
            outcome = study.run(args.budget, jobs=workers, progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; every stored trial is kept. Continue: dse resume {study_words(study.name, args.storage)}"
        ) from None
    warn(study, outcome, args)
    table = study.table
    report(study, args)
    if args.out:
        write_study(study, args.out)
    if args.emit:
        from dse.api.exports import write_artefacts  # imports every exporter

        part: Selection = "trials" if args.emit_all else "front"
        write_artefacts(study, args.out / args.emit, part, args.emit, note=say)
    if table.feasible.any():
        return 0
    say(nothing_feasible(study.space, table.each_record(), study.profile))
    return 1


def warn(study: Study, outcome: Outcome, args: argparse.Namespace) -> None:
    """Print notes on the run to stderr."""
    if outcome.failed:
        say(f"{outcome.failed} trials that another process left unfinished are marked as failed")
    if outcome.exhausted:
        counted = study.space.outer.count == outcome.complete
        legal = study.space.legal.count
        every = "the one legal design is" if legal == 1 else f"all {legal:.0f} legal designs are"
        ended = (
            f"{every} evaluated" + ("" if study.space.inner else ", so the front is exact")
            if counted
            else f"no legal design was found besides the {outcome.complete} evaluated"
        )
        say(f"{ended}; the budget of {study.budget} is not used up")
    elif not outcome.added:
        say(f"study {study.name} holds {outcome.complete} finished trials already; a larger --budget adds more")


def report(study: Study, args: argparse.Namespace) -> None:
    """The results, to stdout."""
    certified = quick_certificate(study)
    around = None if certified else surroundings(study)
    if args.format == "json":
        known = {"certificate": asdict(certified)} if certified else {"surroundings": around and asdict(around)}
        print(json_text(study_record(study) | known))
        return
    show(sys.stdout, lambda width: study_report(study, width, storage=args.storage))
    if certified:
        show(sys.stdout, lambda width: ["", certificate_text(study.space, certified)])
    elif around:
        show(sys.stdout, lambda width: ["", surroundings_text(around)])
