"""`dse tune`: which layout of a plan to run next on the real cluster, from the runs so far."""

from __future__ import annotations

import argparse

from costmodel.errors import DseError
from dse.api.study import Study
from dse.cli.output import write_answer, write_content
from dse.cli.terminal import say
from dse.reporting.answers import study_words
from dse.reporting.tuning_report import replay_report, tuning_report
from dse.tuning.replay import replay
from dse.tuning.study_candidates import impossible, learned_system, remove, tell_log, tuning


def run(args: argparse.Namespace) -> int:
    """Store a run, or choose the next one."""
    if args.replay:
        return replayed(args)
    if not args.study:
        raise DseError("name a STUDY (`dse studies` lists them), or --replay CSV")
    study = Study.load(args.study, storage=args.storage)
    if args.tell is None and (args.log or args.step_time or args.peak_memory or args.failed or args.software):
        raise DseError("--tell N: name the trial that ran")
    if args.forget and args.tell is not None:
        raise DseError("--forget and --tell: choose one")
    if args.forget:
        remove(study, args.forget)
        say(f"removed run {args.forget}")
    elif args.tell is not None:
        tell(args, study)
    return proposed(args, study)


def tell(args: argparse.Namespace, study: Study) -> None:
    """Store a run."""
    if args.log:
        if args.step_time or args.failed or args.peak_memory or args.software:
            raise DseError("--log: has all of a run; leave out --step-time, --peak-memory, --failed and --software")
        told = tell_log(study, args.tell, args.log)
    elif args.step_time or args.failed:
        told = study.tell(args.tell, step_time=args.step_time, peak_memory=args.peak_memory,
                          failed=args.failed or "", software=args.software)  # fmt: skip
    else:
        raise DseError(f"--tell {args.tell}: give --step-time, --failed or --log")
    say(f"stored run {told.id} of trial {told.trial}")
    if faults := impossible(study, told):
        say(f"{faults}; a mistake is removed by `dse tune {study_words(study.name, args.storage)} --forget {told.id}`")


def proposed(args: argparse.Namespace, study: Study) -> int:
    """Print the next runs."""
    tuned = tuning(study, args.parallel)
    if args.save_system:
        write_content([learned_system(study, tuned.learned).encode()], "yaml", args.save_system)
        say(f"wrote {args.save_system}")
    record = {"study": study.name, **tuned.to_json()}
    write_answer(args.format, record, lambda width: tuning_report(study, tuned, width, args.storage))
    return 0


def replayed(args: argparse.Namespace) -> int:
    """Print how soon tuning finds the best layouts of measured sweeps."""
    if args.study or args.tell is not None:
        raise DseError("--replay: takes no STUDY and no --tell")
    record = replay(args.replay, args.runs)
    write_answer(args.format, record, lambda width: replay_report(record, width))
    return 0
