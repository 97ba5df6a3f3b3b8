"""Parameters and objectives of a search space: options, directions, and the limits of results.

A parameter has options or a range. `sharding: sample` and `tiling: sample` are written out as one parameter for each
choice of a kernel. An objective is a formula and a direction; a limit is a condition with a margin.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats.input_files import Section
from costmodel.formats.quantity import dimension, exact, readable, si_value, unit_name
from costmodel.formats.quantity import quantity as read_quantity
from costmodel.kernels.output_tiles import useful_edges
from costmodel.machine import System
from costmodel.rules.registry import all_columns
from costmodel.steps.breakdown import UNIT_SUFFIX
from costmodel.training import design
from costmodel.training.blocks import Block
from costmodel.training.design_table import Domain
from costmodel.training.kinds import KINDS
from dse.spaces.formulas.expressions import Compiled, Expression, Name

if TYPE_CHECKING:
    import optuna

Direction = Literal["minimize", "maximize"]
#: Columns that are maximized where an objective has no direction.
MAXIMIZED: Final = ("tokens_per_second", "tokens_per_second_per_gpu", "mfu")


@dataclass(frozen=True, slots=True)
class Objective:
    """A column to minimize or maximize."""

    name: str
    direction: Direction
    unit: str
    expression: str
    formula: Compiled

    @property
    def key(self) -> str:
        """Name in tables and JSON, ending in the unit: ``step_time_s``."""
        return keyed(self.name, self.unit)

    def cost(self, value: float) -> float:
        """A value with its sign turned if it is maximized, so that less is better; and the value of a cost."""
        return value if self.direction == "minimize" else -value


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on designs. A rule is known before evaluation; a limit needs it, and gives a margin."""

    name: str
    unit: str  #: of the margin
    expression: str
    formula: Compiled
    parameters: frozenset[str]  #: that it depends on, be it through derived columns
    derived: tuple[str, ...]  #: columns it needs, in the order they are worked out

    @property
    def key(self) -> str:
        """Name in tables and JSON, ending in the unit of the margin: ``fits_in_memory_bytes``."""
        return keyed(self.name, self.unit)


def keyed(name: str, unit: str) -> str:
    """A column's name with its unit.

    >>> keyed("step_time", "s"), keyed("mfu", "-")
    ('step_time_s', 'mfu')
    """
    suffix = UNIT_SUFFIX.get(unit, "")
    return name if name.endswith(suffix) else name + suffix


def directed(texts: Sequence[str]) -> dict[str, list[str]]:
    """Objectives as a space file writes them, from ``name``, ``minimize:name`` or ``maximize:name``.

    Raises `DseError` for another direction, or no objective.

    >>> directed(["step_time", "mfu", "minimize:system_power"])
    {'minimize': ['step_time', 'system_power'], 'maximize': ['mfu']}
    """
    directions: dict[str, list[str]] = {"minimize": [], "maximize": []}
    for text in texts:
        before, colon, after = text.partition(":")
        name = after if colon else before
        direction = before if colon else "maximize" if name in MAXIMIZED else "minimize"
        if direction not in directions or not name:
            raise DseError(f"objective {text!r}: expected a name, minimize:name or maximize:name")
        directions[direction].append(name)
    if not any(directions.values()):
        raise DseError("objectives: expected at least one, such as step_time")
    return {direction: names for direction, names in directions.items() if names}


Value = float | int | str | bool

#: How the values of a parameter are chosen, as ``by`` says.
CHOSEN_BY: Final = ("search", "exact")
#: Keys of a range, and of options as a mapping.
RANGE_KEYS: Final = ("from", "to", "step", "scale", "kind")
OPTION_KEYS: Final = ("options", "words", "by")

#: Most options of one parameter. A range of fewer steps is a list of options to everyone but Optuna.
MOST_OPTIONS: Final = 4096


