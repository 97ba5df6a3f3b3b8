"""Reads a search space: YAML -> `Definition`, with every mistake told at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from costmodel.breakdown import Breakdown, tabled
from costmodel.columns import column_units
from costmodel.design import CHOICES, SWITCHES, DesignPoints
from costmodel.errors import DseError, suggestion
from costmodel.formats import shipped
from costmodel.formats.model_file import read_model
from costmodel.formats.quantity import dimension, quantity, unit_name
from costmodel.formats.strict_yaml import Section
from costmodel.formats.system_file import read_system
from costmodel.model import DIMENSIONS, ModelShape
from costmodel.system import System
from dse.expressions import Compiled, Expression, Name
from dse.objectives import Constraint, Direction, Objective
from dse.parameters import Parameter, read_parameter, written_value

SCHEMA: Final = "search_space/v1"
KEYS: Final = ("schema", "name", "description", "model", "system", "given", "parameters", "derived",
               "constraints", "objectives")  # fmt: skip
DESIGN_COLUMNS: Final = tuple(column_units(DesignPoints))
#: Model dimensions that a space may set without making another model of it.
MODEL_SETTINGS: Final = ("seq_len", "vocab_size")
#: Columns that count things: a design where one is not whole, or below 1, is not legal.
COUNTS: Final = frozenset(DESIGN_COLUMNS) - set(SWITCHES) - set(CHOICES) | {
    *("world_size", "global_batch_size", "nodes", "node_size", *MODEL_SETTINGS),
    *("cores", "arrays_per_core", "array_height", "array_width"),
}
#: Column names with their unit, as tables show them -> the name.
WITH_UNIT: Final = {tabled(name): name for name in column_units(Breakdown)}
#: Held by every design that gives the total: total -> columns whose product it is.
TOTALS: Final = {
    "world_size": ("tp", "pp", "dp"),
    "global_batch_size": ("dp", "micro_batch_size", "gradient_accumulation_steps"),
}


@dataclass(frozen=True, slots=True)
class Derived:
    """A column worked out from others."""

    name: str
    unit: str
    expression: str
    formula: Compiled
    parameters: frozenset[str]  #: that it depends on
    needs: tuple[str, ...]  #: derived columns it needs, in order, itself last
    priced: bool  #: whether it needs pricing


@dataclass(frozen=True)
class Definition:
    """What a space file says, looked up and checked."""

    name: str
    description: str
    data: Mapping[str, Any]  #: the file's content, with the model and the system in it
    model: ModelShape
    system: System
    given: Mapping[str, float]
    parameters: tuple[Parameter, ...]
    derived: tuple[Derived, ...]
    rules: tuple[Constraint, ...]
    limits: tuple[Constraint, ...]
    objectives: tuple[Objective, ...]
    scope: Mapping[str, Name]
    constants: Mapping[str, Any]  #: values of every name that is the same for all designs


def read_definition(section: Section, name: str, base: Path) -> Definition:
    """The space that a mapping describes.

    Raises
    ------
    DseError
        With one line for each mistake.
    """
    reader = _Reader(section, name, base)
    definition = reader.definition()
    section.source.finish()
    return definition


class _Reader:
    """Reads the parts of a space in the order in which they need each other."""

    def __init__(self, section: Section, name: str, base: Path) -> None:
        self.section = section
        self.name = section.text("name", required=False) or name
        self.base = base
        self.scope: dict[str, Name] = {}
        self.constants: dict[str, Any] = {}
        self.depends: dict[str, frozenset[str]] = {}  #: name -> parameters behind it
        self.derived: dict[str, Derived] = {}
        self.used: set[str] = set()

    def definition(self) -> Definition:
        section = self.section
        section.only(KEYS)
        section.word("schema", [SCHEMA])
        data = dict(section.data)
        model = self.named("model", data)
        system = self.named("system", data)
        if not isinstance(model, ModelShape) or not isinstance(system, System):
            section.source.finish()
            raise DseError(f"{section.source.name}: expected a model and a system")
        self.look_up(model, system)
        given = self.given()
        settings: dict[str, Any] = {k: v for k, v in given.items() if k in MODEL_SETTINGS}
        model = replace(model, **settings)
        quantities = system.units()
        system = system.with_quantities({k: v for k, v in given.items() if k in quantities})
        parameters = self.parameters(quantities)
        self.derive()
        rules, limits = self.constraints()
        rules += self.totals()
        objectives = self.objectives()
        self.check_use(parameters, given, quantities)
        return Definition(
            name=self.name, description=section.text("description", required=False), data=data,
            model=model, system=system, given=given, parameters=parameters,
            derived=tuple(self.derived.values()), rules=tuple(rules), limits=tuple(limits),
            objectives=tuple(objectives), scope=self.scope, constants=self.constants,
        )  # fmt: skip

    def named(self, key: Literal["model", "system"], data: dict[str, Any]) -> ModelShape | System | None:
        """The model or system, by name, by path, or written out; `data` gets it written out."""
        written = data.get(key)
        if isinstance(written, dict):
            name, part = self.name, self.section.section(key)
        elif isinstance(written, str):
            try:
                name, _, part = shipped.opened(written, key + "s", self.base)
            except DseError as error:
                self.section.mistake(key, str(error))
                return None
        else:
            self.section.mistake(key if key in data else None,
                                 f"{key}: expected a name, a path, or the {key} itself")  # fmt: skip
            return None
        found = read_model(part, name) if key == "model" else read_system(part, name)
        if part.source is not self.section.source:
            part.source.finish()
        data[key] = {"name": found.name, **part.data}
        return found

    def look_up(self, model: ModelShape, system: System) -> None:
        """Names that every space knows."""
        for name in (*DIMENSIONS, "num_parameters"):
            self.scope[name] = Name()
            self.constants[name] = float(getattr(model, name))
        for name, unit in system.units().items():
            self.scope[name] = Name(dimension(unit))
            self.constants[name] = float(system.quantities()[name])
        self.priced = {}
        for name, unit in column_units(Breakdown).items():
            self.priced[name] = self.priced[tabled(name)] = Name(dimension(unit))
        self.priced = {name: known for name, known in self.priced.items() if name not in self.scope}
        self.depends = dict.fromkeys(self.scope, frozenset())

    def new_name(self, section: Section, name: str, known: Name) -> bool:
        """Add a name, unless it is one already."""
        taken = name in self.depends and (name in self.defined or name in (*DIMENSIONS, "num_parameters"))
        if name in MODEL_SETTINGS and section.at == ("given",):
            taken = False
        if taken or not name.isidentifier() or (name in self.priced and name not in COUNTS):
            section.mistake(name, "already means something else" if name.isidentifier() else "not a name")
            return False
        self.defined.add(name)
        self.scope[name] = known
        self.constants.pop(name, None)
        self.priced.pop(name, None)
        return True

    def given(self) -> dict[str, float]:
        """Values that all designs share."""
        self.defined: set[str] = set()
        section, given = self.section.section("given", required=False), {}
        for name in section:
            words = CHOICES.get(name, ())

            def read(written: Any, name: str = name, words: tuple[str, ...] = words) -> tuple[float, str]:
                unit = unit_name(self.scope[name].dimension) if name in self.scope else None
                unit = unit or (_unit_of(written) if not words else "-")
                boolean = name in SWITCHES or isinstance(written, bool)
                value = written_value(written, unit, words, boolean)
                number = float(words.index(value)) if isinstance(value, str) else float(value)
                if name in COUNTS and not (number >= 1 and number.is_integer()):
                    raise ValueError(f"{number:g}: expected a whole number of at least 1")
                return number, unit

            value, unit = section.value(name, read, (np.nan, "-"))
            known = Name(dimension(unit), words, name in SWITCHES or isinstance(section.data[name], bool))
            if self.new_name(section, name, known):
                given[name] = self.constants[name] = value
                self.depends[name] = frozenset()
        return given

    def parameters(self, quantities: Mapping[str, str]) -> tuple[Parameter, ...]:
        """Degrees of freedom."""
        section, parameters = self.section.section("parameters"), []
        for name in section:
            unit = "-" if name in COUNTS or name in DESIGN_COLUMNS else quantities.get(name)
            stand_in = Parameter(name, unit or "-", (1,))
            known = {n: k for n, k in self.scope.items() if n in self.constants}

            def read(written: Any, name: str = name, unit: str | None = unit,
                     known: Mapping[str, Name] = known) -> Parameter:  # fmt: skip
                self.note_use(written)
                parameter = read_parameter(name, written, unit, self.constants, known)
                _check_options(parameter)
                return parameter

            parameter = section.value(name, read, stand_in)
            entry = Name(dimension(parameter.unit), parameter.words, parameter.boolean)
            if self.new_name(section, name, entry):
                self.depends[name] = frozenset({name})
                parameters.append(parameter)
        if not parameters and "parameters" in self.section:
            self.section.mistake("parameters", "expected at least one, such as tp: [1, 2, 4, 8]")
        return tuple(parameters)

    def note_use(self, written: Any) -> None:
        """Remember the names of a formula among the options."""
        if isinstance(written, str):
            self.used |= Expression.parse(written).names

    def derive(self) -> None:
        """Derived columns, each after those it needs, in whatever order the file has them."""
        section = self.section.section("derived", required=False)
        waiting: dict[str, Expression] = {}
        for name in section:
            formula = section.value(name, _formula, None)
            if formula is not None and self.new_name(section, name, Name()):
                waiting[name] = formula
            self.scope.pop(name, None) if formula is not None else None
        while waiting:
            ready = [name for name, formula in waiting.items() if not formula.names & set(waiting)]
            if not ready:
                circle = ", ".join(sorted(waiting))
                self.section.mistake("derived", f"each of {circle} needs another of them first")
                return
            for name in ready:
                self.derive_one(section, name, waiting.pop(name))

    def derive_one(self, section: Section, name: str, formula: Expression) -> None:
        compiled = self.compiled(section, name, formula)
        if compiled is None or compiled.kind not in ("number", "boolean"):
            if compiled is not None:
                section.mistake(name, f"{formula.text!r} gives {compiled.kind}s; expected a number")
            self.scope[name], self.depends[name] = Name(), frozenset()
            return
        priced = self.needs_pricing(formula)
        self.scope[name] = Name(compiled.dimension, boolean=compiled.kind == "boolean")
        self.depends[name] = self.parameters_behind(formula)
        self.derived[name] = Derived(
            name, unit_name(compiled.dimension), formula.text, compiled, self.depends[name],
            (*self.derived_behind(formula), name), priced,
        )  # fmt: skip
        if priced and (name in COUNTS or name in DESIGN_COLUMNS or name in self.constants):
            section.mistake(name, "must be known before pricing, and this formula needs its result")

    def compiled(self, section: Section, key: str, formula: Expression) -> Compiled | None:
        """A formula with its names looked up, pricing's columns included."""
        self.used |= formula.names
        try:
            return formula.compiled({**self.priced, **self.scope})
        except DseError as error:
            section.mistake(key, str(error))
            return None

    def needs_pricing(self, formula: Expression) -> bool:
        return any(
            name in self.priced or (name in self.derived and self.derived[name].priced)
            for name in formula.names
        )

    def parameters_behind(self, formula: Expression) -> frozenset[str]:
        return frozenset[str]().union(*(self.depends.get(name, frozenset()) for name in formula.names))

    def derived_behind(self, formula: Expression) -> tuple[str, ...]:
        needed = {need for n in formula.names if n in self.derived for need in self.derived[n].needs}
        return tuple(name for name in self.derived if name in needed)

    def constraints(self) -> tuple[list[Constraint], list[Constraint]]:
        """Rules, which parameters alone decide, and limits, which need pricing."""
        section = self.section.section("constraints", required=False)
        rules: list[Constraint] = []
        limits: list[Constraint] = []
        for name in section:
            formula = section.value(name, _formula, None)
            compiled = None if formula is None else self.compiled(section, name, formula)
            if formula is None or compiled is None:
                continue
            if compiled.margin is None:
                section.mistake(name, f"{formula.text!r} is no condition; compare it with something")
                continue
            unit = unit_name(compiled.margin.dimension)
            constraint = Constraint(name, unit, formula.text, compiled, self.parameters_behind(formula),
                                    self.derived_behind(formula))  # fmt: skip
            (limits if self.needs_pricing(formula) else rules).append(constraint)
        return rules, limits

    def totals(self) -> list[Constraint]:
        """Rules that hold in every space: the parallel sizes use all of the world size and of the batch."""
        rules = []
        for total, factors in TOTALS.items():
            present = [name for name in factors if name in self.scope]
            if total in self.scope and present:
                formula = Expression.parse(f"{' * '.join(present)} == {total}")
                try:
                    compiled = formula.compiled(self.scope)
                except DseError:
                    continue  # a factor of another unit has been noted where it is defined
                rules.append(Constraint(f"uses_all_of_{total}", "-", formula.text, compiled,
                                        self.parameters_behind(formula), self.derived_behind(formula)))  # fmt: skip
        return rules

    def objectives(self) -> list[Objective]:
        """Columns to minimize or maximize."""
        section = self.section.section("objectives")
        objectives: list[Objective] = []
        none: list[str] = []
        section.only(("minimize", "maximize"))
        directions: tuple[Direction, ...] = ("minimize", "maximize")
        for direction in directions:
            for name in section.value(direction, _name_list, none, required=False):
                name = WITH_UNIT.get(name, name)
                known = {**self.priced, **self.scope}
                if name not in known or known[name].words:
                    numbers = [n for n in known if n not in WITH_UNIT and not known[n].words]
                    section.mistake(direction, f"{name}: no column of this name{suggestion(name, numbers)}; "
                                               "a formula is named under 'derived'")  # fmt: skip
                    continue
                self.used.add(name)
                if any(name == objective.name for objective in objectives):
                    section.mistake(direction, f"{name}: given twice")
                formula = Expression.parse(name).compiled(known)
                objectives.append(Objective(name, direction, unit_name(known[name].dimension), name, formula))
        if not objectives and "objectives" in self.section:
            self.section.mistake("objectives", "expected at least one, such as minimize: [step_time]")
        return objectives

    def check_use(self, parameters: tuple[Parameter, ...], given: Mapping[str, float],
                  quantities: Mapping[str, str]) -> None:  # fmt: skip
        """Note names that nothing reads: most likely misspelt."""
        read = self.used | set(DESIGN_COLUMNS) | set(quantities) | set(MODEL_SETTINGS) | set(TOTALS)
        known = sorted({*DESIGN_COLUMNS, *quantities, *TOTALS})
        for kind, names in (("given", given), ("parameters", [p.name for p in parameters])):
            for name in names:
                if name not in read:
                    close = difflib.get_close_matches(name, known, n=1)
                    hint = f"; did you mean {close[0]!r}?" if close else ", and no formula uses it"
                    self.section.source.mistake((kind, name), f"unknown {kind.removesuffix('s')}{hint}")
        for name in self.derived:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if name not in read and close:
                self.section.source.mistake(("derived", name), f"unknown column; did you mean {close[0]!r}?")


