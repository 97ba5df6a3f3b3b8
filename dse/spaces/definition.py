"""Reads a search space: YAML -> `Definition`, with every mistake reported at once.

Sections are read in the order of their dependencies: constants, parameters, derived columns, constraints, objectives.
Each section adds names that later formulas may use, with unit and words, so that a formula is checked before any design
exists. A name is defined once; a misspelt one gets a suggestion.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np

from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import Section
from costmodel.formats.quantity import dimension, quantity, unit_name
from costmodel.machine import System
from costmodel.rules.registry import all_columns, design_columns
from costmodel.rules.rules import Workload
from costmodel.training.design import DesignPoints
from costmodel.training.design_table import Domain, shown
from dse.predictions import INTERVAL_KEYS, INTERVAL_UNITS
from dse.spaces.formulas.expressions import OWN, Expression, Name, UnitFunction
from dse.spaces.formulas.names import Derived, Names, impossible, is_count
from dse.spaces.sections import training_run as runs
from dse.spaces.sections.frameworks import USUAL_RULES
from dse.spaces.sections.named_parts import with_model, with_system
from dse.spaces.sections.parameters import (
    Constraint,
    Direction,
    Objective,
    Parameter,
    Value,
    read_parameter,
    with_sampled_kernels,
    written_options,
    written_value,
)

OwnSpace = TypeVar("OwnSpace")


@dataclass(frozen=True)
class SpaceWorkload(Generic[OwnSpace]):
    """A model, and how it may be laid out on each machine."""

    name: str
    weight: float  #: of its step among those of all [-]
    space: OwnSpace  #: only its part, with its layouts exact, judged by the objective that chooses its layout


AnySpace = TypeVar("AnySpace", bound="Definition")

SCHEMA: Final = "search_space/v1"
KEYS: Final = ("schema", "name", "description", "model", "workload", "system", "framework", "given", "run",
               "parameters", "derived", "constraints", "layouts", "objectives")  # fmt: skip


@dataclass(frozen=True)
class Definition:
    """Content of a space file, with names looked up and values checked."""

    name: str
    description: str
    data: Mapping[str, Any]  #: the file's content, with the model and the system in it
    framework: str  #: software that its designs run; "" where it is not said
    workload: Workload  #: the model, and its kind of work
    system: System
    given: Mapping[str, float]
    parameters: tuple[Parameter, ...]
    derived: tuple[Derived, ...]
    rules: tuple[Constraint, ...]  #: conditions that are known before evaluation
    limits: tuple[Constraint, ...]  #: conditions that need evaluation
    layouts: Mapping[str, Mapping[str, Value]]  #: named designs, or parts of designs, to start from
    objectives: tuple[Objective, ...]
    names: Mapping[str, Name]  #: every name known before evaluation
    constants: Mapping[str, float]  #: values of those that are the same for all designs
    workloads: tuple[SpaceWorkload[Any], ...] = ()  #: of a space of machines on which several run

    @property
    def model(self) -> Any:
        """The model, or the program: a `ModelShape`, an `LstmShape` or a `Program`."""
        return self.workload.model

    @property
    def directions(self) -> list[Direction]:
        """The direction of each objective: "minimize" or "maximize"."""
        return [objective.direction for objective in self.objectives]

    @property
    def evaluated_formulas(self) -> list[str]:
        """Formulas that need evaluation: objectives, limits, and derived columns."""
        formulas = [*(o.expression for o in self.objectives), *(c.expression for c in self.limits)]
        return formulas + [derived.expression for derived in self.derived if derived.evaluated]

    @cached_property
    def reads_intervals(self) -> bool:
        """True if objectives, limits or derived columns read ends of intervals."""
        ends = {*INTERVAL_KEYS, *INTERVAL_UNITS}
        return any(not ends.isdisjoint(Expression.parse(text).names) for text in self.evaluated_formulas)

    @cached_property
    def own_functions(self) -> list[UnitFunction]:
        """Functions of the user's that its formulas call."""
        texts = [*(d.expression for d in self.derived), *(c.expression for c in (*self.rules, *self.limits))]
        called = {name for text in texts for name in Expression.parse(text).called}
        return [OWN[name] for name in sorted(called & OWN.keys())]


def read_definition(section: Section, name: str, base: Path) -> Definition:
    """The space that a mapping describes; paths in it count from `base`.

    Raises `DseError` with one line for each mistake.
    """
    section.only(KEYS)
    section.word("schema", [SCHEMA])
    name = section.text("name", required=False) or name
    section, workload, model_data = with_model(section, name, base)
    columns, model = design_columns(workload), workload.model
    section, framework, system, system_data = with_system(section, name, base, model, columns)
    section = with_sampled_kernels(runs.written_out(section, model.dimensions), columns, system)
    reader = _Reader(section, Names(workload, system))
    reader.check_aliases()
    given = reader.given()
    settings: dict[str, Any] = {key: value for key, value in given.items() if key in reader.names.settings}
    constants = {key: value for key, value in given.items() if key in reader.names.quantities}
    parameters = reader.parameters()
    reader.derive()
    rules, limits = reader.constraints()
    usual = (*reader.totals(), *reader.usual_rules(parameters))
    layouts = reader.layouts({parameter.name: parameter for parameter in parameters})
    objectives = reader.objectives()
    reader.check_use()
    section.source.finish()
    return Definition(
        name=name, description=section.text("description", required=False),
        data={**section.data, "model": {"name": model.name, **model_data},
              "system": {"name": system.name, **system_data}},
        framework=framework, workload=replace(workload, model=replace(model, **settings)), given=given,
        system=system.with_quantities(constants),
        parameters=parameters, derived=tuple(reader.names.derived.values()), rules=(*rules, *usual),
        limits=limits, layouts=layouts, objectives=objectives, names=reader.names.known,
        constants=reader.names.constants,
    )  # fmt: skip


