"""Why nothing is feasible: the limit that designs break, how close one comes, and a change that would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from costmodel.steps.breakdown import with_unit_suffix
from dse.output import Record, design_text
from dse.pricing.evaluation import remedies
from dse.spaces.sections.parameters import Constraint
from dse.spaces.space import Space

#: Parameters that reduce the memory in use on the fullest chip, or add capacity, when they grow.
MORE_SAVES_MEMORY = ("pp", "tp", "recompute", "distributed_optimizer", "dram_capacity")


def nothing_feasible(space: Space, records: Iterable[Record], profile: str, among: str = "") -> str:
    """Why a study has no front, in one line: designs without a number, then limits, and a change that would help.

    `among` says which designs were evaluated, such as " among all 12".
    """
    unpriced: list[Record] = []
    broken = BrokenLimits(space)
    for record in records:
        if with_unit_suffix("step_time") in record["breakdown"]:
            broken.add(record)
        else:
            unpriced.append(record["params"])
    total = broken.total + len(unpriced)
    if not total:
        return "no feasible design: no finished trials yet"
    if not unpriced:
        return f"no feasible design{among}: {broken.text()}"
    text = f"no feasible design{among}: {len(unpriced)} of {total} have no number under profile {profile}"
    wanting = remedies(space, profile, space.encode(unpriced))
    text += f", {wanting}" if wanting else ""
    return f"{text}; of the others, {broken.text()}" if broken.total else text


class BrokenLimits:
    """The limit that most designs break, the distance of the closest design to it, and a change that would help."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.total = 0  #: designs
        self._broken = dict.fromkeys(space.limits, 0)
        self._closest: dict[Constraint, Record] = {}

    def add(self, record: Record) -> None:
        """Take note of a design."""
        self.total += 1
        for limit in self.space.limits:
            margin = record["margins"].get(limit.key)
            self._broken[limit] += margin is None or margin < 0
            closest = self._closest.get(limit)
            if margin is not None and (closest is None or margin > closest["margins"][limit.key]):
                self._closest[limit] = record

    @property
    def counts(self) -> dict[str, int]:
        """Limit -> how many designs break it. [-]"""
        return {limit.name: count for limit, count in self._broken.items()}

    def text(self) -> str:
        """The limits that keep designs from being feasible, in words."""
        if not any(self._broken.values()):
            return f"none of {self.total} has finite objectives"
        limit = max(self._broken, key=lambda limit: self._broken[limit])
        text = f"{self._broken[limit]} of {self.total} break {limit.name}"
        if limit not in self._closest:
            return text
        closest = self._closest[limit]
        margin, where = closest["margins"][limit.key], design_text(self.space, closest["params"])
        text += f", closest by {readable(-margin, limit.unit)} at {where}" if margin < 0 else ""
        remedies = memory_remedies(self.space, closest["params"]) if limit.unit == "B" else []
        narrowed = narrowed_by_rules(self.space) if limit.unit == "B" else ""
        return f"{text}; {', or '.join(remedies) or f'relax {limit.expression}'}{narrowed}"


def narrowed_by_rules(space: Space) -> str:
    """Why a pipeline can be no longer, where rules leave out its longest options; "" where they do not."""
    parameter = space.by_name.get("pp")
    possible = space.legal.values_of("pp")
    if parameter is None or parameter.options is None or not possible:
        return ""
    longest = max(map(parameter.code, possible))
    longer = sorted(code for code in parameter.options.tolist() if code > longest)
    if not longer:
        return ""
    values = ", ".join(parameter.shown(value) for value in possible)
    try:
        space.pinned({"pp": longer[0]})
    except DseError as error:
        why = str(error).partition(": breaks ")[2].partition("; ")[0]
        return f". Of pp, rules leave {values}: {longer[0]:g} breaks {why}"
    return ""


def memory_remedies(space: Space, params: Mapping[str, Any]) -> list[str]:
    """Changes within the space that lower a design's memory: ``raise pp``, ``recompute: full``."""
    remedies = []
    for name in MORE_SAVES_MEMORY:
        possible = space.legal.values_of(name)
        parameter = space.by_name.get(name)
        if not parameter or not possible:
            continue
        most = max(possible, key=parameter.code)
        if parameter.code(most) > parameter.code(params[name]):
            word = parameter.words or parameter.boolean
            remedies.append(f"{name}: {parameter.shown(most)}" if word else f"raise {name}")
    return remedies
