"""`framework` of a search space: its behaviour, as values that all designs share, and its limits, as rules.

Both are written out as if the space file had them: values under `given`, limits under `constraints`. So later readers
need no framework, and a stored space needs no other file. A limit that no design of the space can break is
left out. Some rules hold with every framework: `usual_rules.yaml` has those of schedules, rank groups and switches.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray
from costmodel.errors import DseError, suggestion
from costmodel.formats.framework_file import Framework, load_framework
from costmodel.formats.input_files import Section, data_beside
from costmodel.formats.model_file import load_model
from costmodel.machine import System
from costmodel.rules.registry import all_columns
from costmodel.training.blocks import Block, kinds_unknown_to
from costmodel.training.design import EVERY_MODULE, DesignPoints
from costmodel.training.model import ModelShape
from dse.spaces.formulas.expressions import Compiled, Expression, Name


@dataclass(frozen=True, slots=True)
class UsualRule:
    """A condition, which counts if one of some columns is open."""

    name: str
    formula: str
    of: frozenset[str] = frozenset()

    def written_with(self, known: Collection[str]) -> str:
        """The formula with defaults in the place of columns that a space does not name.

        >>> UsualRule("r", "pp % 2 == 0 or schedule != zb_v", frozenset()).written_with({"schedule"})
        '1 % 2 == 0 or schedule != zb_v'
        >>> UsualRule("r", "pp % 2 == 0 or schedule != zb_v", frozenset()).written_with({"pp"})
        'pp % 2 == 0 or 1 != 5'
        """
        defaults, words = _defaults(), _words()

        def compared(match: re.Match[str]) -> str:
            column, sign, word = match.groups()
            if column in known or word not in words.get(column, ()):
                return match[0]
            return f"{defaults[column]:g} {sign} {words[column].index(word)}"

        def default(match: re.Match[str]) -> str:
            name = match[0]
            return f"{defaults[name]:g}" if name in defaults and name not in known else name

        return re.sub(r"\b[A-Za-z_]\w*", default, re.sub(r"\b(\w+) (==|!=) (\w+)", compared, self.formula))

    def expression(self, known: Collection[str]) -> Expression | None:
        """The formula for a space with some `known` names; None where its model lacks a name."""
        formula = Expression.parse(self.written_with(known))
        words = {word for column in _words().values() for word in column}
        return formula if formula.names <= {*known, *words} else None


@cache
def _defaults() -> dict[str, float]:
    """Column, or alias of one -> its default."""
    columns = {name: values.item() for name, values in DesignPoints().columns().items()}
    return {**columns, **dict.fromkeys(DesignPoints.aliases, 0.0)}


@cache
def _words() -> dict[str, Sequence[str]]:
    """Column -> its words, in the order of their codes."""
    return {name: domain.words for name, domain in DesignPoints.declared().items() if domain.words}


#: Rules by their file.
USUAL_RULES: Final = tuple(
    UsualRule(row["name"], row["formula"], frozenset(row["of"])) for row in data_beside(__file__, "usual_rules.yaml")
)


def written_out(section: Section, model: Any, columns: Collection[str], quantities: Mapping[str, Any],
                base: Path) -> tuple[Section, str]:  # fmt: skip
    """A space with values of its framework under `given`, except names that it sets itself; and the framework's name.

    Where it asks for `limits`, those of the framework stand under `constraints`. Mistakes are noted in the source of
    `section`. `columns` are those of designs of its model; `quantities` are those of its system, NaN where systems
    differ. [SI units] Relative paths count from `base`. `framework` becomes a mapping of its name, so that no other
    file is needed; the name is "" if there is no framework.
    """
    if "framework" not in section:
        return section, ""
    name, limits, done = _asked(section)
    if done or not name:
        return section, name
    try:
        framework = load_framework(name, base)
    except DseError as error:
        section.mistake("framework", str(error))
        return section, ""
    names_said = {word for key in ("given", "parameters", "derived") for word in section.mapping(key)}
    names_said |= {alias.column for name, alias in DesignPoints.aliases.items() if name in names_said}
    given: dict[str, Any] = {}
    known, at = [*columns, *quantities], (*section.at, "framework")
    for word, value in framework.said(model, lambda name: float(quantities.get(name, np.nan))).items():
        if word in known and word not in names_said:
            given[word] = value
            section.source.origins[*section.at, "given", word] = at, f"{name}: given.{word}: "
        elif word not in known and word not in all_columns():
            section.mistake("framework", f"{framework.name}: {word}: no such name{suggestion(word, known)}")
    data = {**section.data, "framework": {"name": framework.name}, "given": {**given, **section.mapping("given")}}
    if limits and isinstance(model, ModelShape):
        named = {word for key in ("given", "parameters", "derived") for word in data.get(key, {})}
        options = {**{name: [value] for name, value in data["given"].items()}, **section.mapping("parameters")}
        kept = limits_of(framework, model, named, options, quantities)
        data["constraints"] = {**section.mapping("constraints"), **kept}
        for word in given.keys() & framework.otherwise.keys():
            if refusing := [text for text in kept.values() if re.search(rf"\b{word}\b", text)]:
                data = _opened(data, word, given[word], framework.otherwise[word], refusing)
    return Section(section.source, section.at, data), framework.name


def _opened(data: Mapping[str, Any], word: str, first: Any, other: Any, refusing: Sequence[str]) -> dict[str, Any]:
    """A space that chooses the `other` value of a column where limits refuse the `first`."""
    usual = " and ".join(
        re.sub(
            rf"\b{word} (==|!=) (\w+)",
            lambda match: f"1 == {int((match[2] == str(first)) == (match[1] == '=='))}",
            f"({text})",
        )
        for text in refusing
    )
    return {
        **data,
        "given": {name: value for name, value in data["given"].items() if name != word},
        "parameters": {**data["parameters"], word: [first, other]},
        "constraints": {**data["constraints"], f"usual_{word}": f"{word} == {first} or not ({usual})"},
    }


def framework_rules(framework: Framework, model: ModelShape) -> Iterator[UsualRule]:
    """Rules that designs of a model must keep so that a framework can run them, as rules of spaces."""
    for module in EVERY_MODULE if framework.runs else ():
        if module.column.removeprefix("recompute_") not in framework.modules and not module.selective:
            yield UsualRule(f"runs_{module.column}", f"{module.column} == 0")
    for column, runs in framework.runs.items():
        known = " or ".join(f"{column} == {value}" for value in runs.words)
        yield UsualRule(f"runs_{column}", f"not ({runs.where}) or {known}" if runs.where else known)
    yield from _with_settings(tuple(framework.limits.items()), tuple(_settings(model).items()))


@lru_cache
def _with_settings(limits: Sequence[tuple[str, str]], settings: Sequence[tuple[str, Any]]) -> list[UsualRule]:
    """Formulas with a model's settings in the place of their names."""
    values = dict(settings)

    def compared(match: re.Match[str]) -> str:
        stated = values.get(match[1])
        return f"{int((stated == match[3]) == (match[2] == '=='))} == 1" if isinstance(stated, str) else match[0]

    replaced = ((name, re.sub(r"(\w+) (==|!=) (\w+)", compared, formula)) for name, formula in limits)
    numbers = {key: f"{float(value):g}" for key, value in values.items() if not isinstance(value, str | None)}
    return [
        UsualRule(name, re.sub(r"\w+", lambda word: numbers.get(word[0], word[0]), text)) for name, text in replaced
    ]


