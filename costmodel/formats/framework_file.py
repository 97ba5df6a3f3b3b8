"""Framework files: defaults, abilities and releases of training software, in YAML -> `Framework`.

A framework is a list of values, each with its kind and source, for names that designs or machines have: the
attention kernel it calls, the exchanges it overlaps, the kernels it runs in place of a fused one. Where files
start it (`launch`), `runs` has the values of a column that it knows, by the words it has for them, and `limits`
the combinations that it can run, as formulas of search spaces.

The file describes the newest release. `releases` lists earlier changes: the text `changed`, and the values
`before` it. ``megatron_core@25.05`` undoes the changes of all releases after 25.05, the newest first.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import nan
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.input_files import Section, dump, parse, read_text
from costmodel.formats.system_file import KINDS
from costmodel.training.dimensions import BALANCING
from costmodel.training.model import ModelShape

SCHEMA: Final = "framework/v1"
#: Framework of runs whose software is not named.
USUAL_FRAMEWORK: Final = "megatron_core"
_ABILITIES: Final = ("title", "release", "launch", "runs", "limits", "derived", "modules", "offload", "models")
_PARTS: Final = ("description", "given", "unstated", *_ABILITIES)
#: How a value is known: as constants of systems are, or as the software's documentation or code says.
FRAMEWORK_KINDS: Final = (*KINDS, "documented")


#: A number or a word, and the value of a name: of a quantity in SI units.
Value = float | str
Lookup = Callable[[str], Value]


@dataclass(frozen=True, slots=True)
class Runs:
    """Abilities of software in a column of designs."""

    words: Mapping[str, Any]  #: value of the column, as text -> its word in the software
    where: str  #: formula: only these designs have the option; "": all


@dataclass(frozen=True, slots=True)
class Release:
    """A release that a framework file lists."""

    name: str  #: year and month, such as 25.11, or a year
    changed: str  #: changes since the release before, in words
    source: str


@dataclass(frozen=True, slots=True)
class Framework:
    """Defaults of a framework for settings that neither a design nor a machine states, and its abilities."""

    name: str  #: with the release, such as megatron_core@25.05; without it, the newest
    description: str
    #: Column of designs, or quantity of systems -> value, as files write it; a mapping has a value for each word of
    #: `BALANCING`, or for each condition on quantities of a system, fields of a model and columns: the first that
    #: holds counts.
    given: Mapping[str, Any]
    otherwise: Mapping[str, Any] = field(default_factory=dict)  #: column -> value where a limit refuses `given`
    #: Settings of its published recipes, which measured rows have unless they state others; as `given`, and before it.
    unstated: Mapping[str, Any] = field(default_factory=dict)
    releases: tuple[Release, ...] = ()  #: listed releases, the oldest first
    title: str = ""  #: its name as its makers write it
    release: str = ""  #: the release that the other fields describe
    launch: tuple[str, ...] = ()  #: forms of the files that start it
    runs: Mapping[str, Runs] = field(default_factory=dict)  #: column of designs -> values that it can run
    limits: Mapping[str, str] = field(default_factory=dict)  #: name -> formula that its designs keep
    derived: Mapping[str, str] = field(default_factory=dict)  #: column -> formula of the software's automatic value
    modules: tuple[str, ...] = ()  #: of layers, by Megatron-LM's names, that it can recompute apart
    offload: Mapping[str, Any] = field(default_factory=dict)  #: column of tensors on hosts -> values, or a formula
    models: Mapping[str, Any] = field(default_factory=dict)  #: built-in model -> its name in the framework; {}: any

    def said(self, model: Any, quantity: Lookup = lambda name: nan) -> dict[str, Any]:
        """`given` of a model: values that depend on experts are those of their balancing method.

        `quantity` has the values of names in conditions. [SI units]
        """
        return _said(self.given, model, quantity)

    def assumed(self, model: Any, quantity: Lookup = lambda name: nan) -> dict[str, Any]:
        """`said` and `unstated`: settings of a measured run that does not state them."""
        return {**self.said(model, quantity), **_said(self.unstated, model, quantity)}

    def word(self, column: str, value: Any) -> Any:
        """The word of the software for a value of a column."""
        return self.runs[column].words[str(value)]

    def value(self, column: str, word: Any, default: Any = None) -> Any:
        """The value of a column that the software calls so."""
        return next((option for option, name in self.runs[column].words.items() if name == word), default)


def _said(values: Mapping[str, Any], model: Any, quantity: Lookup) -> dict[str, Any]:
    """Values of a model on a machine."""
    experts = isinstance(model, ModelShape) and model.num_experts > 0
    method = model.balancing if experts else ""
    said: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, dict):
            said[name] = value
        elif {*value} == {*BALANCING}:
            said |= {name: value[method]} if method else {}
        else:
            holding = [choice for text, choice in value.items() if holds(text, quantity)]
            said |= {name: holding[0]} if holding else {}
    return said


def holds(condition: str, quantity: Lookup) -> bool:
    """True if comparisons joined by ``and`` hold for the values of names, numbers or words."""
    for text in condition.split(" and "):
        name, sign, other = text.split()
        value = quantity(name)
        number = not isinstance(value, str) and other[0].isdigit()
        if not (_SIGNS[sign](value, float(other)) if number else sign == "==" and value == other):
            return False
    return True


def is_condition(text: Any) -> bool:
    """True for comparisons that `holds` reads."""
    return isinstance(text, str) and all(_CONDITION.fullmatch(part) for part in text.split(" and "))


_EXAMPLE: Final = "'compute_capability >= 10'"
#: A comparison of a name with a number or a word, and its signs.
_CONDITION: Final = re.compile(r"(?P<name>\w+) (?P<sign>[<>]=?|==) (?P<value>\d+(\.\d+)?|[a-z]\w*)")
_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
}


def framework_names() -> list[str]:
    """Names of the built-in frameworks."""
    return shipped.names("frameworks")


def is_built_in(name: str) -> bool:
    """True for the name of a built-in framework, or of one of its releases."""
    return name.partition("@")[0] in framework_names()


@cache
def listed_release(name: str) -> str:
    """A built-in framework with the last release that its file lists by then; other names as they are.

    >>> listed_release("megatron_core@25.05"), listed_release("nanotron@2024"), listed_release("internevo")
    ('megatron_core@24.01', 'nanotron@2024', 'internevo')
    """
    base, _, release = name.partition("@")
    releases = [listed.name for listed in load_framework(base).releases] if is_built_in(name) else []
    known = [listed for listed in releases if not release or release_order(listed) <= _end_of(release)] or releases[:1]
    return f"{base}@{known[-1]}" if known else base


def load_framework(name_or_path: str | Path, base: Path | None = None) -> Framework:
    """A framework by the name of a built-in one, or by path, relative to `base`; ``NAME@25.11`` is a release.

    Names of `software.yaml` stand for a framework with other defaults.

    Raises `DseError` with one line for each mistake in the file.
    """
    if isinstance(name_or_path, str) and is_built_in(name_or_path):
        return _shipped(name_or_path)
    return _read(name_or_path, base)


def _read(name_or_path: str | Path, base: Path | None) -> Framework:
    """A framework from its file."""
    other = _software(str(name_or_path))
    name, section = _opened(other["framework"] if other else name_or_path, base)
    given, otherwise = _given(section.section("given"))
    unstated, _ = _given(section.section("unstated", required=False))
    releases = _releases(section.section("releases", required=False))
    texts = name, section.text("description")
    framework = Framework(*texts, given, otherwise, unstated, releases, **_abilities(section, name))
    section.source.finish()
    return replace(framework, unstated={**unstated, **other.get("unstated", {})}) if other else framework


#: Built-in frameworks, and releases of them, read once.
_shipped = cache(partial(_read, base=None))


def _opened(name_or_path: str | Path, base: Path | None) -> tuple[str, Section]:
    """Name of a framework, with its release, and its file as of this release."""
    text, _, release = str(name_or_path).partition("@")
    name, _, section = shipped.opened(text if release else name_or_path, "frameworks", base)
    section.only(("schema", "releases", *_PARTS))
    section.word("schema", [SCHEMA])
    _releases(section.section("releases", required=False))
    section.source.finish()
    section, listed = _of_release(section, release)
    return f"{name}@{listed}" if listed else name, section


def framework_text(name: str) -> str:
    """The file of a built-in framework, or a file of one of its releases.

    Raises `DseError` if there is none.
    """
    name = _software(name).get("framework", name)
    if "@" not in name:
        return read_text(shipped.located(name, "frameworks", Path()))
    _, section = _opened(name, None)
    return dump({key: value for key, value in section.data.items() if key != "releases"}, compact=True)


def _software(text: str) -> dict[str, Any]:
    """The entry of `software.yaml` for a name, with its release; {} if it has none."""
    name, _, release = text.partition("@")
    entry = _software_table().get(name, {})
    if entry and release and "@" not in entry["framework"]:
        return {**entry, "framework": f"{entry['framework']}@{release}"}
    return entry


@cache
def _software_table() -> dict[str, dict[str, Any]]:
    """Name -> framework, settings that measured runs of it have unless they state others, and the source."""
    name = "software.yaml"
    section = parse(read_text(shipped.ROOT / name), name).section("software")
    table = {}
    for word in section:
        entry = section.section(word)
        entry.only(("framework", "unstated", "source"))
        unstated, _ = _given(entry.section("unstated", required=False))
        table[word] = {"framework": entry.text("framework"), "unstated": unstated}
        entry.text("source", required=bool(unstated))
    section.source.finish()
    return table


#: Year and month, perhaps a number, or a year.
_RELEASE: Final = re.compile(r"(20)?\d\d(\.\d\d?(\.\d{1,3})?)?")


def release_order(text: str) -> tuple[int, ...]:
    """Year, month and number of a release, for comparisons.

    Raises `DseError` if it is not a release.

    >>> release_order("25.11") < release_order("2026") < release_order("2026.01.2")
    True
    """
    if not _RELEASE.fullmatch(text):
        raise DseError(f"release {text!r}: expected year and month, such as 25.11, or a year, such as 2021")
    year, *rest = map(int, text.split("."))
    return year % 2000, *rest


def _end_of(release: str) -> tuple[int, ...]:
    """Order of a release; of a year without a month, of its end."""
    return release_order(release) if "." in release else (*release_order(release), 99)


def _of_release(section: Section, release: str) -> tuple[Section, str]:
    """A framework file as of a release, and the name of it; "" for the newest.

    A year without a month is its end, and has the name of the last listed release by then. Values `before` later
    releases replace those of the file; null removes one.
    """
    releases, data = section.mapping("releases"), dict(section.data)
    if not release:
        return section, ""
    later = [name for name in releases if release_order(name) > _end_of(release)]
    for name in reversed(later):
        data = _before(data, releases[name].get("before", {}))
    listed = [*releases][: len(releases) - len(later)][-1:] if "." not in release else []
    return Section(section.source, section.at, data), listed[0] if listed else release


def _before(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a framework file with the values before a release."""
    parts = dict(data)
    for key, values in changes.items():
        if isinstance(values, dict) and isinstance(parts.get(key, {}), dict):
            values = {name: value for name, value in {**parts.get(key, {}), **values}.items() if value is not None}
        parts[key] = values
    return {key: values for key, values in parts.items() if values is not None}


