"""`dse plan`: from a model and a number of chips straight to the best layouts."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from shlex import quote

from dse.cli.progress import progress_of
from dse.exporting.launch.forms import LAUNCH_FORMS
from dse.library.searching import PlannedStudy, plan
from dse.pricing.workers import Workers
from dse.records.tables import json_text, study_record
from dse.records.text import show
from dse.reporting.study_report import plan_report


def run(args: argparse.Namespace) -> int:
    """Plan; 1 when nothing fits."""
    sequences, batch_tokens = args.global_batch_size or (None, None)
    own = (
        "gpus",
        "system",
        "seq_len",
        "tokens",
        "max_days",
        "framework",
        "imbalance",
        "headroom",
        "objective",
        "budget",
        "study",
    )
    found = plan(
        args.model,
        **{name: getattr(args, name) for name in (*own, "save", "storage")},
        global_batch_size=sequences,
        batch_tokens=batch_tokens,
        precision=[word.strip() for word in args.precision.split(",") if word.strip()],
        jobs=Workers(args.jobs, args.backend, args.scheduler),
        progress_of=lambda space: progress_of(space, sys.stderr),
        note=lambda text: print(f"dse: {text}", file=sys.stderr),
    )
    write(args, found)
    return 0 if found.study.table.feasible.any() else 1


def write(args: argparse.Namespace, found: PlannedStudy) -> None:
    """The results, to stdout."""
    study, legal = found.study, found.legal
    if args.format == "json":
        counted = {} if legal is None else {"n_legal": legal[0], "n_legal_infeasible": legal[1]}
        faster = asdict(found.faster) if found.faster else None
        more = {"exact": legal is not None, **counted, "any_software": faster, "assumed": [*found.assumed]}
        print(json_text(study_record(study) | more | {"space_file": str(args.save) if args.save else None}))
        return
    notes = [str(found.faster)] if found.faster else []
    show(sys.stdout, lambda width: plan_report(study, str(found), notes, next_commands(args, found), width))


def next_commands(args: argparse.Namespace, found: PlannedStudy) -> list[str]:
    """Commands that launch the best layout and explain it."""
    study = found.study
    best = study.table.front().numbers[0]
    usual, framework = found.planned.space.system.framework, found.planned.framework
    forms = framework.launch if found.planned.runnable and usual in ("", framework.name) else ()
    storage = f" --storage {quote(args.storage)}" if args.storage else ""
    exported = [
        f"dse export {quote(study.name)}{storage} --trial {best} --format {form} -o train{LAUNCH_FORMS[form]}"
        for form in forms[:1]
    ]
    return [*exported, f"dse explain {quote(study.name)}{storage}"]
