"""`dse explain`: why a design costs what it does."""

from __future__ import annotations

import argparse
import sys

from rich.text import Text

from costmodel.errors import DseError
from dse.cli.chosen import changed_space, changes_of, say_what_was_open
from dse.cli.options import pin
from dse.explaining import explanation as explaining
from dse.explaining.difference import Difference
from dse.explaining.explanation import Explanation
from dse.explaining.neighbours import binding, neighbours
from dse.library.designs import explain, with_number
from dse.library.study import Study
from dse.records.tables import json_text
from dse.records.text import design_text, show
from dse.reporting.designs.difference_report import difference_report
from dse.reporting.designs.explanation_report import explanation_report, heading
from dse.reporting.designs.neighbours_report import neighbours_report


def run(args: argparse.Namespace) -> int:
    """Explain where the time and memory of a design go."""
    explanation = named_design(args)
    difference = Difference(explanation, other_design(args, explanation)) if args.against else None
    beside = neighbours(explanation)
    bound = binding(explanation, beside)
    if args.format == "json":
        print(
            json_text(
                {
                    **explanation.to_json(),
                    "binding": bound.to_json(),
                    "levers": [each.to_json() for each in bound.levers],
                    "neighbours": [each.to_json() for each in beside],
                    **(difference.to_json() if difference else {}),
                }
            )
        )
        return 0
    if difference:
        both = [*heading(explanation), Text(), *difference_report(difference, everything=args.all)]
        show(sys.stdout, lambda _: both)
        return 0
    report = explanation_report(explanation, everything=args.all)
    report += [Text(), *neighbours_report(explanation, beside, bound, everything=args.all)]
    show(sys.stdout, lambda _: report)
    return 0


def named_design(args: argparse.Namespace) -> Explanation:
    """The design that the arguments name: of a study, or with --set of a space.

    Raises
    ------
    DseError
        If there is none, or it has no number under the profile.
    """
    if args.set or args.layout:
        if args.trial is not None:
            raise DseError(f"--trial {args.trial}: is of a study; with --set and --layout a space is named")
        args.space = args.study
        pinned = changed_space(args)
        say_what_was_open(pinned, pinned.completed({}))
        return explain(args.space, profile=args.profile, **changes_of(args))
    study = Study.load(args.study, storage=args.storage)
    return study.explain(args.trial, objective=args.objective, profile=args.profile)


def other_design(args: argparse.Namespace, explanation: Explanation) -> Explanation:
    """What ``--against`` names: a trial of the same study, or the same design but for some values.

    Raises
    ------
    DseError
        If there is no such design.
    """
    text, profile = args.against.strip(), explanation.profile
    if text.isascii() and text.isdigit():
        if explanation.trial is None:
            raise DseError(f"--against {text}: a trial is of a study; name what differs, such as tp=8")
        number, params = Study.load(args.study, storage=args.storage).design(int(text))
        return with_number(explaining.explain(explanation.space, params, profile=profile, trial=number))
    try:
        pins = dict(pin(word) for word in text.split())
    except argparse.ArgumentTypeError as error:
        raise DseError(f"--against {text!r}: {error}, or the number of a trial") from None
    space = explanation.space.pinned(pins)
    params = space.completed(explanation.params)
    moved = {n: v for n, v in params.items() if v != explanation.params[n] and n not in pins}
    if moved:
        print(f"dse: to be legal beside these: {design_text(space, moved)}", file=sys.stderr)
    return with_number(explaining.explain(space, params, profile=profile))
