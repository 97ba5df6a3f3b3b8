"""Rules that price designs, by name: the native cost model, and reference models over the same kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from costmodel.machine.system import System
    from costmodel.steps.breakdown import Breakdown
    from dse.spaces.space import Space

#: Model, system and layouts -> the price of one optimizer step.
Pricing: TypeAlias = "Callable[[Any, System, Any], Breakdown]"

#: What prices when nothing is said.
NATIVE: Final = "native"

#: Generations of DFModel's rules.
DFMODEL: Final = ("dfmodel-gen1", "dfmodel-gen2a", "dfmodel-gen2b", "dfmodel-gen3")

#: Every profile, the default first.
PROFILES: Final = (NATIVE, "simai", *DFMODEL)

#: Column of a design that not all profiles know -> those that do.
KNOWN_TO: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("topology", "tile_size", "overlap", "execution"), DFMODEL),
    **dict.fromkeys(("sharding", "tiling"), (NATIVE, "simai")),
}


def pricing(profile: str, space: Space) -> Pricing:
    """The function that prices designs of a space by a profile.

    Raises
    ------
    DseError
        If there is no such profile, or it does not know such models or columns.
    """
    from costmodel.errors import DseError, suggestion
    from costmodel.profiles.workloads import workload_of
    from costmodel.training.model import ModelShape

    if profile not in PROFILES:
        raise DseError(f"profile {profile!r}: unknown{suggestion(profile, PROFILES)}")
    if profile != NATIVE and not isinstance(space.model, ModelShape):
        raise DseError(f"profile {profile}: knows transformers only; take {NATIVE}")
    for name in space.chosen:
        if profile not in KNOWN_TO.get(name, PROFILES):
            others = ", ".join(KNOWN_TO[name])
            raise DseError(f"space {space.name}: {name}: profile {profile} does not know it; {others} do")
    if profile == NATIVE:
        return workload_of(space.model).step
    if profile in DFMODEL:
        from costmodel.profiles import dfmodel

        return partial(dfmodel.price_designs, generation=profile.removeprefix("dfmodel-"))
    from costmodel.profiles import simai

    return simai.price_designs
