"""Every profile: rules by which designs or files are evaluated, by name.

Importing this loads no rules: they come when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from costmodel.profiles.rules import AnyWorkload, DesignRules
    from costmodel.training.design_table import Domain


@dataclass(frozen=True, slots=True)
class Profile:
    """Rules that evaluate something, under a name that users type."""

    name: str
    about: str  #: what they are, in a line
    file: str = ""  #: kind of file that they evaluate: a name in `files.FILES`
    designs: Callable[[], Sequence[DesignRules]] | None = None  #: their rules for designs, by kind of model
    version: str = ""  #: of a reference's rules, as its folder names it


def _native() -> Sequence[DesignRules]:
    from costmodel.profiles.native import RULES

    return RULES


def _simai() -> Sequence[DesignRules]:
    from costmodel.profiles.simai.rules import RULES

    return RULES


def _dfmodel(generation: str) -> Callable[[], Sequence[DesignRules]]:
    def rules() -> Sequence[DesignRules]:
        from costmodel.profiles.dfmodel.rules import rules_of

        return rules_of(generation)

    return rules


#: The profile where none is named.
NATIVE: Final = "native"

#: Profiles that ship, the default first.
SHIPPED: Final = (
    Profile(NATIVE, "the native cost model", "hlo", _native),
    Profile("simai", "arithmetic of native, the rest by SimAI's closed forms", "aicb", _simai),
    Profile("simai-2024-10", "SimAI of October 2024: bus bandwidths from a file", "aicb"),
    Profile("simai-2024-12", "SimAI of December 2024: bus bandwidths from a file", "aicb"),
    Profile("simai-2025-07", "SimAI of July 2025: bandwidths from the machine", "aicb"),
    *(
        Profile(f"dfmodel-{name}", f"DFModel, {about}", "dfmodel", _dfmodel(name), name)
        for name, about in (
            ("gen1", "first generation"),
            ("gen2a", "second generation, before March 2024"),
            ("gen2b", "second generation"),
            ("gen3", "third generation"),
        )
    ),
    Profile("deepflow", "DeepFlow, first generation", "deepflow"),
)

#: All profiles by name: those that ship, and those that were registered.
PROFILES: Final = {profile.name: profile for profile in SHIPPED}


def design_profiles() -> tuple[str, ...]:
    """Names of the profiles that evaluate designs."""
    return tuple(profile.name for profile in PROFILES.values() if profile.designs)


def register_profile(profile: Profile) -> None:
    """Make a profile known by its name, in this process and to workers that evaluate designs for it.

    Parameters
    ----------
    profile : Profile
        Its `designs` gives the rules; one of that name that was registered before is replaced.

    Raises
    ------
    DseError
        If a profile of that name ships.
    """
    if any(profile.name == shipped.name for shipped in SHIPPED):
        from costmodel.errors import DseError

        raise DseError(f"profile {profile.name!r}: is one that ships; choose another name")
    PROFILES[profile.name] = profile
    all_columns.cache_clear()


def registered(name: str) -> Profile | None:
    """The profile of that name if it does not ship."""
    return PROFILES[name] if all(name != shipped.name for shipped in SHIPPED) else None


def profile_named(name: str) -> Profile:
    """A profile by its name.

    Raises
    ------
    DseError
        If there is none of that name.
    """
    if name not in PROFILES:
        from costmodel.errors import DseError, suggestion

        raise DseError(f"profile {name!r}: unknown{suggestion(name, PROFILES)}")
    return PROFILES[name]


def design_rules(name: str, model: AnyWorkload) -> DesignRules:
    """How a profile evaluates designs of a model.

    Raises
    ------
    DseError
        If there is no such profile, or it knows no such models.
    """
    from costmodel.errors import DseError

    profile = profile_named(name)
    if profile.designs is None:
        raise DseError(f"profile {name}: prices files alone; of designs: {', '.join(design_profiles())}")
    for rules in profile.designs():
        if rules.knows(model):
            return rules
    raise DseError(f"profile {name}: knows transformers only; take {NATIVE}")


def design_columns(model: AnyWorkload) -> dict[str, Domain]:
    """Columns that designs of a model may have under some profile -> values that they may take."""
    return {name: domain for _, rules in _knowing(model) for name, domain in rules.columns(model).items()}


@cache
def all_columns() -> Mapping[str, Domain]:
    """Columns that designs of any model may have under some profile -> values that they may take."""
    every = [rules for profile in PROFILES.values() if profile.designs for rules in profile.designs()]
    return {name: domain for rules in every for name, domain in rules.domains.items()}


def _knowing(model: AnyWorkload) -> list[tuple[str, DesignRules]]:
    """Profiles that evaluate designs of a model, and their rules."""
    every = [profile for profile in PROFILES.values() if profile.designs]
    rules = [(profile.name, own) for profile in every for own in (profile.designs or tuple)()]
    return [(name, own) for name, own in rules if own.knows(model)]


def profiles_reading(column: str, model: AnyWorkload) -> list[str]:
    """Names of the profiles whose designs of a model have a column."""
    return [name for name, rules in _knowing(model) if column in rules.columns(model)]