def _unit_of(written: Any) -> str:
    """Unit of a value that carries its own."""
    return unit_name(quantity(written).dimension) if isinstance(written, str) else "-"


def _check_options(parameter: Parameter) -> None:
    """Counts are whole and positive; quantities are not negative."""
    options = parameter.options
    values = [parameter.low or 0.0, parameter.high or 0.0] if options is None else options.tolist()
    for value in values:
        if parameter.name in COUNTS and not (value >= 1 and float(value).is_integer()):
            raise ValueError(f"{value:g}: expected whole numbers of at least 1")
        if parameter.name in COUNTS and options is None and not parameter.integer:
            raise ValueError("expected whole numbers: add kind: integer")
        if value < 0:
            raise ValueError(f"{value:g}: expected no negative number")


def _formula(written: Any) -> Expression | None:
    if isinstance(written, bool | int | float):
        written = str(written)
    if not isinstance(written, str):
        raise ValueError(f"{written!r}: expected a formula")
    try:
        return Expression.parse(written)
    except DseError as error:
        raise ValueError(str(error)) from None


def _name_list(written: Any) -> list[str]:
    names = [written] if isinstance(written, str) else written
    if not isinstance(names, list) or not all(isinstance(n, str) and n.isidentifier() for n in names):
        raise ValueError(f"{written!r}: expected names, such as [step_time, peak_memory]")
    return names
