"""A search space: parameters, derived columns, limits and objectives.

A `Space` is immutable: pinning a value, adding a condition or changing the machine returns another one. Designs are
mappings for people and columns of numbers for the cost model; `encode` and `decode` convert."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from numbers import Real
from pathlib import Path
from textwrap import fill
from typing import Any, Final, Self

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats import shipped
from costmodel.formats.input_files import Section, Source, data_beside, dump, parse, scalar
from costmodel.formats.quantity import unit_name
from costmodel.rules.registry import design_columns
from costmodel.rules.rules import TRAINING
from costmodel.training.blocks import ASSIGNMENTS
from costmodel.training.design import DesignPoints, splits_kernels
from costmodel.training.design_table import shown
from dse.arguments import Columns, Layouts, checked_methods
from dse.predictions import at_worse_ends
from dse.spaces.definition import Definition, read_definition
from dse.spaces.formulas.names import MODEL_SETTINGS
from dse.spaces.legal import LegalDesigns, simplest
from dse.spaces.sections import training_run as runs
from dse.spaces.sections.parameters import (
    MOST_OPTIONS,
    Parameter,
    Value,
    decoded,
    directed,
    refuse_several,
    solved_parameters,
)

Params = dict[str, Value]

#: Fields of models and columns of machines of the first release, which every fingerprint has.
FIRST_RELEASE: Final[Mapping[str, Sequence[str]]] = data_beside(__file__, "first_release.yaml")
#: Name of the condition that `Space.focused` adds.
FOCUS = "focus"
Batch = dict[str, FloatArray]


def decisive(record: Any, values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Values of a record in fingerprints: of the first release, and later ones that are neither default nor NaN."""
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(record)
        if field.name not in FIRST_RELEASE[kind]
    }
    return {n: value for n, value in values.items() if n not in defaults or value == value != defaults[n]}


