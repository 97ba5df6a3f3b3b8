"""A search space: what may be chosen, what follows from it, what it must hold, and what is sought."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError, suggestion
from costmodel.formats import shipped
from costmodel.formats.quantity import unit_name
from costmodel.formats.strict_yaml import Section, Source, dump, parse, scalar
from costmodel.profiles.registry import design_columns
from dse.predictions.columns import at_worse_ends
from dse.spaces import runs, workloads
from dse.spaces.legal import LegalDesigns
from dse.spaces.names import MODEL_SETTINGS
from dse.spaces.objectives import Constraint, directed
from dse.spaces.outer import OuterDesigns
from dse.spaces.parameters import Parameter, Value, decoded
from dse.spaces.space_file import Definition, read_definition

Params = dict[str, Value]

#: Name of the condition that `Space.focused` adds.
FOCUS = "focus"
Batch = dict[str, FloatArray]


def space_names() -> list[str]:
    """Names of the spaces that ship."""
    return shipped.names("spaces")


@dataclass(frozen=True)
class Space(Definition):
    """A search space, and the ways between its designs and the columns that are evaluated.

    One design is a mapping of parameter names to values as the file writes them, in SI units. A batch
    of designs is a column per parameter: numbers, 0 or 1, or the code of a word.
    """

    @classmethod
    def load(cls, name_or_path: str | Path, pins: Mapping[str, Any] | None = None) -> Self:
        """A space by the name of one that ships, or by path, with some of its names pinned.

        Raises
        ------
        DseError
            With one line for each mistake in the file.
        """
        name, path, section = shipped.opened(name_or_path, "spaces")
        space = cls._read(section, name, path.parent)
        return space.pinned(pins) if pins else space

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The space that `text` once was."""
        return cls._read(parse(text, "space"), "space", Path())

    @classmethod
    def _read(cls, section: Section, name: str, base: Path) -> Self:
        if workloads.KEY in section:
            return cls._of_several(
                workloads.read(section, name, lambda own, of: cls._read(own, of, base)), name
            )
        definition = read_definition(section, name, base)
        return cls(**{field.name: getattr(definition, field.name) for field in fields(Definition)})

    @classmethod
    def _of_several(cls, several: workloads.Several[Definition], name: str) -> Self:
        """The space of the machines on which several workloads run."""
        frame = several.frame
        layouts = {parameter.name for parameter in frame.parameters if parameter.exact}
        changes = {
            "name": several.data.get("name", name),
            "data": several.data,
            "parameters": tuple(p for p in frame.parameters if not p.exact),
            "derived": tuple(d for d in frame.derived if not d.parameters & layouts),
            "rules": tuple(rule for rule in frame.rules if not rule.parameters & layouts),
            "workloads": several.workloads,
        }
        return cls(**{f.name: changes.get(f.name, getattr(frame, f.name)) for f in fields(Definition)})

    def _changed(self, data: Mapping[str, Any]) -> Self:
        return self._read(Section(Source(self.name), (), dict(data)), self.name, Path())

    @cached_property
    def text(self) -> str:
        """YAML that needs no other file: the model and the system are written out in it."""
        return dump({"schema": self.data["schema"], "name": self.name, **self.data})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides a result: values and formulas, not how the file words them."""
        system = {name: float(values) for name, values in self.system.quantities().items()}
        decisive: list[Any] = [
            {key: value for key, value in asdict(self.model).items() if key != "name" and value != ()},
            system,
            list(self.system.parts()),
            dict(self.given),
            [
                [p.name, p.unit, p.choices, p.low, p.high, p.step, p.log, p.integer, *["exact"] * p.exact]
                for p in self.parameters
            ],
            sorted([d.name, d.expression] for d in self.derived),
            sorted([c.name, c.expression] for c in (*self.rules, *self.limits)),
            [[o.name, o.direction] for o in self.objectives],
        ]
        several = [[own.name, own.weight, own.space.fingerprint] for own in self.workloads]
        decisive += [several, self.data.get("combine")] if several else []
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    @cached_property
    def legal(self) -> LegalDesigns:
        """Designs that keep every rule; of several workloads machines that have layouts for the first."""
        return self.workloads[0].space.outer if self.workloads else LegalDesigns(self)

    @cached_property
    def inner(self) -> tuple[Parameter, ...]:
        """Parameters of which every value is tried beside each design of the others."""
        return tuple(p for p in self.parameters if p.exact)

    @cached_property
    def outer(self) -> LegalDesigns:
        """What a sampler chooses from: legal designs without their inner parameters."""
        return OuterDesigns(self.legal) if self.inner else self.legal

    @cached_property
    def starting_points(self) -> list[Params]:
        """The designs that layouts name; what a layout leaves open is as simple as is legal beside it."""
        completed = [(layout, self.completed(layout)) for layout in self.layouts.values()]
        return [params for layout, params in completed if layout.items() <= params.items()]

    def completed(self, values: Mapping[str, Value]) -> Params:
        """The legal design nearest to some values, and to the simplest ones of all other parameters.

        Those are the system's own quantities and the first option of everything else.
        """
        quantities = self.system.quantities()

        def simplest(parameter: Parameter) -> Value:
            if parameter.name in quantities:
                return parameter.value(float(quantities[parameter.name]))
            options = parameter.options
            return parameter.value(float(parameter.low or 0.0 if options is None else options[0]))

        wanted = {p.name: values[p.name] if p.name in values else simplest(p) for p in self.parameters}
        return self.legal.nearest(wanted, np.random.default_rng(0))

    @cached_property
    def chosen(self) -> tuple[str, ...]:
        """Names that the file sets: given values, parameters, derived columns."""
        return (*self.given, *self.by_name, *(derived.name for derived in self.derived))

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """Parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def pinnable(self) -> dict[str, Parameter]:
        """Parameters that can be pinned: its own, and those of its workloads' layouts."""
        return (self.workloads[0].space.by_name if self.workloads else {}) | self.by_name

    def encode(self, designs: Sequence[Mapping[str, Value]]) -> Batch:
        """Columns of a list of designs."""
        return {p.name: np.array([p.code(design[p.name]) for design in designs]) for p in self.parameters}

    def decode(self, columns: Mapping[str, FloatArray]) -> list[Params]:
        """Designs of a batch, one mapping each."""
        return decoded(self.parameters, columns)

    def known_values(self, columns: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Values of every name that is known before evaluation: constants, parameters, derived columns."""
        values: dict[str, Any] = {**self.constants, **columns}
        for derived in self.derived:
            if not derived.evaluated:
                values[derived.name] = derived.formula(values)
        return values

    def broken_rules(self, params: Mapping[str, Value]) -> list[Constraint]:
        """Rules that a design breaks."""
        values = self.known_values(self.encode([params]))
        return [rule for rule in self.rules if not np.all(rule.formula(values))]

    def pinned(self, pins: Mapping[str, Any]) -> Self:
        """The space with some names held fixed: parameters, given values, design columns, quantities.

        A text is read as a file's would be, with its unit; a number is in SI units.

        Raises
        ------
        DseError
            If a name is unknown or a value impossible, saying what would be possible.
        """
        space = self._with(pins)
        if space.legal.count == 0:
            raise DseError(self._why_impossible(space, pins))
        return space

    def _with(self, pins: Mapping[str, Any]) -> Self:
        """The space with some names held fixed, whether or not that leaves a design."""
        parameters = dict(self.data["parameters"])
        given = dict(self.data.get("given") or {})
        layouts = dict(self.data.get("layouts") or {})
        for name, written in pins.items():
            if name in self.pinnable:
                accepted = self.pinnable[name].accepted(self.in_file(name, written))
                parameters[name] = [self.in_file(name, accepted)]
                layouts = {key: own for key, own in layouts.items() if self._agrees(key, name, accepted)}
            else:
                self._check_given(name)
                given[name] = self.in_file(name, written)
        changed = {"given": given, "parameters": parameters} | ({"layouts": layouts} if layouts else {})
        others = {key: value for key, value in self.data.items() if key != "layouts"}
        return self._changed({**others, **changed})

    def _agrees(self, layout: str, name: str, value: Value) -> bool:
        """Whether a layout leaves a parameter open, or has it at some value."""
        return self.layouts[layout].get(name, value) == value

    def in_file(self, name: str, value: Any) -> Any:
        """A value as a file has it: a text carries its unit, a number of a quantity is in SI units."""
        unit = self.pinnable[name].unit if name in self.pinnable else "-"
        if name not in self.pinnable and name in self.names:
            unit = unit_name(self.names[name].dimension)
        if isinstance(value, str):
            return scalar(value) if unit == "-" else value
        return value if unit == "-" or isinstance(value, bool) else f"{float(value)!r} {unit}"

    def _check_given(self, name: str) -> None:
        """Refuse a name that cannot be held fixed."""
        if any(name == derived.name for derived in self.derived):
            raise DseError(f"{name}: follows from other names here ({self._formula_of(name)}); pin those")
        columns = design_columns(self.model)
        known = {*self.pinnable, *self.given, *columns, *MODEL_SETTINGS, *self.system.units()}
        if name not in known:
            raise DseError(f"{name}: not a name of space {self.name}{suggestion(name, known)}")

    def _formula_of(self, name: str) -> str:
        return next(f"{name}: {d.expression}" for d in self.derived if d.name == name)

    def _why_impossible(self, space: Self, pins: Mapping[str, Any]) -> str:
        """Which rules the pins break together, and what one of them could be instead."""
        shown = " ".join(f"{name}={value}" for name, value in pins.items())
        reasons = "; ".join(f"{name} ({text})" for name, text in space.legal.blocking())
        message = f"space {self.name}: no legal design with {shown}: breaks {reasons}"
        mine = [name for name in pins if name in self.by_name]
        beside = [(name, {key: pins[key] for key in pins if key != name}) for name in mine]
        for name, others in (*beside, *((name, {}) for name in mine)):
            possible = self._with(others).legal.values_of(name)
            if possible and (space.by_name[name].choices or possible)[0] not in possible:
                options = ", ".join(self.by_name[name].shown(value) for value in possible)
                return f"{message}; {name} can be {options}{' beside the others' if others else ''}"
        return message

    def with_layouts(self, layouts: Mapping[str, Mapping[str, Any]]) -> Self:
        """The space with more layouts to start from, after those that it has.

        Raises
        ------
        DseError
            If no legal design has the values of one of them, saying what would be possible.
        """
        written: dict[str, Any] = dict(self.data.get("layouts") or {})
        for name, values in layouts.items():
            if unknown := next((parameter for parameter in values if parameter not in self.by_name), None):
                raise DseError(f"{unknown}: no parameter of this space{suggestion(unknown, self.by_name)}")
            self.pinned(values)
            accepted = {
                key: self.by_name[key].accepted(self.in_file(key, own)) for key, own in values.items()
            }
            written[name] = {key: self.in_file(key, own) for key, own in accepted.items()}
        return self._changed({**self.data, "layouts": written})

    def robust(self) -> Self:
        """The space judged by the worse ends of intervals: the step time that nine of ten stay below, ..."""
        return self._changed(at_worse_ends(self.data))

    def with_tokens(self, tokens: float) -> Self:
        """The space of training runs of so many tokens; what else is known of its runs stays. [-]"""
        return self._changed(runs.with_tokens(self.data, tokens))

    def focused(self, condition: str) -> Self:
        """The space with one more condition on its designs.

        Raises
        ------
        DseError
            If it is none, or knows no such names.
        """
        constraints = dict(self.data.get("constraints") or {})
        return self._changed({**self.data, "constraints": {**constraints, FOCUS: condition}})

    def within_focus(self, condition: str) -> Self:
        """`focused`, of which some design is legal.

        Raises
        ------
        DseError
            If none is.
        """
        space = self.focused(condition)
        if space.legal.count == 0:
            raise DseError(f"--focus {condition!r}: no legal design of space {self.name} is so")
        return space

    def with_objectives(self, objectives: Iterable[str]) -> Self:
        """The space with other objectives: ``"step_time"``, ``"maximize:tokens_per_second"``.

        Raises
        ------
        DseError
            If a name is no column.
        """
        return self._changed({**self.data, "objectives": directed(list(objectives))})