def _settings(model: ModelShape) -> dict[str, bool | str | float]:
    """Switches and words of a model, and its numerics; no dimensions, and no names of design columns."""
    values = {field.name: getattr(model, field.name) for field in fields(model)}
    known_values = {name: value for name, value in values.items() if isinstance(value, bool | str)}
    known_values |= {item.name: getattr(model.numerics, item.name) for item in fields(model.numerics)}
    return {name: value for name, value in known_values.items() if name not in DesignPoints.declared()}


def without_limits_of_models(framework: Framework) -> Framework:
    """A framework that is asked to train any model: only limits that read columns of designs are left."""
    columns = {*DesignPoints.declared()}
    kept = {n: text for n, text in framework.limits.items() if Expression.parse(text).names & columns}
    return replace(framework, limits=kept)


def _asked(section: Section) -> tuple[str, bool, bool]:
    """The framework of a space, whether its limits hold, and whether all of it is written out already."""
    if not isinstance(section.data["framework"], dict):
        return section.text("framework"), False, False
    framework_section = section.section("framework")
    framework_section.only(("name", "limits"))
    limits = framework_section.switch("limits", default=False)
    return framework_section.text("name"), limits, not limits


def limits_of(
    framework: Framework, model: ModelShape, named: Collection[str], opened: Mapping[str, Any],
    quantities: Mapping[str, Any],
) -> dict[str, str]:  # fmt: skip
    """Limits of a framework that some design of a space may break, as constraints.

    `named` are columns that the space names; `opened` has those that it gives or opens, with their options.
    `quantities` are NaN where systems differ. [SI units]
    """
    from dse.spaces.formulas.interval_arithmetic import interval_of, point

    sizes = {name: point(getattr(model, name)) for name in (*model.dimensions, *model.counts)}
    sizes |= {name: point(values) for name, values in quantities.items() if name not in named}
    known, columns, expected_rules = {*named, *sizes}, _columns(model.blocks), {}
    for rule in framework_rules(framework, model):
        formula, column = rule.expression(known), rule.name.removeprefix("runs_")
        if formula is None or not formula.names & {*named}:
            continue
        runs, options = framework.runs.get(column), opened.get(column)
        within = runs and isinstance(options, list) and {str(option) for option in options} <= {*runs.words}
        if not within and not interval_of(formula, sizes, columns)[0]:
            expected_rules[rule.name] = formula.text
    return expected_rules


