"""Every profile: rules by which designs or files are evaluated, by name.

Importing this loads no rules: they come when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from costmodel.errors import DseError, suggestion

if TYPE_CHECKING:
    from costmodel.profiles.rules import Rules, WorkloadRules
    from costmodel.profiles.work import Workload
    from costmodel.training.design_table import Domain


@dataclass(frozen=True, slots=True)
class Profile:
    """Rules that evaluate something, under a name that users type."""

    name: str
    about: str  #: what they are, in a line
    file: str = ""  #: kind of file that they evaluate: a name in `files.FILES`
    designs: Callable[[], Sequence[Rules[Any]]] | None = None  #: their rules for designs, by kind of work
    version: str = ""  #: of a reference's rules, as its folder names it
    works: tuple[str, ...] = ()  #: kinds of work that `designs` has rules for
    own_columns: tuple[str, ...] = ()  #: of designs, that the native rules do not read

    def rules(self, work: str) -> Rules[Any] | None:
        """Its rules for designs of a kind of work, which are loaded; None where it has none."""
        every = self.designs() if self.designs and work in self.works else ()
        return next((rules for rules in every if rules.work.name == work), None)


#: Native rules for kinds of work that were registered, by their names.
_REGISTERED_WORK: Final[dict[str, Rules[Any]]] = {}


def _native() -> Sequence[Rules[Any]]:
    from costmodel.profiles.native import RULES

    return (*RULES, *_REGISTERED_WORK.values())


def _simai() -> Sequence[Rules[Any]]:
    from costmodel.profiles.simai.rules import RULES

    return RULES


def _dfmodel(generation: str) -> Callable[[], Sequence[Rules[Any]]]:
    def rules() -> Sequence[Rules[Any]]:
        from costmodel.profiles.dfmodel.rules import rules_of

        return rules_of(generation)

    return rules


#: The profile where none is named.
NATIVE: Final = "native"

#: Profiles that ship, the default first.
SHIPPED: Final = (
    Profile(NATIVE, "the native cost model", "hlo", _native, works=("training", "lstm_training", "program")),
    Profile("simai", "arithmetic of native, the rest by SimAI's closed forms", "aicb", _simai, works=("training",)),
    Profile("simai-2024-10", "SimAI of October 2024: bus bandwidths from a file", "aicb"),
    Profile("simai-2024-12", "SimAI of December 2024: bus bandwidths from a file", "aicb"),
    Profile("simai-2025-07", "SimAI of July 2025: bandwidths from the machine", "aicb"),
    *(
        Profile(
            f"dfmodel-{name}",
            f"DFModel, {about}",
            "dfmodel",
            _dfmodel(name),
            version=name,
            works=("training",),
            own_columns=("topology", "tile_size", "overlap", "execution"),
        )
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
        raise DseError(f"profile {profile.name!r}: is built in; choose another name")
    rules = profile.designs() if profile.designs else ()
    columns = {name for own in rules for name in own.domains} - {*_native_domains()}
    works = tuple(own.work.name for own in rules)
    PROFILES[profile.name] = replace(profile, works=works, own_columns=tuple(sorted(columns)))


def register_work(rules: Rules[Any]) -> None:
    """Make a kind of work known by its name, in this process and to workers that evaluate designs for it.

    Parameters
    ----------
    rules : Rules
        The native rules for it; those of a name that was registered before are replaced.

    Raises
    ------
    DseError
        If a kind of work of that name ships.
    """
    from costmodel.profiles.native import RULES
    from costmodel.profiles.work import WORKS

    work = rules.work
    if any(work.name == own.work.name for own in RULES):
        raise DseError(f"work {work.name!r}: is built in; choose another name")
    WORKS[work.name] = work
    _REGISTERED_WORK[work.name] = rules
    native = PROFILES[NATIVE]
    PROFILES[NATIVE] = replace(native, works=(*dict.fromkeys((*native.works, work.name)),))
    _native_domains.cache_clear()


def registered_work(name: str) -> Rules[Any] | None:
    """The native rules for a kind of work of that name if it does not ship."""
    return _REGISTERED_WORK.get(name)


def registered(name: str) -> Profile | None:
    """The profile of that name if it does not ship."""
    return PROFILES[name] if all(name != shipped.name for shipped in SHIPPED) else None


def profile_named(name: str) -> Profile:
    """A profile by its name.

    Raises `DseError` if there is none of that name.
    """
    if name not in PROFILES:
        raise DseError(f"profile {name!r}: unknown{suggestion(name, PROFILES)}")
    return PROFILES[name]


def design_rules(name: str, workload: Workload) -> WorkloadRules:
    """How a profile evaluates designs of a workload.

    Raises `DseError` if there is no such profile, or it has no rules for such work.
    """
    from costmodel.profiles.rules import WorkloadRules

    profile = profile_named(name)
    if profile.designs is None:
        raise DseError(f"profile {name}: prices files alone; of designs: {', '.join(design_profiles())}")
    rules = profile.rules(workload.work.name)
    if rules is None:
        known = "transformers" if profile.works == ("training",) else ", ".join(profile.works)
        raise DseError(f"profile {name}: knows {known} only; take {NATIVE}")
    return WorkloadRules(name, workload, rules)


class ColumnDomains(Mapping[str, "Domain"]):
    """Design columns -> values that they may take; a profile's rules load if a column of theirs is asked for.

    `known` are columns of the native rules with their domains; `others` maps further columns to the profile that reads
    them; `domains` returns the domains of a profile.
    """

    def __init__(
        self,
        known: Mapping[str, Domain],
        others: Mapping[str, Profile],
        domains: Callable[[Profile], Mapping[str, Domain]],
    ) -> None:
        self._known, self._others, self._domains = known, others, domains

    def __getitem__(self, name: str) -> Domain:
        if name in self._known or name not in self._others:
            return self._known[name]
        return self._domains(self._others[name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._known, *self._others])

    def __len__(self) -> int:
        return len(self._known) + len(self._others)


def _read_by(work: str | None = None) -> dict[str, Profile]:
    """Columns that the native rules do not read -> a profile that does, of all kinds of work or of one."""
    return {
        name: profile
        for profile in PROFILES.values()
        for name in profile.own_columns
        if work is None or work in profile.works
    }


@cache
def _native_domains() -> Mapping[str, Domain]:
    """Columns that the native rules read of designs of any model that ships."""
    return {name: domain for rules in _native() for name, domain in rules.domains.items()}


def all_columns() -> Mapping[str, Domain]:
    """Columns that designs of any model may have under some profile -> values that they may take."""

    def domains(profile: Profile) -> Mapping[str, Domain]:
        every = profile.designs() if profile.designs else ()
        return {name: domain for rules in every for name, domain in rules.domains.items()}

    return ColumnDomains(_native_domains(), _read_by(), domains)


def design_columns(workload: Workload) -> Mapping[str, Domain]:
    """Columns that designs of a workload may have under some profile -> values that they may take."""
    work = workload.work.name
    native = PROFILES[NATIVE].rules(work)
    known = design_rules(NATIVE, workload).columns if native else {}
    return ColumnDomains(known, _read_by(work), lambda profile: design_rules(profile.name, workload).columns)


def profiles_reading(column: str, workload: Workload) -> list[str]:
    """Names of the profiles whose designs of a workload have a column."""
    names = [name for name, profile in PROFILES.items() if workload.work.name in profile.works]
    return [name for name in names if column in design_rules(name, workload).columns]
