"""`dse search` and `dse resume`: run a study up to a budget, then say what was found."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

from dse.cli.options import (
    DEFAULT_BUDGET,
    DEFAULT_SPACE,
    EXPORTED,
    Commands,
    add_profile,
    add_robust,
    add_space,
    add_storage,
    add_workers,
    changed_space,
    command,
    natural,
    positive,
)
from dse.cli.terminal import say

if TYPE_CHECKING:
    from dse.library.study import Study
    from dse.searching.batches.loop import Outcome
    from dse.searching.trials.trial_table import Selection
    from dse.spaces.space import Params, Space


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add both commands."""
    register_search(commands)
    resume = command(
        commands,
        "resume",
        run_resume,
        summary="continue a study",
        about="Continue a study until it holds `budget` finished trials in all. The database is all it\n"
        "needs: the space, its model and its system are stored in the study.",
        examples=["dse resume gpt3_175b_1024_a100", "dse resume gpt3_175b_1024_a100 --budget 2000"],
    )
    resume.add_argument("study", metavar="STUDY", help="name of a study (`dse studies` lists them)")
    add_run(resume, "that of the last run")


def register_search(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add `dse search`."""
    search = command(
        commands,
        "search",
        run_search,
        summary="search a space for the designs that nothing beats",
        about="Search a space: run its study, or continue it, until it holds `budget` finished trials\n"
        "in all. Then print the Pareto front, and what binds the fastest design.",
        examples=[
            "dse search --budget 500",
            "dse search llama3_70b_512_h100 --set recompute=none --study no_recompute",
            "dse search my_space.yaml --objective step_time --objective energy_per_step --out results",
            "dse search --format json | jq '.front[0].params'",
            "dse search --profile simai --study simai --out results --emit aicb",
            "dse search --profile dfmodel-gen3 --set vpp=1 --set recompute=none --study dfmodel",
        ],
    )
    add_space(search, default=DEFAULT_SPACE)
    search.add_argument("--study", metavar="NAME", help="name of the study (default: that of the space)")
    search.add_argument(
        "--sampler",
        metavar="NAME",
        help="what proposes designs: screening (default), nsga2, nsga3, tpe, gp or random; settled when a "
        "study starts",
    )
    search.add_argument(
        "--seed",
        metavar="N",
        type=natural,
        help="source of randomness: the same seed gives the same trials (default: 0)",
    )
    add_steering(search)
    add_profile(search, ", settled when a study starts")
    add_run(search, str(DEFAULT_BUDGET))
    search.set_defaults(budget=DEFAULT_BUDGET)


def add_steering(parser: argparse.ArgumentParser) -> None:
    """Where a search starts, and what it seeks."""
    parser.add_argument(
        "--start",
        metavar="NAME=VALUE,...",
        action="append",
        default=[],
        help="evaluate this design first, the rest of it as simple as is legal; or expert, the design that "
        "rules of thumb give; repeatable",
    )
    parser.add_argument(
        "--warm-start",
        metavar="STUDY",
        help="evaluate the best designs of another study first, or the nearest to them that are legal here",
    )
    add_robust(parser)
    parser.add_argument(
        "--focus",
        metavar="CONDITION",
        help="seek designs of this kind alone from now on, such as 'step_time < 15 s'; '' seeks all again",
    )


def add_run(parser: argparse.ArgumentParser, default_budget: str) -> None:
    """What both commands take."""
    parser.add_argument(
        "--budget",
        metavar="N",
        type=positive,
        help=f"finished trials in all, earlier runs included (default: {default_budget})",
    )
    add_workers(parser)
    add_storage(parser)
    for former in ("--accept-changes", "--reprice"):
        parser.add_argument(former, action=FormerOption, nargs=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="also write trials, front and hypervolume history there, as CSV and Parquet",
    )
    parser.add_argument(
        "--emit",
        metavar="FORMAT",
        choices=EXPORTED,
        help="also write each design of the front for other programs, under DIR/FORMAT: "
        f"{', '.join(EXPORTED)}",
    )
    parser.add_argument(
        "--emit-all", action="store_true", help="--emit every finished trial, not the front alone"
    )
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )


class FormerOption(argparse.Action):
    """An option of earlier versions: what to do instead, in a line."""

    def __call__(self, _: argparse.ArgumentParser, __: argparse.Namespace, ___: Any, option: str | None = None
                 ) -> NoReturn:  # fmt: skip
        from costmodel.errors import DseError

        raise DseError(
            f"{option}: is gone: a study keeps the prices that it has; begin anew from its best designs: "
            "`dse search ... --study NEW --warm-start STUDY`"
        )


def run_search(args: argparse.Namespace) -> int:
    """Start or continue the study of a space."""
    from dse.library.study import Study

    space = changed_space(args)
    space = space.robust() if args.robust else space
    prepare(args, space)
    starts = starts_of(args, space)
    study = Study.open(
        space,
        args.study,
        storage=args.storage,
        seed=args.seed,
        sampler=args.sampler,
        profile=args.profile,
    )
    study.steer(args.focus, starts)
    return run_study(study, args)


def starts_of(args: argparse.Namespace, space: Space) -> dict[str, Params]:
    """Designs to start from, found and checked before a study comes into being, as its focus is."""
    from costmodel.errors import DseError
    from dse.library.study import Study
    from dse.pricing.space_rules import NATIVE, rules_for
    from dse.searching.samplers.samplers import DEFAULT_SAMPLER
    from dse.searching.starting_designs import front_designs, named_starts

    rules = rules_for(space, args.profile or NATIVE)
    if args.focus:
        space.within_focus(args.focus)
        if args.sampler not in (None, DEFAULT_SAMPLER):
            raise DseError(f"--focus needs sampler {DEFAULT_SAMPLER}, not {args.sampler}")
    starts = named_starts(space, args.start, rules)
    if args.warm_start:
        starts |= front_designs(Study.load(args.warm_start, storage=args.storage), space, rules)
    space.with_layouts(starts)
    return starts


def run_resume(args: argparse.Namespace) -> int:
    """Continue a study by its name."""
    from dse.library.study import Study

    study = Study.load(args.study, storage=args.storage)
    prepare(args, study.space)
    return run_study(study, args)


def prepare(args: argparse.Namespace, space: Space) -> None:
    """Find out before the search, not after it, that results cannot be written."""
    from costmodel.errors import DseError
    from dse.records.tables import writable_directory

    if args.emit_all and not args.emit:
        raise DseError("--emit-all: needs --emit, which says in what form")
    if args.emit and space.workloads:
        raise DseError(
            "--emit: the space has several workloads; `dse export STUDY --workload NAME` writes one"
        )
    if args.emit and not args.out:
        raise DseError(f"--emit {args.emit}: needs --out, the folder to write to")
    if args.out:
        writable_directory(args.out)


def run_study(study: Study, args: argparse.Namespace) -> int:
    """Search, report, write; 1 when nothing feasible was found."""
    from dse.cli.terminal import progress_of
    from dse.pricing.workers import Workers
    from dse.reporting.studies.nothing_feasible import nothing_feasible

    workers = Workers(args.jobs, args.backend, args.scheduler)
    try:
        with progress_of(study.space, sys.stderr) as progress:
            outcome = study.run(args.budget, jobs=workers, progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; every stored trial is kept, go on with: {resumption(study, args)}"
        ) from None
    warn(study, outcome, args)
    table = study.table
    report(study, args)
    if args.out:
        from dse.records.tables import write_study

        write_study(study, args.out)
    if args.emit:
        from dse.exporting.artefacts import write_artefacts

        part: Selection = "trials" if args.emit_all else "front"
        write_artefacts(study, args.out / args.emit, part, args.emit, note=say)
    if table.feasible.any():
        return 0
    print(f"dse: {nothing_feasible(study.space, table.each_record(), study.profile)}", file=sys.stderr)
    return 1


def resumption(study: Study, args: argparse.Namespace) -> str:
    """The command that continues an interrupted study."""
    storage = f" --storage {args.storage}" if args.storage else ""
    return f"dse resume {quote(study.name)}{storage}"


def warn(study: Study, outcome: Outcome, args: argparse.Namespace) -> None:
    """What the user should know beside the results."""
    if outcome.failed:
        print(
            f"dse: {outcome.failed} trials that another program left unfinished are marked as failed",
            file=sys.stderr,
        )
    if outcome.exhausted:
        counted = study.space.outer.count == outcome.complete
        legal = study.space.legal.count
        every = "the one legal design is" if legal == 1 else f"all {legal:.0f} legal designs are"
        ended = (
            f"{every} evaluated" + ("" if study.space.inner else ", so the front is exact")
            if counted
            else f"no legal design was found beside the {outcome.complete} evaluated"
        )
        print(f"dse: {ended}; the budget of {study.budget} is not used up", file=sys.stderr)
    elif not outcome.added:
        print(
            f"dse: study {study.name} holds {outcome.complete} finished trials already; "
            "a larger --budget adds to them",
            file=sys.stderr,
        )


def report(study: Study, args: argparse.Namespace) -> None:
    """The results, to stdout."""
    from dse.searching.exact.certificate import quick_certificate

    certified = quick_certificate(study)
    if args.format == "json":
        from dse.records.tables import json_text, study_record

        certificate = {"certificate": asdict(certified)} if certified else {}
        print(json_text(study_record(study) | certificate))
        return
    from dse.records.text import show
    from dse.reporting.study_report import certificate_text, study_report

    show(sys.stdout, lambda width: study_report(study, width))
    if certified:
        show(sys.stdout, lambda width: ["", certificate_text(study.space, certified)])
