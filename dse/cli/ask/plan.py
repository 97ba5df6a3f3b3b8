"""`dse plan`: from a model and a number of chips straight to the best layouts."""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from dse.cli.options import (
    DEFAULT_BUDGET,
    Commands,
    add_storage,
    add_workers,
    command,
    positive,
    tokens,
)

if TYPE_CHECKING:
    from dse.searching.study import BaseStudy
    from dse.spaces.question import Planned, Question
    from dse.spaces.space import Space

#: So many times as many chips are tried where none fits.
MULTIPLES = (2, 4, 8, 16, 32, 64, 128)
#: Letters of large counts.
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_AMOUNT = re.compile(r"\s*([\d_,]*\.?\d+(?:[eE]\d+)?)\s*([KMBT]?)\s*(tokens|sequences)?\s*", re.IGNORECASE)


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "plan",
        run,
        summary="the best layouts of a model on so many chips",
        about="Find out how to split a model over so many chips of a system: every legal layout is priced,\n"
        "and the fastest, the smallest and the cheapest are shown, with what binds them. They are kept as\n"
        "a study, which `dse explain` and others take. What is not said is assumed, and named.",
        examples=[
            "dse plan llama3_405b --gpus 16384 --system h100_80g_dgx --tokens 15T",
            "dse plan Qwen3-30B-A3B/config.json --gpus 64 --system h200_141g_dgx --precision bf16,fp8",
            "dse plan llama3_70b --gpus 512 --system h100_80g_dgx --seq-len 131072 --save long.yaml",
        ],
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="name of a shipped model (`dse models`), a model file, or a Hugging Face config.json",
    )
    parser.add_argument("--gpus", metavar="N", type=positive, required=True, help="chips of the run")
    parser.add_argument(
        "--system", metavar="S", required=True, help="a shipped system (`dse systems`), or a file"
    )
    add_workload(parser)
    parser.add_argument(
        "--objective",
        metavar="NAME",
        action="append",
        default=[],
        help="seek this in place of step_time and peak_memory, such as energy_per_step; repeatable",
    )
    add_output(parser)


def add_workload(parser: argparse.ArgumentParser) -> None:
    """What is run."""
    parser.add_argument(
        "--seq-len", metavar="TOKENS", type=positive, help="length of a sequence (the model's)"
    )
    parser.add_argument(
        "--global-batch-size",
        metavar="N",
        type=batch,
        help="sequences of a step, or about so many tokens: 2048, 16M tokens (by the size of the model)",
    )
    parser.add_argument(
        "--tokens", metavar="N", type=tokens, help="of the whole run, such as 15T: days and energy"
    )
    parser.add_argument("--max-days", metavar="DAYS", type=number, help="that the run of --tokens may take")
    parser.add_argument(
        "--precision",
        metavar="FORMAT,...",
        default="",
        help="formats of products to choose from: bf16 (default), fp16, fp8, fp8_blockwise, mxfp8, nvfp4",
    )
    parser.add_argument("--framework", metavar="NAME", default="", help="software (default: megatron_core)")


