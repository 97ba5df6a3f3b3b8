"""Stored figures of a study that differ from those of the cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from shlex import quote
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from dse.output import counted, json_line, json_object
from dse.reporting.design_table import columns_of, drawn
from dse.searching.price_check import Mismatch, figure_text

if TYPE_CHECKING:
    from dse.searching.study import BaseStudy

#: Figures that a table shows, and of one trial.
SHOWN, SHOWN_OF_ONE = 24, 3


@dataclass
class CheckedStudy:
    """Findings of a repeated evaluation of the trials of a study, counted as it proceeds."""

    study: BaseStudy
    blocks: Iterator[tuple[int, list[Mismatch]]]
    trials: int = 0
    differing: int = 0  #: trials in which some figure differs
    figures: int = 0

    def __iter__(self) -> Iterator[Mismatch]:
        """Iterate over the figures that differ, trial by trial."""
        for trials, figures_of_trials in self.blocks:
            self.trials += trials
            self.differing += len({figure.trial for figure in figures_of_trials})
            self.figures += len(figures_of_trials)
            yield from figures_of_trials


def check_report(checked: CheckedStudy) -> list[RenderableType]:
    """The first figures that differ, how many there are, and whether another version made the study."""
    shown: list[Mismatch] = []
    of_trial: Counter[int] = Counter()
    for figure in checked:
        of_trial[figure.trial] += 1
        if of_trial[figure.trial] <= SHOWN_OF_ONE and len(shown) < SHOWN:
            shown.append(figure)
    foreign, versions = checked.study.foreign, checked.study.other_version()
    trials = counted(checked.trials, "trial")
    if checked.differing:
        verdict = f"{checked.differing:,} of {trials} differ from the cost model."
    else:
        verdict = f"{trials} evaluated again, all as stored."
    others = f" {counted(foreign, 'trial')} of other programs cannot be checked." if foreign else ""
    report: list[RenderableType] = [Text(f"Study {checked.study.name}: {verdict}{others}")]
    report += [Text(line) for line in versions]
    if not checked.differing:
        return report
    first = {figure.trial: figure for figure in reversed(shown)}  # of a trial, which has its number
    numbers = [str(one.trial) if one is first[one.trial] else "" for one in shown]
    rows = [
        (n, m.column, figure_text(m, m.stored), figure_text(m, m.model)) for n, m in zip(numbers, shown, strict=True)
    ]
    report += [Text(), *drawn(columns_of(("trial", "figure", "stored", "cost model"), rows, left=(1,)))]
    if more := checked.figures - len(shown):
        report += [Text(f"{counted(more, 'more figure')} {'differs' if more == 1 else 'differ'}: --format json")]
    anew = f"dse search ... --study NEW --warm-start {quote(checked.study.name)}"
    return [*report, Text(), Text(f"{anew}   starts a new study from its best designs")]


def check_json(checked: CheckedStudy) -> Iterator[bytes]:
    """All figures that differ, as one JSON object, piece by piece."""
    study = checked.study
    return json_object(
        {"study": study.name, "space": study.space.name, "changes": study.other_version()},
        "differences",
        (json_line(asdict(figure)) for figure in checked),
        lambda: {"n_checked": checked.trials, "n_differing": checked.differing, "n_foreign": study.foreign},
    )
