"""`dse search` and `dse resume`: run a study up to a budget, then say what was found."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from shlex import quote

from costmodel.errors import DseError
from dse.cli.chosen import changed_space
from dse.cli.progress import progress_of
from dse.cli.terminal import say
from dse.library.searching import opened_study
from dse.library.study import Study
from dse.pricing.workers import Workers
from dse.records.tables import json_text, study_record, writable_directory, write_study
from dse.records.text import show
from dse.reporting.studies.nothing_feasible import nothing_feasible
from dse.reporting.study_report import certificate_text, study_report
from dse.searching.batches.loop import Outcome
from dse.searching.exact.certificate import quick_certificate
from dse.searching.trials.trial_table import Selection
from dse.spaces.space import Space


def run_search(args: argparse.Namespace) -> int:
    """Start or continue the study of a space."""
    space = changed_space(args)
    prepare(args, space)
    options = ("study", "storage", "seed", "sampler", "profile", "focus", "start", "warm_start", "robust")
    return run_study(opened_study(space, **{name: getattr(args, name) for name in options}), args)


def run_resume(args: argparse.Namespace) -> int:
    """Continue a study by its name."""
    study = Study.load(args.study, storage=args.storage)
    prepare(args, study.space)
    return run_study(study, args)


def prepare(args: argparse.Namespace, space: Space) -> None:
    """Find out before the search, not after it, that results cannot be written."""
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
        write_study(study, args.out)
    if args.emit:
        from dse.exporting.artefacts import write_artefacts  # all that other programs read: long to import

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
    certified = quick_certificate(study)
    if args.format == "json":
        certificate = {"certificate": asdict(certified)} if certified else {}
        print(json_text(study_record(study) | certificate))
        return
    show(sys.stdout, lambda width: study_report(study, width, storage=args.storage))
    if certified:
        show(sys.stdout, lambda width: ["", certificate_text(study.space, certified)])
