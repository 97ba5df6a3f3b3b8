"""The rules of a profile for the designs of one space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.machine import System
from costmodel.rules.registry import NATIVE, design_columns, design_rules, profiles_reading
from costmodel.rules.rules import WorkloadRules
from costmodel.training.blocks import ASSIGNMENTS
from costmodel.training.design import SOLVE, SOLVE_BYTES
from dse.spaces.space import Space

__all__ = ["NATIVE", "machine", "nominal_rate", "rules_for"]

#: Designs evaluated in a second on one core where shardings are solved on open machines. [1/s]
SOLVED_RATE: Final = 5e3


def rules_for(space: Space, profile: str = NATIVE) -> WorkloadRules:
    """Rules by which a profile evaluates the designs of a space.

    Raises `DseError` if there is no such profile, or it does not know such models or columns.
    """
    rules = design_rules(profile, space.workload)
    every, rule_columns = design_columns(space.workload), rules.columns
    for name in space.chosen:
        if name in every and name not in rule_columns:
            others = ", ".join(profiles_reading(name, space.workload))
            raise DseError(f"space {space.name}: {name}: profile {profile} does not know it; {others} do")
    return rules


def solves_shardings(space: Space) -> bool:
    """True if a space solves the sharding of every design for the fastest step."""
    return "sharding" not in space.by_name and space.constants.get("sharding") == SOLVE


def nominal_rate(space: Space) -> float:
    """Designs of a space that are priced in a second on one core, to the order of magnitude. [1/s]

    It decides how many designs are priced for one trial, so it is no measurement: the same for everyone.
    """
    usual_rate = space.workload.work.rate
    if space.workloads:
        return float(usual_rate / sum(max(workload.space.outer.inner_count, 1.0) for workload in space.workloads))
    if solves_shardings(space):
        return usual_rate / len(ASSIGNMENTS)  # designs are screened with the named shardings
    options = space.by_name["sharding"].options if "sharding" in space.by_name else None
    codes = [space.constants.get("sharding", 0.0)] if options is None else options.tolist()
    machine = {*space.by_name, *(derived.name for derived in space.derived)} & space.system.units().keys()
    return SOLVED_RATE if machine and {SOLVE, SOLVE_BYTES} & {*codes} else usual_rate


def machine(space: Space, known: Mapping[str, Any]) -> System:
    """The system of a batch of designs of which everything is known that needs no evaluation."""
    chosen = {*(p.name for p in space.parameters), *(d.name for d in space.derived)}
    return space.system.with_quantities({n: known[n] for n in space.system.units() if n in chosen})