def _releases(section: Section) -> tuple[Release, ...]:
    """Releases that a file lists."""
    releases = []
    for name in section:
        entry = section.section(name)
        entry.only(("changed", "source", "before"))
        if not _RELEASE.fullmatch(name):
            section.mistake(name, "expected year and month, such as 25.11, or a year, such as 2021")
        entry.section("before", required=False).only(_PARTS)
        releases.append(Release(name, entry.text("changed"), entry.text("source")))
    return tuple(releases)


@cache
def launching(form: str) -> Framework:
    """The built-in framework that launch files of a form start, in its newest release."""
    return next(framework for framework in map(load_framework, framework_names()) if form in framework.launch)


def _abilities(section: Section, name: str) -> dict[str, Any]:
    """Abilities of the software, from a file that states them."""
    texts: dict[str, Any] = {key: section.text(key, required=False) for key in ("title", "release")}
    texts["title"] = texts["title"] or name
    runs = section.section("runs", required=False)
    texts["runs"] = {column: _runs(runs.section(column)) for column in runs}
    for key in ("limits", "derived"):
        formulas = section.section(key, required=False)
        texts[key] = {formula: _formula(formulas.section(formula)) for formula in formulas}
    texts |= {key: _words(section, key) for key in ("launch", "modules")}
    return {**texts, **{key: section.mapping(key) for key in ("offload", "models")}}


