"""`dse enumerate`: price every legal design, and say how far a study is from the exact front."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from dse.cli.options import Commands, add_changes, add_jobs, add_profile, add_storage, changed_space, command

if TYPE_CHECKING:
    from dse.search.exact import Certificate, ExactFront
    from dse.search.study import Study
    from dse.spaces.space import Space


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "enumerate",
        run,
        summary="price every legal design: the exact Pareto front",
        about="Price every legal design of a space, print the exact Pareto front, and say how far a study\n"
        "is from it.",
        examples=[
            "dse enumerate gpt3_175b_1024_a100",
            "dse enumerate --certify gpt3_175b_1024_a100      the space is the study's own",
        ],
    )
    parser.add_argument(
        "space",
        metavar="SPACE",
        nargs="?",
        help="name of a shipped space (`dse spaces`), or a YAML file (default: that of --certify)",
    )
    add_changes(parser)
    parser.add_argument("--certify", metavar="STUDY", help="say how far this study is from the exact front")
    add_profile(parser, ", that of the study with --certify")
    add_jobs(parser)
    add_storage(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    """Enumerate; 1 when nothing is feasible."""
    from dse.pricing.profiles import NATIVE, rules_for
    from dse.search.exact import certificate, exact_front

    study, space = subject(args)
    rules = rules_for(space, study.profile if study else args.profile or NATIVE)
    exact = exact_front(space, rules=rules, jobs=args.jobs, progress=counter(space))
    certified = certificate(study, exact) if study else None
    if args.format == "json":
        print_json(exact, certified)
    else:
        print_report(exact, certified)
    if exact.records():
        return 0
    print(f"dse: no feasible design: all {exact.legal:,} legal ones break a limit", file=sys.stderr)
    return 1


def subject(args: argparse.Namespace) -> tuple[Study | None, Space]:
    """The study to certify, if any, and the space to enumerate.

    Raises
    ------
    DseError
        If neither is named, or they do not belong together.
    """
    from costmodel.errors import DseError

    if args.certify is None:
        if args.space is None:
            raise DseError("enumerate: name a SPACE (`dse spaces` lists them), or a study with --certify")
        return None, changed_space(args)
    from dse.search.study import Study

    study = Study.load(args.certify, storage=args.storage)
    if args.profile not in (None, study.profile):
        raise DseError(f"study {study.name!r}: is priced by {study.profile}; leave --profile out")
    if args.space is None:
        if args.set or args.objective:
            raise DseError("enumerate: --set and --objective change a SPACE; the study's own stays as it is")
        return study, study.space
    space = changed_space(args)
    if space.fingerprint != study.space.fingerprint:
        raise DseError(
            f"study {study.name!r}: searches another space than this; leave SPACE out to take the study's own"
        )
    return study, space


def counter(space: Space) -> Callable[[int, int], None]:
    """Says about once a second how many designs are evaluated."""
    last = monotonic()

    def update(priced: int, feasible: int) -> None:
        nonlocal last
        if monotonic() - last >= 1.0:
            last = monotonic()
            print(f"{priced:,}/{space.legal.count:,.0f} designs, {feasible:,} feasible", file=sys.stderr)

    return update


def print_json(exact: ExactFront, certified: Certificate | None) -> None:
    """One JSON object."""
    from dataclasses import asdict

    from dse.export.tables import exact_record, json_text

    record = exact_record(exact)
    print(json_text(record | ({"certificate": asdict(certified)} if certified else {})))


def print_report(exact: ExactFront, certified: Certificate | None) -> None:
    """The front, and the certificate below it."""
    from dse.report.study_report import certificate_text, exact_report
    from dse.report.text import show

    show(sys.stdout, lambda width: exact_report(exact, width))
    if certified:
        show(sys.stdout, lambda width: ["", certificate_text(certified)])