def add_output(parser: argparse.ArgumentParser) -> None:
    """What comes of it, and where."""
    parser.add_argument(
        "--budget",
        metavar="N",
        type=positive,
        default=DEFAULT_BUDGET,
        help=f"trials where designs are too many to list (default: {DEFAULT_BUDGET})",
    )
    parser.add_argument("--save", metavar="FILE", type=Path, help="also write the space, to change it")
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: plan_MODEL_N)")
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )
    add_workers(parser)
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Plan; 1 when nothing fits."""
    from dse.searching.named.planned_study import listed_front, searched, stored_front

    question = question_of(args)
    planned, workers = prepared(args, question)
    space = planned.space.with_objectives(args.objective) if args.objective else planned.space
    exact = listed_front(space, workers)
    name, how = args.study or space.name, {"storage": args.storage, "again": args.study is None}
    if exact is not None and not len(exact.costs):
        print(f"dse: {what_would_do(question, planned)}", file=sys.stderr)
        return 1
    if exact is not None:
        study = stored_front(exact, name, **how)
    else:
        from dse.cli.terminal import progress_of

        with progress_of(space, sys.stderr) as progress:
            study = searched(space, name, args.budget, workers=workers, progress=progress, **how)
    legal = None if exact is None else (exact.legal, exact.infeasible or 0)
    write(args, planned, study, legal)
    return 0 if study.table.feasible.any() else 1


def question_of(args: argparse.Namespace) -> Question:
    """What the arguments ask."""
    from costmodel.errors import DseError
    from dse.spaces.question import Question

    if args.max_days and not args.tokens:
        raise DseError("--max-days: of how many tokens? name them with --tokens, such as 15T")
    sequences, batch_tokens = args.global_batch_size or (None, None)
    return Question(
        model=args.model,
        system=args.system,
        chips=args.gpus,
        seq_len=args.seq_len,
        sequences=sequences,
        batch_tokens=batch_tokens,
        precision=[word.strip() for word in args.precision.split(",") if word.strip()],
        framework=args.framework,
        tokens=args.tokens,
        max_days=args.max_days,
    )


def prepared(args: argparse.Namespace, question: Question) -> tuple[Planned, Any]:
    """The space, saved where asked, and who prices it; says what was assumed."""
    from dse.pricing.workers import Workers
    from dse.records.tables import write_file
    from dse.spaces.question import planned_space, space_text

    planned = planned_space(question)
    for note in planned.model.notes:
        print(f"dse: {note}", file=sys.stderr)
    if planned.assumed:
        print(f"dse: assumed: {', '.join(planned.assumed)}", file=sys.stderr)
    if args.save:
        objectives = planned.space.with_objectives(args.objective).data if args.objective else planned.data
        data = {**planned.data, "name": args.save.stem, "objectives": objectives["objectives"]}
        write_file(args.save, space_text(data).encode())
    return planned, Workers(args.jobs, args.backend, args.scheduler)


def what_would_do(question: Question, planned: Planned) -> str:
    """Why no layout is feasible, and how many chips would do."""
    from costmodel.formats.quantity import readable
    from dse.records.text import design_text
    from dse.searching.named.planned_study import closest, fits
    from dse.spaces.question import planned_space, with_chips

    days = question.max_days or math.inf
    if question.max_days:
        question = replace(question, max_days=None)
        planned = planned_space(question)
    space = planned.space
    found = closest(space)
    if found.margin >= 0:
        return too_slow(question, planned, days)
    text = (
        f"no layout of {space.legal.count:,.0f} on {question.chips:,} chips fits: the closest lacks "
        f"{readable(-found.margin, found.unit)} a chip, {design_text(space, found.params)}"
    )
    for times in MULTIPLES:
        other = with_chips(question, planned, times * question.chips)
        if other and fits(other):
            return f"{text}; {times * question.chips:,} chips would do"
    return (
        f"{text}; nor would {MULTIPLES[-1]} times as many chips do: more memory would, or shorter sequences"
    )


def too_slow(question: Question, planned: Planned, days: float) -> str:
    """How long the run takes at best, and how many chips would end in time."""
    from dse.spaces.question import with_chips

    text = (
        f"no layout on {question.chips:,} chips ends within {days:g} days: "
        f"the fastest takes {shortest_days(planned.space):,.0f}"
    )
    for times in MULTIPLES:
        other = with_chips(question, planned, times * question.chips)
        took = shortest_days(other) if other else math.inf
        if took <= days:
            return f"{text}; {times * question.chips:,} chips take {took:.1f}"
    return f"{text}; nor would {MULTIPLES[-1]} times as many chips at this batch"


def shortest_days(space: Space) -> float:
    """Days of the run by the fastest feasible layout; infinite where none is. [-]"""
    from dse.pricing.workers import Workers
    from dse.searching.named.planned_study import listed_front

    exact = listed_front(space, Workers())
    times = [] if exact is None else exact.evaluation.derived["run_time"].tolist()
    return float(min(times, default=math.inf)) / 86400


def write(
    args: argparse.Namespace, planned: Planned, study: BaseStudy, legal: tuple[int, int] | None
) -> None:
    """The results, to stdout."""
    if args.format == "json":
        from dse.records.tables import json_text, study_record

        counted = {} if legal is None else {"n_legal": legal[0], "n_legal_infeasible": legal[1]}
        more = {"exact": legal is not None, **counted, "assumed": [*planned.assumed]}
        print(json_text(study_record(study) | more | {"space_file": str(args.save) if args.save else None}))
        return
    from dse.records.text import show
    from dse.reporting.study_report import plan_report

    heading = heading_of(planned, study.space, legal)
    show(sys.stdout, lambda width: plan_report(study, heading, next_commands(args, study), width))


def heading_of(planned: Planned, space: Space, legal: tuple[int, int] | None) -> str:
    """What was asked, and how much was priced."""
    model, known = planned.model.shape, space.constants
    batch, seq_len = int(known["global_batch_size"]), int(known["seq_len"])
    text = (
        f"{model.title or model.name}, {model.num_parameters / 1e9:,.1f} billion parameters, on "
        f"{int(known['world_size']):,} chips of {space.system.name}: {batch:,} sequences of {seq_len:,} "
        "tokens a step"
    )
    if legal is None:
        return f"{text}; searched among {space.legal.count:,.0f} legal layouts."
    return f"{text}; of {legal[0]:,} legal layouts {legal[0] - legal[1]:,} are feasible, and all were priced."


def next_commands(args: argparse.Namespace, study: BaseStudy) -> list[str]:
    """What to do next."""
    file = args.save or "space.yaml"
    best = study.table.front().numbers[0]
    return [
        f"dse explain {quote(study.name)}",
        f"dse report {quote(study.name)} -o {quote(study.name)}.html",
        f"dse export {quote(study.name)} --trial {best} --format megatron -o train.sh",
        f"dse search {file}"
        + ("" if args.save else "      after dse plan ... --save space.yaml, and your changes"),
    ]


def amount(text: str) -> tuple[float, str, str]:
    """A count, its letter and its noun: ``16M tokens`` -> (16e6, "M", "tokens")."""
    match = _AMOUNT.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a count, such as 2048, 16M tokens or 15T")
    value = float(match[1].replace("_", "").replace(",", "")) * SCALES[match[2].upper()]
    if not 0 < value < 1e18:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a count above 0")
    return value, match[2].upper(), (match[3] or "").lower()


def batch(text: str) -> tuple[int | None, float | None]:
    """Sequences of a step, or tokens of one.

    >>> batch("2048"), batch("16M tokens"), batch("4M")
    ((2048, None), (None, 16000000.0), (None, 4000000.0))
    """
    value, letter, noun = amount(text)
    if noun == "tokens" or (letter and noun != "sequences"):
        return None, value
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole sequences")
    return int(value), None


def number(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value