def refused_model(framework: Framework, model: ModelShape) -> str:
    """Why a framework cannot train a model; "" if it can, or nothing is known."""
    if framework.launch and (unknown := kinds_unknown_to(framework.launch[0], model.kinds)):
        return f"model {model.name}: {framework.title} cannot express {', '.join(unknown)}"
    if framework.models and not any(is_same(load_model(name), model) for name in framework.models):
        return f"model {model.name}: not in {framework.title}, which has {', '.join(framework.models)}"
    others = without_limits_of_models(framework).limits
    limits = {name: text for name, text in framework.limits.items() if name not in others}
    [broken] = broken_rules(replace(framework, limits=limits, runs={}), model, [{}], {})
    return f"model {model.name}: {broken[0]}" if broken else ""


def software_of_others(framework: Framework, system: System) -> str:
    """A line on a framework that is not known to run on a system; "" if it may."""
    if system.framework in ("", framework.name):
        return ""
    return f"{framework.title} is not known to run on {system.name}, which has {load_framework(system.framework).title}"


def is_same(one: Any, other: ModelShape) -> bool:
    """True if two models differ in name and settings alone."""
    free = ("name", "title", "seq_len", "document_len", "vocab_multiple", "mtp_layers")
    return isinstance(one, ModelShape) and other == replace(one, **{f: getattr(other, f) for f in free})


def broken_rules(
    framework: Framework, model: ModelShape, designs: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]
) -> list[list[str]]:
    """Reasons why a framework cannot run each of some designs, a line for each rule that it breaks; none if it can.

    Designs have the same columns, with words and switches unconverted; missing columns have their defaults. `machine`
    has a value for all designs or one for each. Limits that read other quantities are passed over. [SI units]
    """
    points = DesignPoints.of(blocks=model.blocks, **{c: [design[c] for design in designs] for c in designs[0]})
    values, rules = _values_and_rules(framework_rules(framework, model), model, points, machine)
    broken: list[list[str]] = [[] for _ in designs]
    for rule, met in rules:
        read = values.keys() & Expression.parse(framework.limits.get(rule.name, rule.name.removeprefix("runs_"))).names
        for row in np.flatnonzero(~np.broadcast_to(met, len(designs))).tolist():
            known = {name: np.broadcast_to(values[name], len(designs))[row].item() for name in read}
            broken[row].append(_broken(framework, rule, {**known, **_settings(model), **designs[row]}))
    return broken


def conditions_met(conditions: Mapping[str, str], model: ModelShape, design: DesignPoints | None = None) -> list[str]:
    """Names of conditions that hold for a model and a design; those with names that are not of the model do not."""
    stated = _with_settings(tuple(conditions.items()), tuple(_settings(model).items()))
    _, rules = _values_and_rules(stated, model, design or DesignPoints(), {})
    return [rule.name for rule, met in rules if met.all()]


def _values_and_rules(
    rules: Iterable[UsualRule], model: ModelShape, design: DesignPoints, machine: Mapping[str, Any]
) -> tuple[dict[str, Any], list[tuple[UsualRule, BoolArray]]]:
    """Values by name, and where they keep the rules that read nothing else."""
    columns = _columns(model.blocks)
    values: dict[str, Any] = {name: column for name, column in design.columns().items() if name in columns}
    values |= {name: float(getattr(model, name)) for name in (*model.dimensions, *model.counts)} | {**machine}
    compiled = _compiled(tuple(rules), tuple((name, columns.get(name, Name())) for name in values))
    return values, [(rule, np.asarray(formula(values), dtype=bool)) for rule, formula in compiled]


@lru_cache
def _compiled(rules: Sequence[UsualRule], names: Sequence[tuple[str, Name]]) -> list[tuple[UsualRule, Compiled]]:
    """Rules that read only some names, compiled."""
    formulas = [(rule, rule.expression([name for name, _ in names])) for rule in rules]
    return [(rule, formula.compiled(dict(names))) for rule, formula in formulas if formula is not None]


@lru_cache
def _columns(blocks: tuple[Block, ...]) -> Mapping[str, Name]:
    """Columns of designs of some blocks, as formulas know them."""
    return {c: Name(words=tuple(d.words), boolean=d.switch) for c, d in DesignPoints.domains(blocks).items()}


def _broken(framework: Framework, rule: UsualRule, values: Mapping[str, Any]) -> str:
    """The rule that a design breaks, with a remedy."""
    column = rule.name.removeprefix("runs_")
    if rule.name not in framework.limits:
        runs = framework.runs.get(column)
        known = ", ".join(runs.words) if runs else "no such modules apart"
        return f"{column}={shown(values[column])}: {framework.title} has {known}"
    formula = framework.limits[rule.name]
    names = sorted(Expression.parse(formula).names & values.keys())
    shown_values = " ".join(f"{name}={shown(values[name])}" for name in names)
    return f"{shown_values}: in {framework.title} {rule.name.replace('_', ' ')} ({formula})"


def shown(value: Any) -> str:
    """A value as files and options write it."""
    number = isinstance(value, float) and value.is_integer()
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if number else str(value) or "none"
