"""Which stored figures of a study are not what the cost model gives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.text import Text

from dse.records.tables import only_finite
from dse.records.text import counted
from dse.reporting.design_table import ruled_table
from dse.searching.record.checking import Mismatch
from dse.searching.record.study_changes import figure_text

if TYPE_CHECKING:
    from dse.pricing.workers import Jobs
    from dse.searching.study import BaseStudy

#: Figures that a table shows, and of one trial.
SHOWN, SHOWN_OF_ONE = 24, 3
#: Members of an object of the list of figures, in order.
_INDENT: Final = ",\n    "


@dataclass
class CheckedStudy:
    """What pricing all trials of a study again has found."""

    trials: int = 0
    differing: int = 0  #: trials of which some figure is another
    figures: int = 0
    shown: list[Mismatch] = field(default_factory=list)

    def add(self, trials: int, found: Sequence[Mismatch]) -> None:
        """Take note of some trials, in their order."""
        per_trial: dict[int, list[Mismatch]] = {}
        for own in found:
            per_trial.setdefault(own.trial, []).append(own)
        self.trials += trials
        self.differing += len(per_trial)
        self.figures += len(found)
        for figures in per_trial.values():
            self.shown += figures[: min(SHOWN_OF_ONE, SHOWN - len(self.shown))]


def checked(study: BaseStudy, jobs: Jobs) -> CheckedStudy:
    """Price all trials of a study again."""
    found = CheckedStudy()
    for trials, differing in study.differing(jobs):
        found.add(trials, differing)
    return found


def check_report(study: BaseStudy, found: CheckedStudy, changes: Sequence[str], foreign: int
                 ) -> list[RenderableType]:  # fmt: skip
    """The first figures that differ, how many there are, and what has changed since trials were priced.

    Parameters
    ----------
    study : BaseStudy
        The study.
    found : CheckedStudy
        Its trials, priced again.
    changes : sequence of str
        What has changed in space, model and system, a line each.
    foreign : int
        Finished trials of other programs. [-]
    """
    trials = counted(found.trials, "trial")
    if found.differing:
        verdict = f"{found.differing:,} of {trials} are not as the cost model gives them."
    else:
        verdict = f"{trials} priced again, all as stored."
    others = f" {counted(foreign, 'trial')} of other programs cannot be checked." if foreign else ""
    report: list[RenderableType] = [Text(f"Study {study.name}: {verdict}{others}")]
    if changes:
        report += [Text(), Text("Since its trials were priced:"), *(Text(f"  {line}") for line in changes)]
    if not found.differing:
        return report
    table = ruled_table()
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("figure", no_wrap=True)
    table.add_column("stored", justify="right")
    table.add_column("cost model", justify="right")
    last = None
    for own in found.shown:
        trial = "" if own.trial == last else str(own.trial)
        table.add_row(trial, own.column, figure_text(own, own.stored), figure_text(own, own.model))
        last = own.trial
    report += [Text(), table]
    if more := found.figures - len(found.shown):
        report += [
            Text(f"{counted(more, 'more figure')} {'differs' if more == 1 else 'differ'}: --format json")
        ]
    return [*report, Text(), Text(f"dse resume {quote(study.name)} --reprice   prices all trials anew")]


def check_json(study: BaseStudy, changes: Sequence[str], foreign: int, jobs: Jobs, found: CheckedStudy
               ) -> Iterator[str]:  # fmt: skip
    """The same with all figures, as the text of one JSON object, piece by piece; counts into `found`."""
    head: dict[str, Any] = {"study": study.name, "space": study.space.name, "changes": list(changes)}
    members = _INDENT.replace("    ", "  ").join(_member(key, value) for key, value in head.items())
    yield f'{{\n  {members},\n  "differences": ['
    separator = "\n    "
    for trials, differing in study.differing(jobs):
        found.add(trials, differing)
        for own in differing:
            yield separator + json.dumps(only_finite(asdict(own)), allow_nan=False)
            separator = _INDENT
    end = {"n_checked": found.trials, "n_differing": found.differing, "n_foreign": foreign}
    closing = "\n  ]" if found.figures else "]"
    yield closing + "".join(f",\n  {_member(key, value)}" for key, value in end.items()) + "\n}\n"


def _member(key: str, value: Any) -> str:
    return f"{json.dumps(key)}: {json.dumps(value)}"
