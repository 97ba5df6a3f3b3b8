"""`dse tune`: which layout of a plan to run next on the real cluster, from the runs so far."""

from __future__ import annotations

import argparse

from dse.api.study import Study
from dse.cli.output import write_answer, write_content
from dse.cli.terminal import say
from dse.reporting.answers import study_words
from dse.reporting.tuning_report import replay_report, tuning_report
from dse.tuning.replay import replay
from dse.tuning.study_candidates import impossible, learned_system, remove, tell_log, tuning


def run(args: argparse.Namespace) -> int:
    """Store a run, and print the next ones; or replay measured sweeps."""
    if args.replay:
        shares = replay(args.replay, args.runs)
        write_answer(args.format, shares, lambda width: replay_report(shares, width))
        return 0
    study = Study.load(args.study, storage=args.storage)
    if args.forget:
        remove(study, args.forget)
        say(f"removed run {args.forget}")
    elif args.tell is not None:
        tell(args, study)
    tuned = tuning(study, args.parallel)
    if args.save_system:
        write_content([learned_system(study, tuned.learned).encode()], "yaml", args.save_system)
        say(f"wrote {args.save_system}")
    record = {"study": study.name, **tuned.to_json()}
    write_answer(args.format, record, lambda width: tuning_report(study, tuned, width, args.storage))
    return 0


def tell(args: argparse.Namespace, study: Study) -> None:
    """Store a run."""
    if args.log:
        told = tell_log(study, args.tell, args.log)
    else:
        told = study.tell(args.tell, step_time=args.step_time, peak_memory=args.peak_memory,
                          failed=args.failed or "", software=args.software)  # fmt: skip
    say(f"stored run {told.id} of trial {told.trial}")
    if faults := impossible(study, told):
        say(f"{faults}; a mistake is removed by `dse tune {study_words(study.name, args.storage)} --forget {told.id}`")
