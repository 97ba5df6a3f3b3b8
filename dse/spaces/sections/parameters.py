"""Parameters of a search space: the options or the range a value is chosen from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats.quantity import dimension, exact, readable, si_value, unit_name
from costmodel.formats.quantity import quantity as read_quantity
from costmodel.rules.registry import all_columns
from costmodel.training.design_table import Domain
from dse.spaces.formulas.expressions import Expression, Name

if TYPE_CHECKING:
    import optuna

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
    exact: bool = False  #: every value is tried beside each design of the others; else a sampler chooses
    own_words: tuple[str, ...] = ()  #: that formulas know of it beside its choices

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

    @cached_property
    def options(self) -> FloatArray | None:
        """Every value as the column holds it, in order; None for a range that is not stepped. [unit]"""
        if self.choices is not None:
            return np.array([self.code(choice) for choice in self.choices])
        assert self.low is not None
        assert self.high is not None
        if self.step is None or (self.high - self.low) / self.step >= MOST_OPTIONS:
            return None
        # In decimals, as written: 0.05 + 6 * 0.05 is 0.35, not the next number beyond the end of the range.
        low, high, step = (Fraction(str(value)) for value in (self.low, self.high, self.step))
        return np.array([float(low + place * step) for place in range((high - low) // step + 1)])

    @cached_property
    def places(self) -> dict[Value, int]:
        """Value -> place among the options."""
        options = self.options
        return {} if options is None else {self.value(code): n for n, code in enumerate(options.tolist())}

    def code(self, value: Value) -> float:
        """A value as the column holds it: a word's place, 0 or 1 for a boolean, else the number. [unit]"""
        if not isinstance(value, str):
            return float(value)
        value = value if value in self.words else value.lower()
        if value not in self.words:
            raise DseError(f"{self.name}: {value!r} is not a value{suggestion(value, self.words)}")
        return float(self.words.index(value))

    def value(self, code: float) -> Value:
        """The opposite of `code`: whole pure numbers as int, words and booleans as such."""
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
            assert self.low is not None
            assert self.high is not None
            step = f" in steps of {readable(self.step, self.unit)}" if self.step else ""
            return f"{readable(self.low, self.unit)} to {readable(self.high, self.unit)}{step}"
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
        """The value that a text or number stands for, an option or not; a `DseError` if it is no value."""
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
        if not (self.low or 0.0) <= code <= (self.high or 0.0) or (self.integer and not code.is_integer()):
            raise DseError(f"{self.name}={self.shown(value)}: out of range; {can_be}")
        return self.value(code)

    def distribution(self) -> optuna.distributions.BaseDistribution:
        """The distribution that Optuna samples from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices is not None:
            return CategoricalDistribution(self.choices)
        assert self.low is not None
        assert self.high is not None
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)


def decoded(parameters: Sequence[Parameter], columns: Mapping[str, FloatArray]) -> list[dict[str, Value]]:
    """Designs of a batch, one mapping each, from (points,) columns. [units of the parameters]"""
    values = [[p.value(code) for code in columns[p.name].tolist()] for p in parameters]
    names = [p.name for p in parameters]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def written_value(written: object, unit: str, words: Sequence[str], boolean: bool) -> Value:
    """A word, a boolean, or a number in SI units, from what a file or a command line holds.

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
    """A parameter from what a file says: a list, a range, a formula that gives a list, or a mapping of these.

    Raises `ValueError` if the options are none of these, or there is no end of values that are all to be tried.
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
    unit = unit or _unit_of(written[0])
    boolean = domain.switch or isinstance(written[0], bool)
    words = domain.words or tuple(str(w) for w in written if _is_word(w) and not boolean)
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
    return _listed(Parameter(name, unit or measured, tuple(_whole(v, unit or measured) for v in options)))


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


def _whole(value: float, unit: str) -> Value:
    return int(value) if unit == "-" and value.is_integer() else value


def _is_word(written: object) -> bool:
    """True if a text is a word rather than a quantity."""
    return isinstance(written, str) and written.isidentifier()


def _unit_of(written: object) -> str:
    """Unit in which a helper parameter is kept: that of its first option."""
    if not isinstance(written, str) or _is_word(written):
        return "-"
    return unit_name(read_quantity(written).dimension)


def refuse_several(name: str, written: Any) -> None:
    """Refuse several values where one is pinned; layouts of pipelines have commas of their own."""
    if isinstance(written, str) and "," in written and name != "pipeline_layout":
        values = ", ".join(part.strip(" []") for part in written.split(","))
        raise ParameterError(
            f"{name}={written}: {{set}} takes one value; to open several, write {name}: [{values}] under "
            "parameters of a space file (`dse list spaces NAME > mine.yaml` prints one to edit)"
        )