@checked_methods
@dataclass(frozen=True)
class Space(Definition):
    """A search space, and the ways between its designs and the columns that are evaluated.

    One design is a mapping of parameter names to values as the file writes them, in SI units. A batch
    of designs is a column per parameter: numbers, 0 or 1, or the code of a word.
    """

    def __repr__(self) -> str:
        """Name, machine, parameters with their number of options, and objectives."""
        options = ", ".join(f"{p.name} ({len(p.choices or '') or 'range'})" for p in self.parameters)
        aims = ", ".join(f"{objective.direction} {objective.name}" for objective in self.objectives)
        text = f"<Space {self.name} on {self.system.name}: {options}; {aims}>"
        return fill(text, 100, max_lines=10, subsequent_indent="    ")

    @classmethod
    def load(cls, name_or_path: str | Path, pins: Mapping[str, Any] | None = None) -> Self:
        """A space by the name of a built-in one, or by path, with some of its names pinned.

        Raises `DseError` with one line for each mistake in the file.
        """
        name, path, section = shipped.opened(name_or_path, "spaces")
        space = cls._read(section, name, path.parent)
        return space.pinned(pins) if pins else space

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The space that `text` once was."""
        return cls._read(parse(text, "space"), "space", Path())

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The space that the content of a file describes; paths count from the current folder."""
        name = str(data.get("name", "space"))
        return cls._read(Section(Source(name), (), dict(data)), name, Path())

    @classmethod
    def _read(cls, section: Section, name: str, base: Path) -> Self:
        if "workloads" in section:
            from dse.spaces import workloads

            return cls(
                **workloads.machine_fields(section, name, lambda section_of, of: cls._read(section_of, of, base))
            )
        definition = read_definition(section, name, base)
        return cls(**{field.name: getattr(definition, field.name) for field in fields(Definition)})

    def _changed(self, data: Mapping[str, Any]) -> Self:
        return self._read(Section(Source(self.name), (), dict(data)), self.name, Path())

    @cached_property
    def text(self) -> str:
        """YAML that needs no other file: the model and the system are written out in it."""
        return dump({"schema": self.data["schema"], "name": self.name, **self.data})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides a result: values and formulas, not how the file words them."""
        parts = self.system.parts()
        machine = {prefix: decisive(part, part.columns(), "system") for prefix, part in parts.items()}
        model = decisive(self.model, asdict(self.model), "model")
        values: list[Any] = [
            {name: value for name, value in model.items() if name not in ("name", "numerics")},
            {prefix + name: float(value) for prefix, part in machine.items() for name, value in part.items()},
            list(parts),
            dict(self.given),
            [
                [p.name, p.unit, p.choices, p.low, p.high, p.step, p.log, p.integer, *["exact"] * p.exact]
                for p in self.parameters
            ],
            sorted([d.name, d.expression] for d in self.derived),
            sorted([c.name, c.expression] for c in (*self.rules, *self.limits)),
            [[o.name, o.direction] for o in self.objectives],
        ]
        several = [[workload.name, workload.weight, workload.space.fingerprint] for workload in self.workloads]
        values += [several, self.data.get("combine")] if several else []
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @cached_property
    def legal(self) -> LegalDesigns:
        """Designs that keep every rule; of several workloads machines that have layouts for the first."""
        return self.workloads[0].space.outer if self.workloads else LegalDesigns(self)

    @cached_property
    def inner(self) -> tuple[Parameter, ...]:
        """Parameters with every value tried for each design of the others."""
        return tuple(p for p in self.parameters if p.exact)

    @cached_property
    def outer(self) -> LegalDesigns:
        """Designs that a sampler proposes: legal designs without their inner parameters."""
        if not self.inner:
            return self.legal
        from dse.spaces.exact_parameters import OuterDesigns

        return OuterDesigns(self.legal)

    @cached_property
    def starting_points(self) -> list[Params]:
        """The designs that layouts name; values that a layout leaves open are the simplest legal ones."""
        completed = [(layout, self.completed(layout)) for layout in self.layouts.values()]
        return [params for layout, params in completed if layout.items() <= params.items()]

    def completed(self, values: Mapping[str, Value]) -> Params:
        """The legal design nearest to some values, and to the simplest ones of all other parameters.

        Those are the system's own quantities and the first option of everything else.
        """
        wanted = {p.name: values[p.name] if p.name in values else p.value(simplest(self, p)) for p in self.parameters}
        return self.legal.nearest(wanted, np.random.default_rng(0))

    @property
    def chip_word(self) -> str:
        """The word for a chip of the system: GPU where NVIDIA's architecture has a number."""
        return "GPU" if np.max(self.system.chip.compute_capability) else "chip"

    @cached_property
    def chosen(self) -> tuple[str, ...]:
        """Names that the file sets: given values, parameters, derived columns."""
        return (*self.given, *self.by_name, *(derived.name for derived in self.derived))

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """Parameters of the space by their names."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def solved(self) -> tuple[Parameter, ...]:
        """Choices that the cost model makes inside each design, as parameters that its trials record.

        How kernels are split where `sharding` may be solve, and how products are tiled with ``tiling: solve``.
        """
        if self.workload.work != TRAINING or self.workloads:
            return ()
        return solved_parameters(self.model.blocks, self.given, self.by_name)

    @cached_property
    def recorded(self) -> tuple[Parameter, ...]:
        """Parameters of trials: those of the space, then `solved`."""
        return (*self.parameters, *self.solved)

    @cached_property
    def recorded_by_name(self) -> dict[str, Parameter]:
        """Parameters of trials by their names."""
        return {parameter.name: parameter for parameter in self.recorded}

    @cached_property
    def kernel_columns(self) -> tuple[str, ...]:
        """Names of the parameters of trials that say how single kernels are split and tiled."""
        return tuple(name for name in self.recorded_by_name if splits_kernels(name) and "_" in name)

    @cached_property
    def pinnable(self) -> dict[str, Parameter]:
        """Parameters that can be pinned: its own, and those of its workloads' layouts."""
        return (self.workloads[0].space.by_name if self.workloads else {}) | self.by_name

    def encode(self, designs: Sequence[Mapping[str, Value]]) -> Batch:
        """Columns of a list of designs."""
        return {p.name: np.array([p.code(design.get(p.name, "none")) for design in designs]) for p in self.parameters}

    def decode(self, columns: Mapping[str, FloatArray]) -> list[Params]:
        """Designs of a batch of codes, as `encode` returns it; one mapping each."""
        self.check_batch(columns)
        return decoded(self.parameters, columns)

    def check_batch(self, columns: Mapping[str, FloatArray]) -> None:
        """Refuse columns that are not as `encode` returns them; `ParameterError` names the first."""
        size = max(np.size(columns.get(name, 0)) for name in self.by_name)
        for name, parameter in self.by_name.items():
            values = columns.get(name)
            if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf" or values.shape != (size,):
                raise ParameterError(f"{{columns}}: {name}: expected an array of {size}, as `Space.encode` returns it")
            if parameter.words and not np.isin(values, range(len(parameter.words))).all():
                raise ParameterError(f"{{columns}}: {name}: expected codes of its {len(parameter.words)} options")

    def known_values(self, columns: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Values of every name that is known before evaluation: constants, parameters, derived columns."""
        values: dict[str, Any] = {**self.constants, **columns}
        for derived in self.derived:
            if not derived.evaluated:
                values[derived.name] = derived.formula(values)
        return values

    def pinned(self, pins: Mapping[str, Any], *, replace: bool = False) -> Self:
        """The space with some names held fixed: parameters, given values, design columns, quantities.

        A text is read as in a file, with its unit; a number is in SI units.

        Raises `DseError` if a name is unknown or no legal design has the values; the message lists possible values.

        Parameters
        ----------
        pins : mapping
            Name -> its value.
        replace : bool
            Accept values that are not options of the space.
        """
        space = self.set_to(pins, replace=replace)
        if space.legal.count == 0:
            raise DseError(self._why_impossible(space, {} if replace else pins, pins))
        return space

    def set_to(self, pins: Mapping[str, Any], *, replace: bool = False) -> Self:
        """The space with some names held fixed, even where no legal design has the values."""
        pins = self._as_named(pins)
        parameters = dict(self.data["parameters"])
        given = dict(self.data.get("given") or {})
        layouts = dict(self.data.get("layouts") or {})
        for name, written in pins.items():
            refuse_several(name, written)
            if replace and name in self.by_name:
                value = self.by_name[name].understood(self.in_file(name, written))
                parameters[name] = self._options(name, [value])
            elif name in self.pinnable:
                accepted = self.pinnable[name].accepted(self.in_file(name, written))
                parameters[name] = self._options(name, [accepted])
                layouts = {key: layout for key, layout in layouts.items() if layout.get(name, accepted) == accepted}
            else:
                self.check_settable(name)
                given[name] = self.in_file(name, written)
        changed = {"given": given, "parameters": parameters} | ({"layouts": layouts} if layouts else {})
        others = {key: value for key, value in self.data.items() if key != "layouts"}
        return self._changed({**others, **changed})

    def _as_named(self, pins: Mapping[str, Any]) -> dict[str, Any]:
        """Values by the names that the space has: an alias is off where the column that it sets is named."""
        names_known, usual = {*self.given, *self.by_name}, DesignPoints().columns()
        named = {self._full_name(name): value for name, value in pins.items()}
        if len(named) < len(pins):
            raise DseError(f"{', '.join(pins)}: two of these names mean the same")
        for name, alias in DesignPoints.aliases.items():
            if name in names_known and alias.column in named:
                named.setdefault(name, False)
            elif name in named and alias.column in names_known - named.keys():
                on = self.in_file(name, named.pop(name))
                value = alias.value if on else usual[alias.column].item()
                named[alias.column] = shown(value, DesignPoints.declared()[alias.column])
        return named

    def opened(self, values: Columns) -> Self:
        """The space with other values of some names, which come first among its parameters.

        Names are those that can be pinned; values need not be options here. Of more than `MOST_OPTIONS`
        numbers the parameter is their range.

        Raises `DseError` if a name cannot be a parameter, or have such a value.
        """
        for name, listed in values.items():
            self.check_settable(name)
            if not listed:
                raise DseError(f"{name}: expected at least one value")
        swept = {name: self._options(name, listed) for name, listed in values.items()}
        others = {
            name: written_options for name, written_options in self.data["parameters"].items() if name not in swept
        }
        given = {name: value for name, value in (self.data.get("given") or {}).items() if name not in swept}
        for name, alias in DesignPoints.aliases.items():
            if alias.column in swept and name in (*given, *others):
                others.pop(name, None)
                given[name] = False
        data = {key: value for key, value in self.data.items() if key not in ("layouts", "given")}
        return self._changed({**data, "given": given, "parameters": {**swept, **others}})

    @cached_property
    def with_assignments(self) -> Self:
        """The space with the named shardings as a parameter, in the place of solved ones."""
        return self.opened({"sharding": [*ASSIGNMENTS]})

    def _options(self, name: str, values: Sequence[Any]) -> Any:
        """The options of a parameter as a file has them; formulas still know its other words."""
        if len(values) > MOST_OPTIONS:
            return {"from": self.in_file(name, min(values)), "to": self.in_file(name, max(values))}
        options = [self.in_file(name, value) for value in values]
        words = self.by_name[name].words if name in self.by_name else ()
        is_word = isinstance(values[0], str) and name not in design_columns(self.workload)
        return {"options": options, "words": [*words]} if is_word and words else options

    def unit_of(self, name: str) -> str:
        """SI unit of a name that may be set; "-" for pure numbers and words."""
        if name in self.pinnable:
            return self.pinnable[name].unit
        return unit_name(self.names[name].dimension) if name in self.names else "-"

    def in_file(self, name: str, value: Any) -> Any:
        """A value as a file has it: a text carries its unit, a number of a quantity is in SI units."""
        unit = self.unit_of(name)
        if isinstance(value, str):
            return scalar(value) if unit == "-" else value
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return f"{float(value)!r} {unit}" if is_number and unit != "-" else value

    def _full_name(self, name: str) -> str:
        """The name that a short or a capital spelling stands for, such as ``mbs`` or ``TP``."""
        full = shipped.spellings("columns").get(name.lower(), name.lower())
        return full if name not in self.settable and full in self.settable else name

    @cached_property
    def settable(self) -> frozenset[str]:
        """Names that can be held fixed, or given several values."""
        columns, derived = design_columns(self.workload), {derived.name for derived in self.derived}
        known = {*self.pinnable, *self.given, *columns, *MODEL_SETTINGS, *self.system.units()}
        return frozenset(known - derived)

    def check_settable(self, name: str) -> None:
        """Refuse a name that is not in `settable`.

        Raises `DseError` with the origin of the name, or similar names.
        """
        for derived in self.derived:
            if name == derived.name:
                raise DseError(f"{name}: follows from other names here ({name}: {derived.expression}); pin those")
        if name not in self.settable:
            raise DseError(f"{name}: not a name of space {self.name}{suggestion(name, self.settable)}")

    def _why_impossible(self, space: Self, pins: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
        """The rules that the values asked for break together, and options that one of the pins could have."""
        shown = " ".join(f"{name}={value}" for name, value in asked.items())
        reasons = "; ".join(f"{name} ({text})" for name, text in space.legal.blocking())
        message = f"space {self.name}: no legal design with {shown}: breaks {reasons}"
        mine = [name for name in pins if name in self.by_name]
        beside = [(name, {key: pins[key] for key in pins if key != name}) for name in mine]
        for name, others in (*beside, *((name, {}) for name in mine)):
            possible = self.set_to(others).legal.values_of(name)
            if possible and (space.by_name[name].choices or possible)[0] not in possible:
                options = ", ".join(self.by_name[name].shown(value) for value in possible)
                return f"{message}; {name} can be {options}{' beside the others' if others else ''}"
        return message

    def with_layouts(self, layouts: Layouts) -> Self:
        """The space with more layouts to start from, after those that it has.

        Raises `DseError` if no legal design has the values of one of them, with the possible values.
        """
        written: dict[str, Any] = dict(self.data.get("layouts") or {})
        for name, values in layouts.items():
            if unknown := next((parameter for parameter in values if parameter not in self.by_name), None):
                raise DseError(f"{unknown}: no parameter of this space{suggestion(unknown, self.by_name)}")
            accepted = {key: self.by_name[key].accepted(self.in_file(key, value)) for key, value in values.items()}
            is_whole = accepted.keys() == self.by_name.keys()
            if not (is_whole and self.legal.kept(self.encode([accepted]))[0]):
                self.pinned(values)
            written[name] = {key: self.in_file(key, value) for key, value in accepted.items()}
        return self._changed({**self.data, "layouts": written})

    def extended(
        self, *, derived: Mapping[str, str] | None = None, constraints: Mapping[str, str] | None = None
    ) -> Self:
        """The space with more derived columns and more conditions, as its file would write them.

        Raises `DseError` if a formula is wrong, or a name is taken.

        Parameters
        ----------
        derived : mapping, optional
            Name of a column -> its formula.
        constraints : mapping, optional
            Name of a condition -> the condition.
        """
        added = {"derived": derived or {}, "constraints": constraints or {}}
        sections_changed = {key: dict(self.data.get(key) or {}) for key in added}
        if taken := next((name for key in added for name in added[key] if name in sections_changed[key]), None):
            raise DseError(f"{taken}: space {self.name} has it already")
        return self._changed({**self.data, **{key: {**sections_changed[key], **added[key]} for key in added}})

    def robust(self) -> Self:
        """The space judged by worse ends of 90 % intervals, such as the 95th percentile of the step time."""
        return self._changed(at_worse_ends(self.data))

    def with_system(self, name_or_path: str) -> Self:
        """The space on another machine: a built-in one, or a file; values that the space sets stay.

        Raises `DseError` if there is no such system, or it lacks a quantity that the space names.
        """
        return self._changed({**self.data, "system": name_or_path})

    def with_tokens(self, tokens: float) -> Self:
        """The space of training runs of `tokens` tokens; its other entries on runs stay. [-]"""
        return self._changed(runs.with_tokens(self.data, tokens))

    def focused(self, condition: str) -> Self:
        """The space with one more condition on its designs.

        Raises `DseError` if it is not a condition, or has unknown names.
        """
        constraints = dict(self.data.get("constraints") or {})
        if not re.search("[<>=]", condition):  # a shell takes < and > outside quotes
            example = "system_power < 5 MW" if "power" in condition else f"{condition} > 0"
            raise DseError(f"{condition!r}: not a condition; compare it with a value, in quotes: '{example}'")
        try:
            return self._changed({**self.data, "constraints": {**constraints, FOCUS: condition}})
        except DseError as error:
            raise DseError(str(error).replace(f"{self.name}: constraints.{FOCUS}: ", "condition: ")) from None

    def within_focus(self, condition: str) -> Self:
        """`focused`, with at least one legal design. Raises `DseError` if none is."""
        space = self.focused(condition)
        if space.legal.count == 0:
            raise ParameterError(f"{{focus}} {condition!r}: no legal design of space {self.name} meets it")
        return space

    def with_objectives(self, objectives: Sequence[str]) -> Self:
        """The space with other objectives: ``"step_time"``, ``"maximize:tokens_per_second"``.

        Raises `DseError` if a name is not a column.
        """
        return self._changed({**self.data, "objectives": directed([*objectives])})
