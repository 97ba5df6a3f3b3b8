"""Names that the formulas of a space may use: their meaning, and the parameters that decide them.

From the parameters behind a formula follows when it can be checked: as soon as these are chosen. Enumeration cuts
branches by that, and samplers draw legal designs directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from costmodel.columns import layout_of
from costmodel.errors import DseError
from costmodel.formats.input_files import Section
from costmodel.formats.quantity import dimension, unit_name
from costmodel.machine import LARGEST, Range, System
from costmodel.rules.registry import NATIVE, all_columns, design_columns, design_rules
from costmodel.rules.rules import Workload
from costmodel.steps.breakdown import Breakdown, with_unit_suffix
from costmodel.training.design_table import Domain
from dse.predictions import INTERVAL_KEYS, INTERVAL_UNITS
from dse.spaces.formulas.expressions import Compiled, Expression, Name

#: Dimensions of the model that a space may set without making another model of it.
MODEL_SETTINGS: Final = ("seq_len", "vocab_size", "document_len")
#: Names of counts that are not columns of designs.
OTHER_COUNTS: Final = (
    *("world_size", "global_batch_size", "nodes", "node_size", *MODEL_SETTINGS),
    *("cores", "arrays_per_core", "array_height", "array_width"),
)
#: Values of a count.
COUNT: Final = Domain()
#: Largest count: up to here a float tells every whole number from its neighbours.
MOST: Final = 2.0**53
#: Column of a breakdown with its unit, as tables show it -> the column.
WITH_UNIT: Final = {**{with_unit_suffix(name): name for name in layout_of(Breakdown).units}, **INTERVAL_KEYS}


@dataclass(frozen=True, slots=True)
class Derived:
    """A column worked out from others."""

    name: str
    unit: str
    expression: str
    formula: Compiled
    parameters: frozenset[str]  #: that it depends on
    needs: tuple[str, ...]  #: derived columns it needs, in order, itself last
    evaluated: bool  #: whether it needs evaluation


def is_count(name: str) -> bool:
    """True if a name counts things: designs where it is not whole, or below 1, are not legal."""
    return name in OTHER_COUNTS or all_columns().get(name) == COUNT


def impossible(name: str, value: float, ranges: Mapping[str, Range]) -> str:
    """The condition that a column's value violates; "" where the value is possible.

    >>> impossible("tp", 2.5, {}), impossible("tp", 2, {})
    ('2.5: expected a whole number of at least 1', '')
    """
    domain = all_columns().get(name)
    if (name in OTHER_COUNTS or domain == COUNT) and not (1 <= value <= MOST and float(value).is_integer()):
        return f"{value:g}: expected a whole number of at least 1"
    if domain and not (domain.words or domain.switch) and (domain.high < LARGEST or value > LARGEST):
        uneven = domain.whole and not float(value).is_integer()
        if uneven or not domain.low <= value <= domain.high:
            kind = "a whole number" if domain.whole else "a number"
            return f"{value:g}: expected {kind} from {domain.low:g} to {domain.high:g}"
    if name in ranges and not (value == value and ranges[name].holds(value)):
        return ranges[name].refusal(value)
    return ""


class Names:
    """Every name of a space, growing as its file is read."""

    def __init__(self, workload: Workload, system: System) -> None:
        model, results = workload.model, workload.work.results
        units, quantities = (system.units(), system.quantities()) if workload.work.reads_system else ({}, {})
        self.columns: Final = design_columns(workload)  #: of its designs, for all profiles
        self.totals: Final = design_rules(NATIVE, workload).totals
        self.model: Final = (*model.dimensions, *model.counts, "num_parameters")
        self.settings: Final = {*MODEL_SETTINGS} & {*self.model}
        self.quantities: Final = units  #: name -> unit of every quantity of the system
        self.ranges: Final = system.ranges()  #: name -> range of every quantity of the system
        self.known: dict[str, Name] = dict.fromkeys(self.model, Name())
        self.known |= {name: Name(dimension(unit)) for name, unit in units.items()}
        self.constants: dict[str, Any] = {name: float(getattr(model, name)) for name in self.model}
        self.constants |= {name: float(values) for name, values in quantities.items()}
        #: Columns of the evaluation's result, under both of their names.
        self.evaluated: dict[str, Name] = {}
        self.of_key: Final = {results.key(name): name for name in layout_of(results).units}
        for name, unit in layout_of(results).units.items():
            if name not in self.known:
                self.evaluated[name] = self.evaluated[results.key(name)] = Name(dimension(unit))
        for key, name in INTERVAL_KEYS.items() if results is Breakdown else ():
            self.of_key[key] = name
            self.evaluated[name] = self.evaluated[key] = Name(dimension(INTERVAL_UNITS[name]))
        self.derived: dict[str, Derived] = {}
        self.used: set[str] = set()  #: names that some formula reads
        self._decided_by: dict[str, frozenset[str]] = {}
        self._defined: set[str] = set()

    def all(self) -> dict[str, Name]:
        """Every name, those that evaluation gives included."""
        return {**self.evaluated, **self.known}

    def claim(self, section: Section, name: str) -> bool:
        """True if the file may define this name here; notes the reason if not."""
        settable = name in self.settings and section.at == ("given",)
        fixed = (name in self.model and not settable) or (name in self.evaluated and not is_count(name))
        if not name.isidentifier():
            section.mistake(name, "not a name; expected letters, digits and _")
        elif fixed or name in self._defined:
            section.mistake(name, "already means something else")
        else:
            self._defined.add(name)
            for names in (self.known, self.constants, self.evaluated):
                names.pop(name, None)
            return True
        return False

    def define(self, name: str, known: Name, *, constant: float | None = None,
               decided_by: frozenset[str] = frozenset()) -> None:  # fmt: skip
        """Define a claimed name."""
        self.known[name] = known
        self._decided_by[name] = decided_by
        if constant is not None:
            self.constants[name] = constant

    def derive(self, section: Section, name: str, formula: Expression) -> None:
        """Define a column by a formula."""
        compiled = self.compiled(section, name, formula)
        self.known[name] = Name()
        if compiled is None:
            return
        if compiled.kind not in ("number", "boolean"):
            section.mistake(name, f"{formula.text!r} gives a {compiled.kind}; expected a number")
            return
        unit = self.quantities.get(name, "-")
        if (name in self.quantities or is_count(name)) and dimension(unit) != compiled.dimension:
            section.mistake(name, f"{formula.text!r} is in {unit_name(compiled.dimension)}; expected {unit}")
        evaluated = self.needs_evaluation(formula)
        if evaluated and (is_count(name) or name in self.columns or name in self.quantities):
            section.mistake(name, "must be known before the evaluation, whose results this formula reads")
        behind, needs = self.parameters_behind(formula), (*self.derived_behind(formula), name)
        self.define(name, Name(compiled.dimension, boolean=compiled.kind == "boolean"), decided_by=behind)
        self.derived[name] = Derived(name, unit_name(compiled.dimension), formula.text, compiled, behind,
                                     needs, evaluated)  # fmt: skip

    def compiled(self, section: Section, key: str, formula: Expression) -> Compiled | None:
        """A formula with its names looked up; notes its mistakes."""
        self.used |= formula.names
        try:
            return formula.compiled(self.all())
        except DseError as error:
            section.mistake(key, str(error))
            return None

    def needs_evaluation(self, formula: Expression) -> bool:
        """True if a formula reads results of the evaluation, directly or through derived columns."""
        return any(n in self.evaluated or (n in self.derived and self.derived[n].evaluated) for n in formula.names)

    def parameters_behind(self, formula: Expression) -> frozenset[str]:
        """Parameters that decide a formula."""
        return frozenset[str]().union(*(self._decided_by.get(n, frozenset()) for n in formula.names))

    def derived_behind(self, formula: Expression) -> tuple[str, ...]:
        """Derived columns that a formula needs, in the order in which they can be worked out."""
        needed = {need for n in formula.names if n in self.derived for need in self.derived[n].needs}
        return tuple(name for name in self.derived if name in needed)

    def fixed(self) -> Mapping[str, Name]:
        """Names that are the same for all designs."""
        return {name: known for name, known in self.known.items() if name in self.constants}