class _Reader:
    """Reads the parts of a space, in the order in which they need each other's names."""

    def __init__(self, section: Section, names: Names) -> None:
        self.section = section
        self.names = names

    def check_aliases(self) -> None:
        """Note columns that are named by an alias too, where that may be on."""
        keys = ("given", "parameters", "derived")
        named = {name: value for key in keys for name, value in self.section.mapping(key).items()}
        for name, alias in DesignPoints.aliases.items():
            if {name, alias.column} <= named.keys() and named[name] not in (False, [False]):
                word = shown(alias.value, DesignPoints.declared()[alias.column])
                text = f"{name}: is {alias.column}: {word} by another name; leave it out, or set it to false"
                self.section.mistake(None, text)

    def given(self) -> dict[str, float]:
        """Values that all designs share, by name."""
        section = self.section.section("given", required=False)
        given: dict[str, float] = {}
        for name in section:
            value, known = section.value(name, partial(self._given, name), (np.nan, Name()))
            if self.names.claim(section, name):
                self.names.define(name, known, constant=value)
                given[name] = value
        return given

    def _given(self, name: str, written: Any) -> tuple[float, Name]:
        """Value of a column, and its description as a name."""
        domain = all_columns().get(name, Domain())
        words, boolean = domain.words, domain.switch or isinstance(written, bool)
        unit = "-" if words or boolean else self._unit(name)
        unit = unit or (unit_name(quantity(written).dimension) if isinstance(written, str) else "-")
        value = written_value(written, unit, words, boolean)
        number = float(words.index(value)) if isinstance(value, str) else float(value)
        if wrong := impossible(name, number, self.names.ranges):
            raise ValueError(wrong)
        return number, Name(dimension(unit), words, boolean)

    def _unit(self, name: str) -> str | None:
        """Unit that a column must have; None for a name of the file's own."""
        pure = is_count(name) or name in self.names.columns
        return "-" if pure else self.names.quantities.get(name)

    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the space, its degrees of freedom."""
        section, parameters = self.section.section("parameters"), []
        for name in section:
            stand_in = Parameter(name, self._unit(name) or "-", (1,))
            parameter = section.value(name, partial(self._parameter, name), stand_in)
            if self.names.claim(section, name):
                known = Name(dimension(parameter.unit), parameter.words, parameter.boolean)
                self.names.define(name, known, decided_by=frozenset({name}))
                parameters.append(parameter)
        if not parameters and "parameters" in self.section:
            self.section.mistake("parameters", "expected at least one, such as tp: [1, 2, 4, 8]")
        return tuple(parameters)

    def _parameter(self, name: str, written: Any) -> Parameter:
        parameter = read_parameter(name, written, self._unit(name), self.names.constants, self.names.fixed())
        formula = written_options(written)
        if isinstance(formula, str):
            self.names.used |= Expression.parse(formula).names
        options = parameter.options
        if options is None and is_count(name) and not parameter.integer:
            raise ValueError("expected whole numbers: add kind: integer")
        for value in parameter.ends if options is None else options.tolist():
            if wrong := impossible(name, value, self.names.ranges):
                raise ValueError(wrong)
        return parameter

    def derive(self) -> None:
        """Derived columns, each after those it needs, in any order of the file."""
        section = self.section.section("derived", required=False)
        waiting: dict[str, Expression] = {}
        for name in section:
            formula = section.value(name, _formula, None)
            if self.names.claim(section, name) and formula is not None:
                waiting[name] = formula
        while waiting:
            ready = [name for name, formula in waiting.items() if not formula.names & set(waiting)]
            if not ready:
                circle = " and ".join(sorted(waiting))
                self.section.mistake("derived", f"{circle}: cannot be worked out, each needs itself or another")
                return
            for name in ready:
                self.names.derive(section, name, waiting[name])
            waiting = {name: formula for name, formula in waiting.items() if name not in ready}

    def constraints(self) -> tuple[tuple[Constraint, ...], tuple[Constraint, ...]]:
        """Rules of legal designs, and limits of feasible ones."""
        section = self.section.section("constraints", required=False)
        rules: list[Constraint] = []
        limits: list[Constraint] = []
        for name in section:
            formula = section.value(name, _formula, None)
            constraint = formula and self._constraint(section, name, formula)
            if formula and constraint:
                (limits if self.names.needs_evaluation(formula) else rules).append(constraint)
        return tuple(rules), tuple(limits)

    def _constraint(self, section: Section, name: str, formula: Expression) -> Constraint | None:
        compiled = self.names.compiled(section, name, formula)
        if compiled is None:
            return None
        if compiled.margin is None:
            section.mistake(
                name, f"{formula.text!r} is not a condition; compare it with a value, as in '{formula.text} > 0'"
            )
            return None
        unit = unit_name(compiled.margin.dimension)
        behind, derived = self.names.parameters_behind(formula), self.names.derived_behind(formula)
        return Constraint(name, unit, formula.text, compiled, behind, derived)

    def totals(self) -> tuple[Constraint, ...]:
        """Rules of every space: the parallel sizes use all of the world size, and all of the batch."""
        rules = []
        for total, factors in self.names.totals.items():
            present = [name for name in factors if name in self.names.known]
            if total in self.names.known and present:
                formula = Expression.parse(f"{' * '.join(present)} == {total}")
                rules.append(self._constraint(self.section, f"uses_all_of_{total}", formula))
        return tuple(rule for rule in rules if rule)

    def usual_rules(self, parameters: Sequence[Parameter]) -> tuple[Constraint, ...]:
        """Usual rules about columns that the space opens; other columns have the values of the space."""
        rules, open_names = [], {parameter.name for parameter in parameters} | {*self.names.derived}
        for rule in USUAL_RULES:
            formula = rule.expression(self.names.known) if rule.of & open_names else None
            if formula:
                rules.append(self._constraint(self.section, rule.name, formula))
        return tuple(rule for rule in rules if rule and rule.parameters)

    def layouts(self, parameters: Mapping[str, Parameter]) -> dict[str, dict[str, Value]]:
        """Named values of some parameters."""
        section = self.section.section("layouts", required=False)
        layouts: dict[str, dict[str, Value]] = {}
        for name in section:
            layout = section.section(name)
            layouts[name] = {}
            for parameter in layout:
                if parameter not in parameters:
                    layout.mistake(parameter, f"no parameter of this space{suggestion(parameter, parameters)}")
                    continue
                try:
                    layouts[name][parameter] = parameters[parameter].accepted(layout.data[parameter])
                except DseError as error:
                    layout.mistake(parameter, str(error))
        return layouts

    def objectives(self) -> tuple[Objective, ...]:
        """Columns to minimize or maximize."""
        section = self.section.section("objectives")
        section.only(("minimize", "maximize"))
        objectives: list[Objective] = []
        before = len(section.source.mistakes)
        directions: tuple[Direction, ...] = ("minimize", "maximize")
        for direction in directions:
            for written in section.value(direction, _name_list, list[str](), required=False):
                name = self.names.of_key.get(written, written)
                objective = self._objective(section, name, direction)
                if objective and any(name == other.name for other in objectives):
                    section.mistake(direction, f"{name}: given twice")
                elif objective:
                    objectives.append(objective)
        if not objectives and "objectives" in self.section and len(section.source.mistakes) == before:
            self.section.mistake("objectives", "expected at least one, such as minimize: [step_time]")
        return tuple(objectives)

    def _objective(self, section: Section, name: str, direction: Direction) -> Objective | None:
        known = self.names.all()
        if name not in known or known[name].words:
            columns = [n for n in known if n not in self.names.of_key and not known[n].words]
            hint = suggestion(name, columns)
            if name in runs.UNITS:
                section.mistake(direction, f"{name}: needs the tokens of the run: add --tokens, such as 15T")
            else:
                section.mistake(direction, f"{name}: no column of this name{hint}; 'derived' names formulas")
            return None
        self.names.used.add(name)
        formula = Expression.parse(name).compiled(known)
        return Objective(name, direction, unit_name(known[name].dimension), name, formula)

    def check_use(self) -> None:
        """Note names that nothing reads: most likely misspelt."""
        columns = {*self.names.columns, *self.names.quantities, *self.names.totals}
        read = self.names.used | columns | self.names.settings
        for name in self._idle(columns):
            self.section.section("parameters").mistake(
                name, "changes nothing: designs of this model have no such column; leave it out"
            )
        for key, what, alike in (("given", "name", 0.6), ("parameters", "parameter", 0.6), ("derived", "column", 0.85)):
            section = self.section.section(key, required=False)
            for name in (name for name in section if name not in read):
                close = difflib.get_close_matches(name, columns, n=1, cutoff=alike)
                if close:
                    section.mistake(name, f"unknown {what}; did you mean {close[0]!r}?")
                elif key != "derived":
                    section.mistake(name, f"unknown {what}, and no formula uses it")

    def _idle(self, columns: set[str]) -> list[str]:
        """Parameters that only designs of other models have, and that no derived column reads."""
        derived = [Expression.parse(alias.expression) for alias in self.names.derived.values()]
        read = set[str]().union(*(formula.names for formula in derived))
        parameters = self.section.section("parameters", required=False)
        return [name for name in parameters if name in all_columns() and name not in columns | read]


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