def _words(section: Section, key: str) -> tuple[str, ...]:
    """A list of words under a key, or none."""
    words = section.data.get(key, [])
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return tuple(words)
    section.mistake(key, "expected a list of words")
    return ()


def _runs(section: Section) -> Runs:
    """Values of a column that the software can run: a list, or its word for each."""
    section.only(("values", "where", "source"))
    section.text("source")
    values = section.data.get("values")
    if isinstance(values, list) and not any(isinstance(value, (list, dict)) for value in values):
        values = {value: value for value in values}
    if not isinstance(values, dict) or not values:
        section.mistake("values", "expected values, or what the software calls each")
        values = {}
    return Runs({str(value): word for value, word in values.items()}, section.text("where", required=False))


def _formula(section: Section) -> str:
    """A formula, with its source."""
    section.only(("formula", "source"))
    section.text("source")
    return section.text("formula")


def _given(section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values by name, and those that some have otherwise; each says where it comes from."""
    given: dict[str, Any] = {}
    otherwise: dict[str, Any] = {}
    for name in section:
        if not isinstance(section.data[name], dict):
            section.mistake(name, "expected {value, kind, source}: a value says where it comes from")
            continue
        constant = section.section(name)
        constant.only(("value", "otherwise", "kind", "source"))
        constant.word("kind", FRAMEWORK_KINDS)
        constant.text("source")
        if "value" not in constant:
            constant.mistake(None, "value: missing")
        given[name] = value = constant.data.get("value")
        if isinstance(value, dict) and {*value} != {*BALANCING} and not all(map(is_condition, value)):
            methods = ", ".join(BALANCING)
            constant.mistake("value", f"expected a value, one for each of {methods}, or conditions such as {_EXAMPLE}")
        if "otherwise" in constant:
            otherwise[name] = constant.data["otherwise"]
    return given, otherwise
