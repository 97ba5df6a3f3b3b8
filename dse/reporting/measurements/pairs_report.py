"""Pairs of runs as text: the measured and predicted effect of each changed setting."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from dse.output.text import counted
from dse.reporting.design_table import Column, drawn, fitted
from dse.validation.pairs import ComparedPair, pairs_record


def pairs_report(pairs: Sequence[ComparedPair], width: int) -> list[RenderableType]:
    """The summary, a row for each pair with an effect, and the reasons of the others."""
    record = pairs_record(pairs)
    known = [pair for pair in pairs if not pair.why_not]
    shown: list[RenderableType] = [Text(f"{counted(len(pairs), 'pair')}, {len(known)} expressed")]
    if known:
        headings = ("pair", "changed", "measured", "predicted", "sign", "within\n5 points")
        cells = zip(*map(pair_cells, known), strict=True)
        columns = [
            Column(name, tuple(name.split("\n")), [*values], int(name == "changed"), left=name in headings[:2])
            for name, values in zip(headings, cells, strict=True)
        ]
        sign, close = record["sign_right"], record["within_5_points"]
        total = (
            f"Sign right in {sign} of {len(known)} ({sign / len(known):.0%}), effect within 5 points in {close} "
            f"({close / len(known):.0%}); mean difference {record['mean_abs_difference_points']:.1f} points"
        )
        shown += [Text(), Text("Step time after the change over the one before, less 1"), Text()]
        shown += [*drawn(fitted(columns, width)[0]), Text(), Text(total)]
    lacking = [pair for pair in pairs if pair.why_not]
    if lacking:
        shown += [Text(), Text("Pairs that the model cannot express, by missing input"), Text()]
        shown += [Text(f"  {pair.id}: {pair.why_not}") for pair in lacking]
    return shown


def pair_cells(pair: ComparedPair) -> tuple[str, ...]:
    """A pair as it is printed."""
    verdicts = ("right" if pair.sign_right else "wrong", "yes" if pair.close else "no")
    return (pair.id, pair.changed, f"{pair.measured:+.1%}", f"{pair.predicted:+.1%}", *verdicts)
