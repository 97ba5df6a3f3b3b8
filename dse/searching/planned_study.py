"""The best designs of a small space, listed whole, as a study: so that commands on studies work on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.errors import DseError
from dse.fronts import thinned
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import untimed_margins
from dse.pricing.workers import Workers
from dse.searching.exact.exact_front import ExactFront, exact_front
from dse.searching.nearest_design import blocks
from dse.searching.study import BaseStudy, OtherStudy
from dse.spaces.legal import LISTED
from dse.spaces.space import Params, Space

#: Most designs of an exact front that are kept as trials.
KEPT: Final = 24
#: Names that are tried for a study before giving up.
MOST_NAMES: Final = 100


@dataclass(frozen=True, slots=True)
class Closest:
    """The design that comes closest to a limit that none keeps."""

    params: Params
    limit: str
    margin: float  #: [the unit of the limit]
    unit: str


def listed_front(space: Space, workers: Workers) -> ExactFront | None:
    """The exact front of a space that is small enough to be listed."""
    return exact_front(space, workers=workers, method="list") if space.legal.count <= LISTED else None


def stored_front(exact: ExactFront, name: str, *, storage: str | None, again: bool) -> BaseStudy:
    """A study whose trials are the designs of an exact front, or about `KEPT` of a long one, the best too."""
    designs = exact.space.decode(exact.designs)
    kept = sorted({*thinned(np.arange(len(designs)), KEPT).tolist(), *exact.best.values()})
    study = opened(exact.space, name, storage, again=again)
    missing = {f"front_{row}": designs[row] for row in kept} if not len(study.table) else {}
    if missing:
        study.steer(None, missing)
        study.run(len(missing))
    return study


def opened(space: Space, name: str, storage: str | None, *, again: bool) -> BaseStudy:
    """The study of that name, or of that name and a number where another study has the name.

    A study of another space, or whose trials the cost model now evaluates differently, is another study.
    """
    for number in range(1, MOST_NAMES):
        try:
            study = BaseStudy.open(space, name if number == 1 else f"{name}_{number}", storage=storage)
            study.refuse_changes()
            return study
        except OtherStudy:
            if not again:
                raise
    raise DseError(f"study {name!r}: {MOST_NAMES} other studies have that name; choose another name")


def closest(space: Space) -> Closest:
    """The legal design that comes closest to the first limit that none satisfies, among limits without times."""
    rules, nearest = rules_for(space), None
    for designs in blocks(space):
        margins = untimed_margins(space, designs, rules)
        if margins is None:
            break
        best = int(margins[:, 0].argmax())
        if nearest is None or margins[best, 0] > nearest.margin:
            limit = space.limits[0]
            [params] = space.decode({key: values[[best]] for key, values in designs.items()})
            nearest = Closest(params, limit.name, float(margins[best, 0]), limit.unit)
    if nearest is None:
        raise DseError(f"space {space.name}: no legal design fits")
    return nearest


def fits(space: Space | None) -> bool:
    """True if some legal design satisfies all limits without times; none of no space does."""
    several = () if space is None else (untimed_margins(space, block, rules_for(space)) for block in blocks(space))
    return any(margins is None or bool((margins >= 0).all(axis=1).any()) for margins in several)
