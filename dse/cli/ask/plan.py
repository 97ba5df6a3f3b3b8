"""`dse plan`: from a model and a number of chips straight to the best layouts."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from shlex import quote
from typing import Any

from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from dse.cli.progress import progress_of
from dse.pricing.workers import Workers
from dse.records.tables import json_text, study_record, write_file
from dse.records.text import design_text, show
from dse.reporting.study_report import plan_report
from dse.searching.named.planned_study import closest, fits, listed_front, searched, stored_front
from dse.searching.study import BaseStudy
from dse.spaces.question import Planned, Question, planned_space, space_text, with_chips
from dse.spaces.space import Space

#: So many times as many chips are tried where none fits.
MULTIPLES = (2, 4, 8, 16, 32, 64, 128)


def run(args: argparse.Namespace) -> int:
    """Plan; 1 when nothing fits."""
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
        with progress_of(space, sys.stderr) as progress:
            study = searched(space, name, args.budget, workers=workers, progress=progress, **how)
    legal = None if exact is None else (exact.legal, exact.infeasible or 0)
    write(args, planned, study, legal)
    return 0 if study.table.feasible.any() else 1


def question_of(args: argparse.Namespace) -> Question:
    """What the arguments ask."""
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
    exact = listed_front(space, Workers())
    times = [] if exact is None else exact.evaluation.derived["run_time"].tolist()
    return float(min(times, default=math.inf)) / 86400


def write(
    args: argparse.Namespace, planned: Planned, study: BaseStudy, legal: tuple[int, int] | None
) -> None:
    """The results, to stdout."""
    if args.format == "json":
        counted = {} if legal is None else {"n_legal": legal[0], "n_legal_infeasible": legal[1]}
        more = {"exact": legal is not None, **counted, "assumed": [*planned.assumed]}
        print(json_text(study_record(study) | more | {"space_file": str(args.save) if args.save else None}))
        return
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
