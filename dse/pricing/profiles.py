"""The rules of a profile for the designs of one space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costmodel.profiles.registry import NATIVE, design_rules, profiles_reading

if TYPE_CHECKING:
    from costmodel.columns import FloatArray, IntArray
    from costmodel.machine.system import System
    from costmodel.profiles.rules import AnyWorkload, DesignRules
    from costmodel.steps.breakdown import Breakdown
    from dse.spaces.space import Space

__all__ = ["NATIVE", "SpaceRules", "nominal_rate", "rules_for"]

#: Designs priced in a second on one core: of compiled programs, of shardings solved on open machines, and of
#: everything else. [1/s]
PROGRAM_RATE: Final = 2e3
SOLVED_RATE: Final = 5e3
USUAL_RATE: Final = 5e4


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """What a profile says of designs of a space, given as columns of everything that is known of them."""

    profile: str
    model: AnyWorkload
    rules: DesignRules

    def step(self, system: System, known: Mapping[str, Any]) -> Breakdown:
        """Evaluate one optimizer step of each design; (points,) columns. [s], [B], [J], [$], [W]"""
        return self.rules.step(self.model, system, known)

    def items(self, system: System, known: Mapping[str, Any]) -> dict[str, FloatArray]:
        """What `step` of one design adds up, by name; nothing where not known. [s], [B], [FLOP], [-]"""
        return self.rules.items(self.model, system, known)

    def footprint(self, system: System, known: Mapping[str, Any]) -> dict[str, FloatArray] | None:
        """Columns of `step` that need no times, to the last bit; None where all do. [B], [-], [$], [W]"""
        return self.rules.footprint(self.model, system, known)

    def alike(self, system: System, known: Mapping[str, Any]) -> tuple[IntArray, IntArray]:
        """First rows of the designs that `step` tells apart, and the place of each among them. [-]"""
        return self.rules.alike(self.model, system, known)

    def reasons(self, system: System, known: Mapping[str, Any]) -> list[str]:
        """Why the first of some designs has no number, and what would do; nothing where it has one."""
        return self.rules.reasons(self.model, system, known)

    def remedies(self, system: System, known: Mapping[str, Any]) -> str:
        """What designs without a number want for, with how many do, and what would do; "" where not known."""
        return self.rules.remedies(self.model, system, known)


def rules_for(space: Space, profile: str = NATIVE) -> SpaceRules:
    """How a profile evaluates the designs of a space.

    Raises
    ------
    DseError
        If there is no such profile, or it does not know such models or columns.
    """
    rules = design_rules(profile, space.model)
    columns = rules.columns(space.model)
    for name in space.chosen:
        others = profiles_reading(name, space.model)
        if others and name not in columns:
            from costmodel.errors import DseError

            raise DseError(
                f"space {space.name}: {name}: profile {profile} does not know it; {', '.join(others)} do"
            )
    return SpaceRules(profile, space.model, rules)


def nominal_rate(space: Space) -> float:
    """Designs of a space that are priced in a second on one core, to the order of magnitude. [1/s]

    It decides how many designs are priced for one trial, so it is no measurement: the same for everyone.
    """
    from costmodel.hlo.program import Program
    from costmodel.training.design import SOLVE, SOLVE_BYTES

    if isinstance(space.model, Program):
        return PROGRAM_RATE
    options = space.by_name["sharding"].options if "sharding" in space.by_name else None
    codes = [space.constants.get("sharding", 0.0)] if options is None else options.tolist()
    machine = {*space.by_name, *(derived.name for derived in space.derived)} & space.system.units().keys()
    return SOLVED_RATE if machine and {SOLVE, SOLVE_BYTES} & {*codes} else USUAL_RATE
