"""Rules that price designs, by name: the native cost model, and reference models over the same kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from costmodel.workloads import AnyWorkload
    from dse.evaluate import Pricing

#: What prices when nothing is said.
NATIVE: Final = "native"

#: Every profile, the default first.
PROFILES: Final = (NATIVE, "simai")


def pricing(profile: str, model: AnyWorkload) -> Pricing:
    """The function that prices designs of a model by a profile.

    Raises
    ------
    DseError
        If there is no such profile, or it does not know such models.
    """
    from costmodel.errors import DseError, suggestion
    from costmodel.model import ModelShape
    from costmodel.workloads import workload_of

    if profile not in PROFILES:
        raise DseError(f"profile {profile!r}: unknown{suggestion(profile, PROFILES)}")
    if profile == NATIVE:
        return workload_of(model).step
    if not isinstance(model, ModelShape):
        raise DseError(f"profile {profile}: knows transformers only; take {NATIVE}")
    from costmodel.profiles.simai import price_designs

    return price_designs
