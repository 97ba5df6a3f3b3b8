"""`dse tune`: which layout of a plan to run next on the real cluster, from the runs so far."""

from __future__ import annotations

import argparse
from pathlib import Path

from costmodel.errors import DseError
from dse.api.study import Study
from dse.api.tuning import learned_system, replay, tell_log
from dse.cli.options import add_format, add_storage, describe, natural, physical, positive
from dse.cli.output import write_answer, write_content
from dse.cli.terminal import say
from dse.reporting.tuning_report import replay_report, tuning_report
from dse.tuning.replay import RUNS
from dse.tuning.study_candidates import tuning
from dse.tuning.told_runs import FAILURES, remove


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse tune`."""
    describe(
        parser,
        about="Choose the layout to run next on your cluster. Each run that you report (step time, memory, or its\n"
        "log) changes the next choice; failures count too. It stops when 2 % more speed is unlikely.\n"
        "--replay shows how soon tuning finds the best layout of measured sweeps.",
        examples=[
            "dse tune plan_llama3_70b_256",
            "dse tune plan_llama3_70b_256 --tell 0 --step-time 9.8s --peak-memory 71GB",
            "dse tune plan_llama3_70b_256 --tell 3 --log run.log",
            "dse tune plan_llama3_70b_256 --tell 3 --failed oom",
            "dse tune plan_llama3_70b_256 --parallel 4",
            "dse tune --replay sweeps.csv --format json",
        ],
    )
    parser.add_argument("study", metavar="STUDY", nargs="?", help="study of a plan; `dse studies` lists them")
    told = parser.add_argument_group("report a run")
    told.add_argument("--tell", metavar="N", type=natural, help="number of the trial that ran")
    told.add_argument("--step-time", metavar="SECONDS", type=physical("s", "9.8s"), help="time of a step after warm-up")
    told.add_argument(
        "--peak-memory", metavar="SIZE", type=physical("B", "71GB"),
        help="peak memory that the framework's allocator reserved on a GPU",
    )  # fmt: skip
    told.add_argument("--failed", choices=FAILURES, help="the run died: out of memory (oom), or otherwise")
    told.add_argument("--software", metavar="NAME", default="", help="framework and release of the run")
    told.add_argument(
        "--log", metavar="FILE", type=Path,
        help="log of the run: Megatron-LM, Megatron-Bridge, torchtitan, MaxText, nanotron, or JSON lines",
    )  # fmt: skip
    told.add_argument("--forget", metavar="RUN", help="remove a run that was reported by mistake")
    parser.add_argument("--parallel", metavar="K", type=positive, default=1, help="number of runs at once (default: 1)")
    parser.add_argument("--save-system", metavar="FILE", type=Path, help="write the system with constants from runs")
    parser.add_argument("--replay", metavar="CSV", type=Path, help="replay measured sweeps (column group)")
    parser.add_argument(
        "--runs", metavar="N", type=positive, default=RUNS, help=f"runs of each group of --replay (default: {RUNS})"
    )
    add_format(parser)
    add_storage(parser.add_argument_group("advanced"))


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
