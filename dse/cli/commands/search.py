"""`dse search`: run the study of a space up to a budget, then print its Pareto front.

A study is stored batch by batch and can be resumed with the same command. The end of a search says how far the result
may be from the best."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from costmodel.errors import DseError
from dse.api.searching import opened_study
from dse.api.study import Study
from dse.cli.options import changed_space
from dse.cli.output import write_json, write_report
from dse.cli.progress import progress_of
from dse.cli.terminal import say
from dse.output import Report, study_record, writable_directory, write_study
from dse.pricing.workers import Workers
from dse.reporting.answers import study_words
from dse.reporting.studies.nothing_feasible import nothing_feasible
from dse.reporting.study_report import certificate_text, study_report, surroundings_text
from dse.searching.batches.loop import Outcome
from dse.searching.exact.certificate import quick_certificate, remembered_front, surroundings
from dse.searching.trials.trial_table import Selection
from dse.spaces.space import Space


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
    certified = quick_certificate(study)
    around = None if certified else surroundings(study)
    if args.format == "json":
        known = {"certificate": asdict(certified)} if certified else {"surroundings": around and asdict(around)}
        write_json(study_record(study) | known, None)
    else:
        below: Report = ["", certificate_text(study.space, certified)] if certified else []
        below += ["", surroundings_text(around)] if around else []
        write_report(lambda width: [*study_report(study, width, storage=args.storage), *below], None)
    if args.out:
        write_study(study, args.out)
    if args.emit:
        from dse.api.exports import write_artefacts  # imports every exporter

        part: Selection = "trials" if args.emit_all else "front"
        write_artefacts(study, args.out / args.emit, part, args.emit, note=say)
    if table.feasible.any():
        return 0
    whole = remembered_front(study)
    among = f" among all {whole.legal:,}" if whole else ""
    say(nothing_feasible(study.space, table.each_record(), study.profile, among))
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
