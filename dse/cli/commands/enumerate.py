"""`dse enumerate`: the exact Pareto front of a space, and the distance of a study from it.

Small spaces are listed, larger ones are searched with bounds that rule out most designs (`exact_front`). Parts of an
enumeration run on many machines and are merged (`--part`, `--merge`); `--certify` compares a study with the front."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Final, NoReturn, TextIO

from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from costmodel.rules.registry import NATIVE
from dse.api.study import Study
from dse.cli.options import changed_space, positive
from dse.cli.output import ENDINGS, checked_place, form_of, write_answer, write_content, write_result
from dse.cli.terminal import say
from dse.output import Report, exact_record, table_pieces
from dse.pricing.evaluated import rules_for
from dse.pricing.workers import Workers
from dse.reporting.study_report import bound_text, certificate_text, exact_report
from dse.searching.exact.certificate import EVALUATIONS, Certificate, best_costs, certificate, sought_space, study_bound
from dse.searching.exact.exact_front import ExactFront, Headway, exact_front, merged_front
from dse.spaces.space import Space

#: Least time between two lines. [s]
LINE_INTERVAL: Final = 1.0
#: Most parts of an enumeration.
MOST_PARTS: Final = 100_000


def part_of(text: str) -> tuple[int, int]:
    """The numbers of a part.

    >>> part_of("3/64")
    (3, 64)
    """
    first, _, second = text.partition("/")
    try:
        number, parts = positive(first), positive(second)
    except argparse.ArgumentTypeError:
        number, parts = 1, 0
    if not number <= parts <= MOST_PARTS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a part and the number of parts, such as 3/64")
    return number, parts


def run(args: argparse.Namespace) -> int:
    """Enumerate; 1 when nothing is feasible."""
    if args.bound:
        return run_bound(args)
    form = "table" if args.part else form_of(args.format, args.output)  # refused before the work
    checked_place(args.output)
    exact, study = merged_parts(args) if args.merge else enumerated(args)
    if args.part:
        text = f"{exact.evaluated:,} designs evaluated, {len(exact.costs):,} on their front, in {args.output}"
        print(f"part {args.part[0]}/{args.part[1]}: {text}")
        return 0
    if exact.is_partial:
        write_partial(exact, form, args.output)
    certified = certificate(study, exact) if study else None
    write_result(lambda where: write(exact, certified, form, where), args.output, ENDINGS[form])
    if len(exact.costs):
        return 0
    say(f"no feasible design: all {exact.legal:,} legal ones break a limit")
    return 1


def enumerated(args: argparse.Namespace) -> tuple[ExactFront, Study | None]:
    """The exact front of a space or of a part of it, and the study to certify."""
    study, space = subject(args)
    checkpoint = args.output if args.part else args.checkpoint
    try:
        exact = exact_front(
            space,
            rules=rules_for(space, study.profile if study else args.profile or NATIVE),
            workers=Workers(args.jobs, args.backend, args.scheduler),
            method=args.method,
            best=best_costs(study).tolist() if study else None,
            progress=headway_lines(sys.stderr),
            partial_too=checkpoint is None,
            checkpoint=checkpoint,
            part=args.part or (1, 1),
        )
    except KeyboardInterrupt:
        if checkpoint is None:
            raise
        raise KeyboardInterrupt(
            f"interrupted; {checkpoint} holds the finished parts: the same command continues"
        ) from None
    return exact, study


def merged_parts(args: argparse.Namespace) -> tuple[ExactFront, Study | None]:
    """The exact front from checkpoints, and the study to certify."""
    study = Study.load(args.certify, storage=args.storage) if args.certify else None
    if args.output and args.output.resolve() in {path.resolve() for path in args.merge}:
        raise DseError(f"enumerate --merge: -o {args.output} is one of the files to merge; name another file")
    exact = merged_front(args.merge, best_costs(study).tolist() if study else None)
    if args.space and changed_space(args).fingerprint != exact.space.fingerprint:
        raise DseError(f"enumerate --merge: the files hold another space than {args.space}; leave SPACE out")
    return exact, study


def write_partial(exact: ExactFront, form: str, output: Path | None) -> NoReturn:
    """Write the front of the designs evaluated before an interruption, to a file of another name.

    Raises `KeyboardInterrupt` with a message that names the file.
    """
    where = output and output.with_stem(f"{output.stem}.partial")
    write_result(lambda where: write(exact, None, form, where), where, ENDINGS[form])
    done = f"interrupted after {exact.evaluated:,} of {exact.legal:,} designs"
    raise KeyboardInterrupt(f"{done}; their front is {f'in {where}' if where else 'above'}")


def run_bound(args: argparse.Namespace) -> int:
    """Print the lower bound of the space of a study, and the gap of the study to it."""
    study = Study.load(args.bound, storage=args.storage)
    update = headway_lines(sys.stderr)
    bound = study_bound(
        study,
        Workers(args.jobs, args.backend, args.scheduler),
        evaluations=args.evaluations or EVALUATIONS,
        progress=lambda evaluated, boxes: update(Headway(evaluated, None, None, boxes)),
    )
    write_answer(args.format, {"bound": asdict(bound)}, lambda width: [bound_text(bound, study.space)])
    if bound.interrupted:
        raise KeyboardInterrupt(f"interrupted after {bound.designs_priced:,} evaluations; more narrow the gap")
    return 0


def subject(args: argparse.Namespace) -> tuple[Study | None, Space]:
    """The study to certify, if any, and the space to enumerate.

    Raises `DseError` if they do not belong together.
    """
    if args.certify is None:
        return None, changed_space(args)
    study = Study.load(args.certify, storage=args.storage)
    if args.profile not in (None, study.profile):
        raise DseError(f"study {study.name!r}: is evaluated by {study.profile}; leave --profile out")
    if args.space is None:
        return study, sought_space(study)
    space = changed_space(args)
    if space.fingerprint != study.space.fingerprint:
        raise DseError(f"study {study.name!r}: searches another space; leave SPACE out to take the study's own")
    return study, sought_space(study)


def headway_lines(stream: TextIO) -> Callable[[Headway], None]:
    """Says about once a second how many designs are evaluated, how fast, and how long the rest will take."""
    start = last = monotonic()

    def update(headway: Headway) -> None:
        nonlocal last
        now = monotonic()
        if now - last < LINE_INTERVAL:
            return
        last = now
        print(headway_text(headway, now - start), file=stream, flush=True)

    return update


def headway_text(headway: Headway, seconds: float) -> str:
    """Progress of an enumeration.

    >>> from dse.searching.exact.exact_front import Headway
    >>> headway_text(Headway(200_000, 1_000_000, 12_000), 2.0)
    '200,000/1,000,000 designs, 12,000 feasible, 100,000/s, 8 s left'
    >>> headway_text(Headway(200_000, None, None, boxes=512), 2.0)
    '200,000 designs evaluated, 100,000/s, 512 boxes left'
    """
    rate = headway.evaluated / seconds
    if headway.total is None:
        return f"{headway.evaluated:,} designs evaluated, {rate:,.0f}/s, {headway.boxes:,} boxes left"
    left = (headway.total - headway.evaluated) / rate
    return (
        f"{headway.evaluated:,}/{headway.total:,.0f} designs, {headway.feasible:,} feasible, {rate:,.0f}/s, "
        f"{readable(left, 's')} left"
    )


def write(exact: ExactFront, certified: Certificate | None, form: str, output: Path | None) -> None:
    """The front and the certificate in one of the forms."""
    if form not in ("table", "json"):
        write_content(table_pieces([exact.to_frame()], form), form, output)
        return
    more = {"certificate": asdict(certified)} if certified else {}
    below: Report = ["", certificate_text(exact.space, certified)] if certified else []
    write_answer(form, exact_record(exact) | more, lambda width: [*exact_report(exact, width), *below], output)