@dataclass(frozen=True)
class Parameter:
    """A degree of freedom: `choices`, or a range from `low` to `high`, in SI units."""

    name: str
    unit: str
    choices: tuple[Value, ...] | None = None
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    integer: bool = False
    exact: bool = False  #: every value is tried with each design of the others; else a sampler chooses
    own_words: tuple[str, ...] = ()  #: further words of it that formulas accept

    @cached_property
    def words(self) -> Sequence[str]:
        """Words whose places are the codes of the column, where it is written in words."""
        words = all_columns().get(self.name, Domain()).words
        return words or self.own_words or tuple(str(c) for c in self.choices or () if isinstance(c, str))

    @cached_property
    def boolean(self) -> bool:
        """True if the column is true or false."""
        is_switch = all_columns().get(self.name, Domain()).switch
        return is_switch or bool(self.choices and isinstance(self.choices[0], bool))

    @property
    def ends(self) -> tuple[float, float]:
        """Least and greatest value of a range. [unit]"""
        return self.low or 0.0, self.high or 0.0

    @cached_property
    def options(self) -> FloatArray | None:
        """Every value as the column holds it, in order; None for a range that is not stepped. [unit]"""
        if self.choices is not None:
            return np.array([self.code(choice) for choice in self.choices])
        low, high = self.ends
        if self.step is None or (high - low) / self.step >= MOST_OPTIONS:
            return None
        # In decimals, as written: 0.05 + 6 * 0.05 is 0.35, not the next number beyond the end of the range.
        first, last, step = (Fraction(str(value)) for value in (low, high, self.step))
        return np.array([float(first + step_number * step) for step_number in range((last - first) // step + 1)])

    @cached_property
    def places(self) -> dict[Value, int]:
        """Value -> place among the options."""
        options = self.options
        return {} if options is None else {self.value(code): n for n, code in enumerate(options.tolist())}

    def code(self, value: Value) -> float:
        """A value as the column holds it: a word's place, 0 or 1 for a boolean, else the number. [unit]"""
        if isinstance(value, Real):
            return float(value)
        word = str(value) if value in self.words else str(value).lower() if isinstance(value, str) else repr(value)
        if word not in self.words:
            raise DseError(f"{self.name}: {word!r} is not a value{suggestion(word, self.words)}")
        return float(self.words.index(word))

    def value(self, code: float) -> Value:
        """The opposite of `code`: whole pure numbers as int, words and booleans unchanged."""
        if self.words:
            return self.words[int(code)]
        if self.boolean:
            return bool(code)
        return int(code) if self.unit == "-" and float(code).is_integer() else float(code)

    def described(self) -> str:
        """The possible values of the parameter, for messages.

        >>> Parameter("tp", "-", (1, 2, 4)).described()
        '1, 2, 4'
        """
        if self.choices is None:
            step = f" in steps of {readable(self.step, self.unit)}" if self.step else ""
            return " to ".join(readable(end, self.unit) for end in self.ends) + step
        shown = [self.shown(choice) for choice in self.choices]
        return ", ".join(shown if len(shown) <= 12 else [*shown[:10], "...", shown[-1]])

    def shown(self, value: Value) -> str:
        """A value as the space file writes it."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            return value
        return exact(value, "B") if self.unit == "B" else readable(value, self.unit, digits=6)

    def understood(self, written: object) -> Value:
        """The value that a text or number stands for, an option or not; a `DseError` if it is not a value."""
        try:
            value = written_value(written, self.unit, self.words, self.boolean)
            self.code(value)
        except (ValueError, DseError) as error:
            raise DseError(f"{self.name}: {error}") from None
        return value

    def accepted(self, written: object) -> Value:
        """The option that a text or number stands for.

        Raises `DseError` if the parameter has no such option, with the options that it has.
        """
        can_be = f"{self.name} can be {self.described()}"
        try:
            value = self.understood(written)
        except DseError as error:
            raise DseError(f"{error}; {can_be}") from None
        code, options = self.code(value), self.options
        if options is not None:
            near = np.flatnonzero(np.isclose(options, code, rtol=1e-12, atol=0))
            if near.size == 0:
                raise DseError(f"{self.name}={self.shown(value)}: not an option; {can_be}")
            return self.value(float(options[near[0]]))
        low, high = self.ends
        if not low <= code <= high or (self.integer and not code.is_integer()):
            raise DseError(f"{self.name}={self.shown(value)}: out of range; {can_be}")
        return self.value(code)

    @cached_property
    def distribution(self) -> optuna.distributions.BaseDistribution:
        """The distribution that Optuna samples from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices is not None:
            return CategoricalDistribution(self.choices)
        low, high = self.ends
        if self.integer:
            return IntDistribution(int(low), int(high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(low, high, log=self.log, step=self.step)


def decoded(parameters: Sequence[Parameter], columns: Mapping[str, FloatArray]) -> list[dict[str, Value]]:
    """Designs of a batch, one mapping each, from (points,) columns. [units of the parameters]"""
    values = [[p.value(code) for code in columns[p.name].tolist()] for p in parameters]
    names = [p.name for p in parameters]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def written_value(written: object, unit: str, words: Sequence[str], boolean: bool) -> Value:
    """A word, a boolean, or a number in SI units, from a file or a command line.

    Raises `ValueError` if it is not of that kind.
    """
    if words:
        if (word := written if written in words else str(written).lower()) in words:
            return str(word)
        raise ValueError(f"{written!r} is not a value{suggestion(str(written), words)}")
    if boolean:
        if isinstance(written, bool) or written in (0, 1):
            return bool(written)
        raise ValueError(f"{written!r}: expected true or false")
    number = float(written) if isinstance(written, np.floating | np.integer) else written
    value = si_value(number, unit)
    return int(value) if unit == "-" and value.is_integer() else value


def read_parameter(name: str, written: Any, unit: str | None, values: Mapping[str, Any],
                   scope: Mapping[str, Name]) -> Parameter:  # fmt: skip
    """A parameter from its entry in a file: a list, a range, a formula that gives a list, or a mapping of these.

    Raises `ValueError` for other options, and for endless values that are all to be tried.
    """
    chosen_by = written.get("by", "search") if isinstance(written, dict) else "search"
    if chosen_by not in CHOSEN_BY:
        raise ValueError(f"by: {chosen_by!r} is not a value{suggestion(str(chosen_by), CHOSEN_BY)}")
    parameter = _read(name, written_options(written), unit, values, scope)
    if chosen_by == "exact" and parameter.options is None:
        raise ValueError(f"by: exact: more than {MOST_OPTIONS} values; add a step, or list options")
    own_words = _own_words(written.get("words"), parameter) if isinstance(written, dict) else ()
    return replace(parameter, exact=chosen_by == "exact", own_words=own_words)


def _own_words(written: Any, parameter: Parameter) -> tuple[str, ...]:
    """Words of a parameter of the file's own, which are more than its options where some were left out."""
    if written is None:
        return ()
    if not isinstance(written, list) or not all(_is_word(word) for word in written):
        raise ValueError(f"words: {written!r}: expected words, such as [small, large]")
    if all_columns().get(parameter.name) or not {*parameter.words} <= {*written} or not parameter.words:
        raise ValueError("words: expected the words of a parameter that the space defines, including its options")
    return tuple(written)


def written_options(written: Any) -> Any:
    """The values of a parameter as written: a list, a formula or a range, without the way they are chosen.

    Raises `ValueError` if a mapping has options and other keys.
    """
    if not isinstance(written, dict):
        return written
    if "options" not in written:
        return {key: value for key, value in written.items() if key != "by"}
    if other := next((key for key in written if key not in OPTION_KEYS), None):
        raise ValueError(f"{other}: unknown key next to options{suggestion(str(other), OPTION_KEYS)}")
    return written["options"]


def _read(name: str, written: Any, unit: str | None, values: Mapping[str, Any],
          scope: Mapping[str, Name]) -> Parameter:  # fmt: skip
    """A parameter from a list, a range, or a formula that gives a list."""
    domain = all_columns().get(name, Domain())
    if not isinstance(written, list) and (domain.words or domain.switch):
        listed = ", ".join(domain.words or ("true", "false"))
        raise ValueError(f"{written!r}: expected a list of some of {listed}")
    if isinstance(written, dict):
        return _range(name, written, unit)
    if isinstance(written, str):
        return _from_formula(name, written, unit, values, scope)
    if not isinstance(written, list) or not written:
        raise ValueError(f"{written!r}: expected options, such as [1, 2, 4], or {{from: 1, to: 8}}")
    is_helper, unit = unit is None, unit or _unit_of(written[0])
    boolean = domain.switch or isinstance(written[0], bool)
    words = domain.words or tuple(str(w) for w in written if _is_word(w) and is_helper and not boolean)
    return _listed(Parameter(name, unit, tuple(written_value(w, unit, words, boolean) for w in written)))


def _from_formula(name: str, written: str, unit: str | None, values: Mapping[str, Any],
                  scope: Mapping[str, Name]) -> Parameter:  # fmt: skip
    """Options that a formula lists, such as ``divisors(num_layers)``."""
    try:
        formula = Expression.parse(written).compiled(scope)
    except DseError as error:
        raise ValueError(str(error)) from None
    if formula.kind != "list":
        raise ValueError(f"{written!r}: expected options, such as [1, 2, 4] or powers_of_two(1, 64)")
    measured = unit_name(formula.dimension)
    if unit is not None and dimension(unit) != formula.dimension:
        raise ValueError(f"{written!r} is in {measured}; expected {unit}")
    options = (float(value) for value in formula(values))
    whole = (unit or measured) == "-"
    choices = tuple(int(value) if whole and value.is_integer() else value for value in options)
    return _listed(Parameter(name, unit or measured, choices))


def _listed(parameter: Parameter) -> Parameter:
    choices = parameter.choices or ()
    if not 0 < len(choices) <= MOST_OPTIONS:
        raise ValueError(f"{len(choices)} options; expected 1 to {MOST_OPTIONS}, or a range {{from, to}}")
    if len(set(choices)) < len(choices):
        twice = next(c for n, c in enumerate(choices) if c in choices[:n])
        raise ValueError(f"{parameter.shown(twice)} is listed twice")
    return parameter


def _range(name: str, written: dict[str, Any], unit: str | None) -> Parameter:
    """A range {from, to, step, scale, kind}."""
    for key in written:
        if key not in RANGE_KEYS:
            raise ValueError(f"{key}: unknown key{suggestion(key, (*RANGE_KEYS, *OPTION_KEYS))}")
    if not {"from", "to"} <= set(written):
        raise ValueError("expected {from: ..., to: ...}, and perhaps step, scale: log, kind: integer")
    unit = unit or _unit_of(written["from"])
    low, high = si_value(written["from"], unit), si_value(written["to"], unit)
    step = si_value(written["step"], unit) if "step" in written else None
    for key, words in (("scale", ("linear", "log")), ("kind", ("integer", "real"))):
        if written.get(key, words[0]) not in words:
            raise ValueError(f"{key}: {written[key]!r} is not a value{suggestion(str(written[key]), words)}")
    log = written.get("scale") == "log"
    whole = unit == "-" and all(v.is_integer() for v in (low, high, step or 1.0))
    integer = written.get("kind") == "integer" or (step is not None and whole and "kind" not in written)
    if integer and not whole:
        raise ValueError("kind: integer: expected whole numbers without a unit")
    if not low < high or (step is not None and step <= 0) or (log and low <= 0):
        raise ValueError("expected from < to, a step above 0, and from above 0 where the scale is log")
    if log and step is not None and not integer:
        raise ValueError("step: a log scale has no steps; list the options instead")
    if integer and step is None:
        step = 1.0
    if log and step != 1 and integer:
        raise ValueError("step: a log scale has steps of 1 only")
    return Parameter(name, unit, low=low, high=high, step=step, log=log, integer=integer)


def _is_word(written: object) -> bool:
    """True if a text is a word rather than a quantity."""
    return isinstance(written, str) and written.isidentifier()


def _unit_of(written: object) -> str:
    """Unit in which a helper parameter is kept: that of its first option."""
    if not isinstance(written, str) or _is_word(written):
        return "-"
    return unit_name(read_quantity(written).dimension)


def refuse_several(name: str, written: Any) -> None:
    """Refuse several values where one is pinned; layouts of pipelines contain commas."""
    if isinstance(written, str) and "," in written and name != "pipeline_layout":
        values = ", ".join(part.strip(" []") for part in written.split(","))
        raise ParameterError(
            f"{name}={written}: {{set}} takes one value; to open several, write {name}: [{values}] under "
            "parameters of a space file (`dse list spaces NAME > mine.yaml` prints one to edit)"
        )


#: Size of the operands that on-chip memory has to have room for. [B]
SIXTEEN_BITS: Final = 2.0

#: Condition of a sampled sharding on the sizes that it splits.
EVEN: Final = "hidden_size % tp == 0 and ffn_hidden_size % tp == 0 and seq_len % tp == 0"


def with_sampled_kernels(section: Section, columns: Mapping[str, Domain], system: System) -> Section:
    """A space with a parameter for the split of each kernel, and the tile of each product on a system.

    Names that the file has stay unchanged. Mistakes are noted in the section's source. Models whose designs have no
    such `columns` are left to the reader of the file, which reports unknown names.
    """
    if "sharding" not in columns:
        return section
    given = section.mapping("given")
    parameters = section.mapping("parameters")
    shardings = {name: columns[name] for name in columns if name.endswith("_sharding")}
    tiles = [name for name in columns if name.endswith(("_tile_m", "_tile_n"))]
    _check(section, given, parameters, {"sharding": [*shardings], "tiling": tiles})
    named = {*given, *parameters, *section.mapping("derived")}
    added: dict[str, Any] = {}
    rules: dict[str, str] = {}
    if given.get("sharding") == "sample":
        added |= {name: [*domain.words] for name, domain in shardings.items()}
        rules |= {"tp_splits_evenly": EVEN} if "tp" in named else {}
    if given.get("tiling") == "sample":
        options = tile_options(section, system)
        unfused = "attention" in parameters or given.get("attention") == "unfused"
        for kernel in _tiled(tiles, unfused=unfused):
            m, n = design.tile_columns(kernel)
            added |= dict.fromkeys((m, n), options)
            rules[f"{kernel}_tile_is_compact"] = f"{m} <= 2 * {n} and {n} <= 2 * {m}"
            rules[f"{kernel}_tile_has_room"] = f"min({m}, {n}) <= {options[-1] // 2}"
    new = {name: options for name, options in added.items() if name not in named}
    constraints = {**rules, **section.mapping("constraints")}
    if not added:
        return section
    data = {**section.data, "parameters": {**parameters, **new}, "constraints": constraints}
    return Section(section.source, section.at, data)


def solved_parameters(
    blocks: Iterable[Block], given: Mapping[str, float], parameters: Mapping[str, Parameter]
) -> tuple[Parameter, ...]:
    """Parameters that a space leaves to the cost model: shardings of kernels, and tiles of products."""
    columns = design.DesignPoints.domains(blocks)
    codes = {name: {given[name]} for name in ("sharding", "tiling", "attention") if name in given}
    for name in ("sharding", "attention"):
        options = parameters[name].options if name in parameters else None
        codes |= {} if options is None else {name: {*options.tolist()}}
    names = []
    if codes.get("sharding", set()) & {design.SOLVE, design.SOLVE_BYTES}:
        names += [name for name in columns if name.endswith("_sharding")]
    if codes.get("tiling") == {float(design.FREE_TILES)}:
        tiles = [name for name in columns if name.endswith("_tile_m")]
        kernels = _tiled(tiles, unfused=design.UNFUSED in codes.get("attention", ()))
        names += [name for kernel in kernels for name in design.tile_columns(kernel)]
    return tuple(Parameter(name, "-", tuple(columns[name].words or (0, *design.TILE_EDGES))) for name in names)


def tile_options(section: Section, system: System) -> list[int]:
    """Edges of tiles that may be the best ones on a machine that the space has, ascending. [elements]"""
    opened = {**section.mapping("given"), **section.mapping("parameters")}
    quantities = ("cores", "arrays_per_core", "array_height", "array_width", f"{system.memory[0].name}_capacity")
    if any(name in section.mapping("derived") for name in quantities):
        return [*design.TILE_EDGES]
    units = system.units()
    try:
        values = {
            name: [si_value(value, units[name]) for value in listed_values(opened[name])]
            for name in quantities
            if name in opened
        }
    except ValueError:  # a formula; or a mistake, which the reader of the section reports
        return [*design.TILE_EDGES]
    grid = dict(zip(values, np.array([*itertools.product(*values.values())]).T, strict=True))
    edges = useful_edges(system.with_quantities(grid), SIXTEEN_BITS)
    return [edge for edge in design.TILE_EDGES if edge in edges]


def listed_values(written: Any) -> list[Any]:
    """Options of a parameter, the ends of a range, or one value, as a file has them.

    Raises `ValueError` if they are none of these.
    """
    written = written_options(written)
    if isinstance(written, dict):
        written = [written.get("from"), written.get("to")]
    return written if isinstance(written, list) else [written]


def _tiled(tiles: Iterable[str], *, unfused: bool) -> Iterator[str]:
    """Products of each pass that some design has: fused attention has none."""
    kernels = dict.fromkeys(design.kernel_of_tile(name) for name in tiles)
    yield from (name for name in kernels if unfused or not name.startswith(KINDS["attention"].product_names))


def _check(
    section: Section,
    given: Mapping[str, Any],
    parameters: Mapping[str, Any],
    kernel_columns: Mapping[str, Sequence[str]],
) -> None:
    """Note choices that contradict each other: `kernel_columns` count where their name is "sample"."""
    for name, columns in kernel_columns.items():
        options = parameters.get(name)
        if isinstance(options, list) and "sample" in options:
            section.section("parameters").mistake(name, "sample is not an option beside others; write it under given")
        explicit = next((column for column in columns if column in {*given, *parameters}), None)
        if explicit and given.get(name) != "sample":
            section.mistake(None, f"{explicit}: counts with {name}: sample alone; write that under given")
