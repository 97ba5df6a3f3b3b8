"""Profiles by name: the rules by which designs or files are evaluated.

The native profile is built in, adapters add theirs (`sources`), and users register more. `design_rules` finds the rules
of a profile for a kind of work, such as the training of a transformer. A profile loads its rules when they are first
needed, so that importing this module loads none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from costmodel.errors import DseError, suggestion

if TYPE_CHECKING:
    from costmodel.rules.rules import KindOfWork, Rules, Workload, WorkloadRules
    from costmodel.training.design_table import Domain


@dataclass(frozen=True, slots=True)
class Profile:
    """Rules that evaluate something, under a name that users type."""

    name: str
    about: str  #: description in one line
    file: str = ""  #: kind of file that they evaluate, such as ``"hlo"``
    designs: Callable[[], Sequence[Rules[Any]]] | None = None  #: their rules for designs, by kind of work
    version: str = ""  #: of a reference's rules, as its folder names it
    works: tuple[str, ...] = ()  #: kinds of work that `designs` has rules for
    own_columns: tuple[str, ...] = ()  #: of designs, that the native rules do not read

    def rules(self, work: KindOfWork) -> Rules[Any] | None:
        """The rules for designs of a kind of work, which are loaded; None where the profile has none."""
        if self.name == NATIVE and work.rules:
            rules: Rules[Any] = work.rules()
            return rules
        every = self.designs() if self.designs and work.name in self.works else ()
        return next((rules for rules in every if rules.work.name == work.name), None)


#: Native rules for kinds of work that were registered, by their names.
REGISTERED_WORK: Final[dict[str, Rules[Any]]] = {}


def _native() -> Sequence[Rules[Any]]:
    from costmodel.rules.rules import RULES

    return (*RULES, *REGISTERED_WORK.values())


#: The profile where none is named.
NATIVE: Final = "native"

#: The profiles of this package, the default first.
_SHIPPED: Final = {
    NATIVE: Profile(NATIVE, "the native cost model", "hlo", _native, works=("training", "lstm_training"))
}

#: Functions that return further built-in profiles, such as those of adapters.
sources: Final[list[Callable[[], Sequence[Profile]]]] = []

#: Profiles that users registered, by name.
REGISTERED: Final[dict[str, Profile]] = {}


def profiles() -> Mapping[str, Profile]:
    """All profiles by name: the built-in ones, and those that were registered."""
    added = {profile.name: profile for source in sources for profile in source()}
    return {**_SHIPPED, **added, **REGISTERED}


def design_profiles() -> tuple[str, ...]:
    """Names of the profiles that evaluate designs."""
    return tuple(profile.name for profile in profiles().values() if profile.designs)


def register_profile(profile: Profile) -> None:
    """Make a profile known by its name, in this process and to workers that evaluate designs for it.

    Its `designs` gives the rules. A profile of that name that was registered before is replaced.

    Raises `DseError` if a built-in profile has that name.
    """
    if profile.name in profiles() and profile.name not in REGISTERED:
        raise DseError(f"profile {profile.name!r}: is built in; choose another name")
    rules = profile.designs() if profile.designs else ()
    columns = {name for rule in rules for name in rule.domains} - {*_native_domains()}
    works = tuple(one.work.name for one in rules)
    REGISTERED[profile.name] = replace(profile, works=works, own_columns=tuple(sorted(columns)))


def register_work(rules: Rules[Any]) -> None:
    """Make a kind of work known by its name, in this process and to workers that evaluate designs for it.

    `rules` are the native rules for it; those of a name that was registered before are replaced.

    Raises `DseError` if built-in work has that name.
    """
    from costmodel.rules.rules import RULES, WORKS

    work = rules.work
    if any(work.name == rules.work.name for rules in RULES):
        raise DseError(f"work {work.name!r}: is built in; choose another name")
    WORKS[work.name] = work
    REGISTERED_WORK[work.name] = rules
    native = _SHIPPED[NATIVE]
    _SHIPPED[NATIVE] = replace(native, works=(*dict.fromkeys((*native.works, work.name)),))
    _native_domains.cache_clear()


def profile_named(name: str) -> Profile:
    """A profile by its name.

    Raises `DseError` if there is none of that name.
    """
    known = profiles()
    if name not in known:
        raise DseError(f"profile {name!r}: unknown{suggestion(name, known)}")
    return known[name]


def design_rules(name: str, workload: Workload) -> WorkloadRules:
    """The rules by which a profile evaluates designs of a workload.

    Raises `DseError` if there is no profile of that name, or it has no rules for the work.
    """
    from costmodel.rules.rules import WorkloadRules

    profile = profile_named(name)
    if profile.designs is None:
        raise DseError(f"profile {name}: evaluates files only; profiles of designs: {', '.join(design_profiles())}")
    rules = profile.rules(workload.work)
    if rules is None:
        known = "transformers" if profile.works == ("training",) else ", ".join(profile.works)
        raise DseError(f"profile {name}: knows {known} only; take {NATIVE}")
    return WorkloadRules(name, workload, rules)


class ColumnDomains(Mapping[str, "Domain"]):
    """Design columns -> values that they may take; a profile's rules load when one of their columns is needed.

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
        for profile in profiles().values()
        for name in profile.own_columns
        if work is None or work in profile.works
    }


@cache
def _native_domains() -> Mapping[str, Domain]:
    """Columns that the native rules read of designs of any built-in model."""
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
    native = _SHIPPED[NATIVE].rules(workload.work)
    known = design_rules(NATIVE, workload).columns if native else {}
    return ColumnDomains(known, _read_by(work), lambda profile: design_rules(profile.name, workload).columns)


def profiles_reading(column: str, workload: Workload) -> list[str]:
    """Names of the profiles whose designs of a workload have a column."""
    names = [name for name, profile in profiles().items() if workload.work.name in profile.works]
    return [name for name in names if column in design_rules(name, workload).columns]
