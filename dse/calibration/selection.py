"""Which constants rows tell: one more as long as rows that are held out are predicted better.

Forward selection by cross-validation: a constant stays if rows of left-out groups are predicted better by more than
the standard error. A constant whose effect is parallel to that of another is reported, and not fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from dse.calibration.fit import Fit, Task, fits, slopes_of
from dse.calibration.measurements import Constant, Measurements

#: Parts that rows are held out in.
FOLDS: Final = 5
#: Standard errors by which rows held out must be better predicted, and constants move; and by which steps
#: must be better predicted without what kernels say, to give that up. [-]
BETTER, MOVED, GIVEN_UP = 1.0, 2.0, 2.0
#: Constants that are tried in pairs: those that do best alone. [-]
MOST_PAIRED: Final = 8
#: Change of the logarithm of a row's time with a coordinate, below which it does not depend on it. [-]
NO_CHANGE: Final = 2e-3
#: Share of what a constant does to rows that no others can do, below which nothing tells them apart. [-]
ALIKE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Selection:
    """Constants that rows of one kind support, with their errors."""

    fit: Fit
    held_out: FloatArray  #: logarithm of predicted over measured time of each row by fits without it [-]
    left_out: Mapping[str, str]  #: constant -> why it is not fitted


def folds(groups: Sequence[str], most: int, seed: int) -> list[BoolArray]:
    """Rows held out together, (rows,) each: whole groups; single rows where groups are fewer than three."""
    names = list(dict.fromkeys(groups))
    keys = groups if len(names) > 2 else [str(number) for number in range(len(groups))]
    names = list(dict.fromkeys(keys))
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[number]: turn % most for turn, number in enumerate(order)}
    of_row = np.array([fold[key] for key in keys])
    return [of_row == fold_number for fold_number in sorted(set(fold.values()))]


def selected(
    rows: Measurements, constants: Sequence[Constant], others: Mapping[str, float], *, seed: int = 0
) -> Selection:
    """Constants that rows of one kind determine, and their values.

    `constants` may be fitted, the better known first; `others` are the values of all constants before. [SI units]
    `seed` chooses the rows that are held out together. [-]

    In each round every constant that is left is tried beside those chosen, with each fold of the rows held out, and
    every two where no single one helps. Those with which the held-out rows are predicted best are chosen, if they are
    by more than the standard error of that difference, and if each moves by more than twice its own.
    """
    held = folds(rows.groups, FOLDS, seed)
    fit = fits([Task((), np.ones(rows.count, dtype=bool), np.zeros(0))], rows, others)[0]
    state, left = (fit, fit.ratios), list(constants)
    reasons: dict[str, str] = {}
    while left:
        why = indistinct(state[0], left, rows, others)
        usable = [one for one in left if one.name not in why]
        better, failed = _round(state, usable, held, rows, others)
        reasons = failed | why
        if not better:
            break
        best = min(better, key=lambda one: np.abs(better[one][1]).mean())
        state, left = better[best], [one for one in left if one not in best]
    return Selection(*state, {one.name: reasons[one.name] for one in left})


def indistinct(
    fit: Fit, constants: Sequence[Constant], rows: Measurements, others: Mapping[str, float]
) -> dict[str, str]:
    """Constants that rows cannot determine beside those already fitted, by name, and why.

    `constants` stand in order, the better known first; `others` are the values of all constants before. [SI units]

    A constant is determined by what is left of its column of the Jacobian when the columns of those fitted are
    projected out. Of two that are parallel then, as are two whose product alone matters, the first may be fitted.
    """
    slopes = slopes_of([*fit.constants, *constants], rows, {**others, **fit.values})
    known, why = slopes[:, : len(fit.constants)], {}
    usable: dict[str, FloatArray] = {}
    for constant, column in zip(constants, slopes[:, len(fit.constants) :].T, strict=True):
        size = np.linalg.norm(column)
        if np.abs(column).max() < NO_CHANGE:
            why[constant.name] = "no row depends on it"
            continue
        rest = column - known @ np.linalg.lstsq(known, column)[0]
        if np.linalg.norm(rest) < ALIKE * size:
            alike = {one.name: _cosine(column, other) for one, other in zip(fit.constants, known.T, strict=True)}
        else:
            alike = {name: _cosine(rest, other) for name, other in usable.items()}
            alike = {name: cosine for name, cosine in alike.items() if cosine**2 > 1 - ALIKE**2}
        if alike:
            why[constant.name] = f"rows cannot tell it from {max(alike, key=lambda name: alike[name])}"
        else:
            usable[constant.name] = rest
    return why


def _cosine(column: FloatArray, other: FloatArray) -> float:
    """Absolute cosine of the angle between two columns: 1 if they are parallel. [-]"""
    sizes = np.linalg.norm(column) * np.linalg.norm(other)
    return float(abs(column @ other) / sizes) if sizes > 0 else 0.0


#: Constants that are fitted to all rows, and ratios of rows by fits without them.
State = tuple[Fit, FloatArray]


def _round(
    state: State,
    constants: Sequence[Constant],
    held: Sequence[BoolArray],
    rows: Measurements,
    others: Mapping[str, float],
) -> tuple[dict[tuple[Constant, ...], State], dict[str, str]]:
    """Additions that help: single constants, or two where none does alone; and why single ones do not."""
    too_few = "1 row is" if len(held[0]) == 1 else f"{len(held[0])} rows are"
    why = {one.name: f"{too_few} too few to hold some out" for one in constants}
    added = _trials(state[0], [(one,) for one in constants], held, rows, others)
    why |= {extra[0].name: _no_better(state[1], one[1]) for extra, one in added.items()}
    better = {extra: one for extra, one in added.items() if _is_better(state, one, others)}
    if not better:
        singles = sorted(added, key=lambda constant: np.abs(added[constant][1]).mean())[:MOST_PAIRED]
        pairs = [first + second for first, second in combinations(singles, 2)]
        added = _trials(state[0], pairs, held, rows, others)
        better = {extra: one for extra, one in added.items() if _is_better(state, one, others)}
    return better, why


def _task(fit: Fit, added: tuple[Constant, ...], rows: BoolArray, others: Mapping[str, float]) -> Task:
    """Constants beside those fitted, to be fitted to some rows."""
    start = [one.coordinate(others[one.name]) for one in added]
    return Task((*fit.constants, *added), rows, np.append(fit.coordinates, start))


def _trials(
    fit: Fit,
    added: Sequence[tuple[Constant, ...]],
    held: Sequence[BoolArray],
    rows: Measurements,
    others: Mapping[str, float],
) -> dict[tuple[Constant, ...], State]:
    """Constants beside those fitted: the fit to all rows, and ratios of rows by fits without them."""
    kept = [np.ones_like(held[0]), *(~out for out in held)]
    added = [extra for extra in added if min(part.sum() for part in kept) >= len(fit.constants) + len(extra)]
    tasks = [_task(fit, extra, part, others) for extra in added for part in kept]
    if len(held) < 2 or not tasks:
        return {}
    fits_in_turn = iter(fits(tasks, rows, others))
    trials = {extra: [next(fits_in_turn) for _ in kept] for extra in added}
    return {extra: (one[0], np.select(held, [part.ratios for part in one[1:]])) for extra, one in trials.items()}


def _is_better(before: State, after: State, others: Mapping[str, float]) -> bool:
    """True if held-out rows are predicted better, and constants have moved, by more than standard errors."""
    fitted = before[0].values
    moved = all(
        abs(value - others[name]) > MOVED * after[0].standard_errors[name]
        for name, value in after[0].values.items()
        if name not in fitted
    )
    return moved and are_closer(after[1], before[1])


def are_closer(ratios: FloatArray, than: FloatArray, *, errors: float = BETTER) -> bool:
    """Returns whether predictions are closer to measurements than others, by more than a number of standard errors.

    `ratios` and `than` are logarithms of predicted over measured times, (rows,), at least two. [-]
    """
    gain = np.abs(than) - np.abs(ratios)
    return bool(gain.mean() > errors * gain.std(ddof=1) / np.sqrt(len(gain)))


def _no_better(before: FloatArray, after: FloatArray) -> str:
    """The effect of a constant on held-out rows."""
    was, now = (100 * np.abs(np.expm1(ratios)).mean() for ratios in (before, after))
    return f"rows held out are no better with it ({was:.2f} % off, {now:.2f} % with it)"
