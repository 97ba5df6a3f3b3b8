"""Framework files: what training software does and can do, in YAML -> `Framework`.

A framework is a list of values, each with its kind and source, for names that designs or machines have: the
attention kernel it calls, what it overlaps, how many kernels it runs in place of a fused one, how long its
host takes to dispatch one. Where files start it (`launch`), `runs` has the values of a column that it knows,
by the words it has for them, and `limits` what of them goes together, as formulas of search spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from costmodel.formats import shipped
from costmodel.formats.strict_yaml import Section
from costmodel.formats.system_file import KINDS
from costmodel.training.model import ModelShape
from costmodel.training.numerics import BALANCING

SCHEMA: Final = "framework/v1"
_ABILITIES: Final = ("title", "release", "launch", "runs", "limits", "derived", "modules", "models")
#: How a value is known: as constants of systems are, or as the software's documentation or code says.
FRAMEWORK_KINDS: Final = (*KINDS, "documented")


@dataclass(frozen=True, slots=True)
class Runs:
    """Abilities of software in a column of designs."""

    words: Mapping[str, Any]  #: value of the column, as text -> what the software calls it
    where: str  #: formula: only such designs ask for it; "": all


@dataclass(frozen=True, slots=True)
class Framework:
    """Defaults of a framework for settings that neither a design nor a machine states, and its abilities."""

    name: str
    description: str
    #: Column of designs, or quantity of systems -> value, as files write it, or word of `BALANCING` -> value.
    given: Mapping[str, Any]
    otherwise: Mapping[str, Any] = field(default_factory=dict)  #: column -> value where a limit refuses `given`
    title: str = ""  #: its name as its makers write it
    release: str = ""  #: of which the rest is said
    launch: tuple[str, ...] = ()  #: forms of the files that start it
    runs: Mapping[str, Runs] = field(default_factory=dict)  #: column of designs -> values that it can run
    limits: Mapping[str, str] = field(default_factory=dict)  #: name -> formula that its designs keep
    derived: Mapping[str, str] = field(default_factory=dict)  #: column -> formula of what it does by itself
    modules: tuple[str, ...] = ()  #: of layers, by Megatron-LM's names, that it can recompute apart
    models: Mapping[str, Any] = field(default_factory=dict)  #: model that ships -> its name there; {}: any

    def said(self, model: Any) -> dict[str, Any]:
        """`given` of a model: values that depend on what balances its experts are those of its method."""
        experts = isinstance(model, ModelShape) and model.num_experts > 0
        method = model.numerics.balancing if experts else ""
        return {
            name: value[method] if isinstance(value, dict) else value
            for name, value in self.given.items()
            if method or not isinstance(value, dict)
        }

    def word(self, column: str, value: Any) -> Any:
        """The word of the software for a value of a column."""
        return self.runs[column].words[str(value)]

    def value(self, column: str, word: Any, default: Any = None) -> Any:
        """The value of a column that the software calls so."""
        return next((own for own, name in self.runs[column].words.items() if name == word), default)


def framework_names() -> list[str]:
    """Names of the frameworks that ship."""
    return shipped.names("frameworks")


def load_framework(name_or_path: str | Path, base: Path | None = None) -> Framework:
    """A framework by the name of one that ships, or by path, which counts from `base`.

    Raises `DseError` with one line for each mistake in the file.
    """
    name, _, section = shipped.opened(name_or_path, "frameworks", base)
    section.only(("schema", "description", "given", *_ABILITIES))
    section.word("schema", [SCHEMA])
    given, otherwise = _given(section.section("given"))
    found = Framework(name, section.text("description"), given, otherwise, **_abilities(section, name))
    section.source.finish()
    return found


@cache
def launching(form: str) -> Framework:
    """The built-in framework that launch files of a form start: of several releases the newest."""
    return [own for own in map(load_framework, framework_names()) if form in own.launch][-1]


def _abilities(section: Section, name: str) -> dict[str, Any]:
    """Abilities of the software, from a file that states them."""
    found: dict[str, Any] = {key: section.text(key, required=False) for key in ("title", "release")}
    found["title"] = found["title"] or name
    runs = section.section("runs", required=False)
    found["runs"] = {column: _runs(runs.section(column)) for column in runs}
    for key in ("limits", "derived"):
        formulas = section.section(key, required=False)
        found[key] = {own: _formula(formulas.section(own)) for own in formulas}
    found |= {key: _words(section, key) for key in ("launch", "modules")}
    return {**found, "models": section.mapping("models")}


def _words(section: Section, key: str) -> tuple[str, ...]:
    """A list of words under a key, or none."""
    words = section.data.get(key, [])
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return tuple(words)
    section.mistake(key, "expected a list of words")
    return ()


def _runs(section: Section) -> Runs:
    """Values of a column that the software can run: a list, or what it calls each."""
    section.only(("values", "where", "source"))
    section.text("source")
    values = section.data.get("values")
    if isinstance(values, list):
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
        if isinstance(value, dict) and {*value} != {*BALANCING}:
            constant.mistake("value", f"expected a value, or one for each of {', '.join(BALANCING)}")
        if "otherwise" in constant:
            otherwise[name] = constant.data["otherwise"]
    return given, otherwise
