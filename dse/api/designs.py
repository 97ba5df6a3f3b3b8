"""Designs of a space: evaluated, swept, explained, fitted, and the exact front of them all.

Each function does the work of a command and returns records or tables in place of text: `evaluate_design` is
`dse evaluate`, `exact_front` is `dse enumerate`. A space comes by name, with changes: pinned values, a layout,
objectives, tokens of a whole run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.columns import short_repr
from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats.quantity import count_value, readable
from costmodel.rules.registry import NATIVE
from dse.arguments import Columns
from dse.output import EVALUATION_KEYS, Record, design_text
from dse.pricing.evaluated import FittedDesign, rules_for
from dse.pricing.evaluation import evaluated_design, reasons
from dse.pricing.workers import Jobs, workers_of
from dse.spaces.sections.parameters import written_value
from dse.spaces.space import Params, Space

if TYPE_CHECKING:
    import pandas as pd

    from dse.explaining.explanation import Explanation
    from dse.explaining.neighbours import Sensitivity
    from dse.pricing.sweep import NamedDesigns
    from dse.searching.exact.exact_front import ExactFront, Method

#: A space, the name of a built-in one, or the path of a YAML file.
AnySpace = Space | str | Path
#: Values of `--set`: name -> value, as in a file, or a number in SI units.
Pins = Mapping[str, Any] | None


def chosen_space(
    space: AnySpace, *, set: Pins = None, layout: str | None = None, objective: Sequence[str] = (),
    tokens: float | str | None = None,
) -> Space:  # fmt: skip
    """A space with the changes that options of a command make.

    Raises `DseError` if it does not load, or cannot be changed so.

    Parameters
    ----------
    space : Space, str or Path
        A space, the name of a built-in one, or a YAML file.
    set : mapping, optional
        Values of parameters, and of fixed values that change: text as in a file, or numbers in SI units.
    layout : str, optional
        A layout of the space whose parameters are pinned, those of `set` aside.
    objective : sequence of str
        Objectives that replace those of the space, such as ``"maximize:tokens_per_second"``.
    tokens : float or str, optional
        Tokens of whole runs, such as ``"15T"``, which are then judged. [tokens]
    """
    space, pins = loaded_space(space), dict(set or {})
    if tokens:
        space = space.with_tokens(counted_tokens(tokens))
    if layout:
        if layout not in space.layouts:
            have = "; it has none" if not space.layouts else suggestion(layout, space.layouts)
            raise ParameterError(f"{{layout}} {layout}: no layout of space {space.name}{have}")
        pins = {**space.layouts[layout], **pins}
    if pins:
        space = space.pinned(pins)
    return space.with_objectives(objective) if objective else space


def loaded_space(space: AnySpace) -> Space:
    """A space itself, or the one of that name or in that file; a `DseError` if it does not load."""
    return space if isinstance(space, Space) else Space.load(space)


def counted_tokens(tokens: float | str) -> float:
    """A count of tokens, such as ``"15T"``; a `DseError` for other texts."""
    try:
        return count_value(tokens) if isinstance(tokens, str) else float(tokens)
    except ValueError as error:
        raise ParameterError(f"{{tokens}}: {error}") from None


def evaluate_design(
    space: AnySpace, set: Pins = None, *, best: bool = False, profile: str | None = None,
    layout: str | None = None, objective: Sequence[str] = (), tokens: float | str | None = None,
) -> Record:  # fmt: skip
    """Evaluate one design: the JSON of `dse evaluate` with ``params``, ``values``, ``breakdown``, ``margins``.

    Raises `DseError` if there is no such design.

    Parameters
    ----------
    space : Space, str or Path
        Where the design comes from.
    set : mapping, optional
        Values of it; parameters that are not named take the simplest legal values.
    best : bool
        Choose the values that are not named for the best feasible design instead.
    profile : str, optional
        Rules of the cost model; the native ones by default.
    layout, objective, tokens
        As for `search`.
    """
    space = chosen_space(space, set=set, layout=layout, objective=objective, tokens=tokens)
    rules = rules_for(space, profile or NATIVE)
    params: Params = space.completed({})
    if best:
        from dse.searching.nearest_design import nearest_feasible

        if (feasible := nearest_feasible(space, {}, rules)) is None:
            raise ParameterError("{best}: no design with these values is feasible; `fit` finds the nearest")
        params = feasible.params
    given = {name: space.given[name] for name in ("world_size", "global_batch_size") if name in space.given}
    return evaluated_design(space, params, rules=rules) | {"given": given}


def sweep(
    space: AnySpace, values: Columns, *, profile: str | None = None,
    jobs: Jobs = 1, set: Pins = None, layout: str | None = None, objective: Sequence[str] = (),
    tokens: float | str | None = None,
) -> NamedDesigns:  # fmt: skip
    """Every combination of some values, evaluated; `to_frame` of it is a table with a row for each.

    Raises `DseError` for an unknown name or an impossible value.

    Parameters
    ----------
    values : mapping
        Name -> its values: a sequence, or a text such as ``"64:1024:x2 GB/s"``; "" takes all options.
    jobs : int or Workers
        Number of processes that evaluate designs, or the workers that do. [-]
    space, set, profile, layout, objective, tokens
        As for `evaluate_design`.
    """
    space = chosen_space(space, set=set, layout=layout, objective=objective, tokens=tokens)
    if both := next((name for name in values if name in (set or {})), None):
        raise ParameterError(f"{both}: {{set}} fixes it; leave it out of the sweep")
    from dse.pricing.sweep import combinations

    named = {
        name: values_of(space, name, given) if isinstance(given, str) else [*given] for name, given in values.items()
    }
    return evaluate_designs(space, combinations(named), profile=profile, jobs=jobs)


def values_of(space: Space, name: str, text: str) -> list[Any]:
    """Values of a name that is swept, as `--sweep` writes them; a `DseError` if there are none."""
    space.check_settable(name)
    if text:
        from dse.pricing.sweep import swept_values

        return list(swept_values(name, text, space.unit_of(name)))
    parameter = space.by_name.get(name)
    options = parameter.options if parameter else None
    if parameter is None or options is None:
        raise DseError(f"sweep of {name}: it has no list of options here; give values, such as {name}=1,2,4")
    return [parameter.value(code) for code in options.tolist()]


def evaluate_designs(
    space: AnySpace, designs: Columns | pd.DataFrame, *, profile: str | None = None,
    jobs: Jobs = 1, set: Pins = None, layout: str | None = None, objective: Sequence[str] = (),
    tokens: float | str | None = None,
) -> NamedDesigns:  # fmt: skip
    """Designs of a table, evaluated: a column for each parameter that is named, a row for each design.

    Raises `DseError` for an unknown name or an impossible value.

    Parameters
    ----------
    designs : mapping or DataFrame
        Name -> its value in each row.
    space, profile, jobs, set, layout, objective, tokens
        As for `sweep`.
    """
    table = {str(name): list(column) for name, column in designs.items()}
    rows = len(next(iter(table.values()), [None]))
    space = chosen_space(space, set=set, layout=layout, objective=objective, tokens=tokens)
    from dse.pricing.sweep import evaluated_designs

    return evaluated_designs(space, table, rows, profile=profile or NATIVE, jobs=jobs)


def explain(
    space: AnySpace, set: Pins = None, *, profile: str | None = None, layout: str | None = None,
    objective: Sequence[str] = (), tokens: float | str | None = None,
) -> Explanation:  # fmt: skip
    """Explain the step time and memory of a design: ``.time`` and ``.memory`` are tables that add up.

    Parameters are those of `evaluate_design`. Raises `DseError` if there is no such design, or it has no number under
    the profile.
    """
    from dse.explaining.explanation import explain as explanation

    params = chosen_space(space, set=set, layout=layout, objective=objective, tokens=tokens).completed({})
    space = loaded_space(space)
    others = {name: value for name, value in (set or {}).items() if name not in space.by_name}
    space = chosen_space(space, set=others, objective=objective, tokens=tokens)  # its parameters are open
    return with_number(explanation(space, params, profile=profile or NATIVE))


def with_number(explanation: Explanation) -> Explanation:
    """An explanation itself; a `DseError` that says why if its design has no number."""
    if math.isnan(explanation.step_time):
        why_not = reasons(explanation.space, explanation.profile, explanation.params)
        why = f": {'; '.join(why_not)}" if why_not else ""
        raise DseError(f"profile {explanation.profile}: has no number for this design{why}")
    return explanation


def sensitivity(
    space: AnySpace, set: Pins = None, *, profile: str | None = None, layout: str | None = None,
    objective: Sequence[str] = (), tokens: float | str | None = None,
) -> Sensitivity:  # fmt: skip
    """Changes of a design's step time with each parameter and quantity; arguments are those of `explain`."""
    from dse.explaining import neighbours

    explanation = explain(space, set, profile=profile, layout=layout, objective=objective, tokens=tokens)
    return neighbours.sensitivity(explanation)


@dataclass(frozen=True, slots=True)
class NearestFit(FittedDesign):
    """The nearest design that works to one that may not."""

    __repr__ = short_repr

    space: Space
    named: Params
    record: Record  #: its costs, as `evaluate_design` returns them

    def to_json(self) -> dict[str, Any]:
        """The design and the values that were changed, as one JSON object."""
        figures = {key: self.record[key] for key in EVALUATION_KEYS if key in self.record}
        changed = {name: {"asked": before, "is": now} for name, (before, now) in self.changed.items()}
        return figures | {"changed": changed, "broken": self.broken, "exhaustive": self.exhaustive}

    def __str__(self) -> str:
        """The changed values and the reason."""
        space, named = self.space, self.named
        wish = " ".join(f"{name}={space.by_name[name].shown(value)}" for name, value in named.items())
        seen = "" if self.exhaustive else " Of many designs looked at: the space is too large to list."
        if not self.changed:
            return f"{wish} fits as it is; what is not named is the best beside it.{seen}"
        changes = ", ".join(
            f"{name} {space.by_name[name].shown(now)} in place of {space.by_name[name].shown(before)}"
            for name, (before, now) in self.changed.items()
        )
        units = {limit.name: limit.unit for limit in space.limits}
        if self.broken:
            broken = (f"{name} by {readable(-by, units[name])}" for name, by in self.broken.items())
            why = f"whatever else is chosen, {wish} breaks {', '.join(broken)} or more"
        else:
            try:
                space.pinned(named)
                why = f"{wish} keeps no limit together with others"
            except DseError as error:
                why = str(error).removeprefix(f"space {space.name}: ")
        return f"Changed: {changes}, since {why}.{seen}"


def fit(
    space: AnySpace, set: Pins = None, *, layout: str | None = None, profile: str | None = None,
    objective: Sequence[str] = (), tokens: float | str | None = None,
) -> NearestFit:  # fmt: skip
    """The legal design within all limits that is nearest to some values, and the values that differ in it.

    Raises `DseError` if no value is named, a name or value is unknown, or no design is within all limits.

    Parameters
    ----------
    set : mapping, optional
        The values; values that the space fixes are changed to them.
    layout : str, optional
        A layout of the space that gives the values which `set` does not.
    space, profile, objective, tokens
        As for `evaluate_design`.
    """
    named_space, pins = loaded_space(space), dict(set or {})
    fixed = {name: value for name, value in pins.items() if name not in named_space.by_name}
    space = chosen_space(named_space, set=fixed, objective=objective, tokens=tokens)
    named: dict[str, Any] = dict(space.layouts.get(layout or "", {}))
    for name in (name for name in pins if name not in fixed):
        parameter = space.by_name[name]
        try:
            written = space.in_file(name, pins[name])
            named[name] = written_value(written, parameter.unit, parameter.words, parameter.boolean)
        except ValueError as error:
            raise DseError(f"{name}: {error}; {name} can be {parameter.described()}") from None
    if not named:
        raise ParameterError("fit: give the values that you would like with {set}, such as tp=8 pp=16")
    rules = rules_for(space, profile or NATIVE)
    from dse.searching.nearest_design import nearest_feasible

    if (feasible := nearest_feasible(space, named, rules)) is None:
        from dse.searching.planned_study import closest

        near = closest(space)
        raise DseError(
            f"space {space.name}: no design satisfies all limits, near these values or far from them; the closest "
            f"breaks {near.limit} by {readable(-near.margin, near.unit)}: {design_text(space, near.params)}"
        )
    costs = evaluated_design(space, feasible.params, rules=rules)
    return NearestFit(feasible.params, feasible.changed, feasible.broken, feasible.exhaustive, space, named, costs)


def exact_front(
    space: AnySpace, *, method: Method = "auto", profile: str | None = None, jobs: Jobs = 1,
    set: Pins = None, layout: str | None = None, objective: Sequence[str] = (),
    tokens: float | str | None = None, checkpoint: str | Path | None = None,
) -> ExactFront:  # fmt: skip
    """The exact Pareto front of all legal designs, as `dse enumerate` finds it; `to_frame` of it is a table.

    Raises `DseError` if the space is not finite, has too many designs for the method, or the checkpoint is of another
    enumeration.

    Parameters
    ----------
    method : str
        "list" evaluates every design, "bounds" rules most of them out, "auto" chooses. The front is the same.
    space, profile, jobs, set, layout, objective, tokens
        As for `sweep`.
    checkpoint : str or Path, optional
        File that stores finished units: the same call continues from it after any death of its process.
    """
    space = chosen_space(space, set=set, layout=layout, objective=objective, tokens=tokens)
    rules = rules_for(space, profile or NATIVE)
    from dse.searching.exact import exact_front as exact

    file = None if checkpoint is None else Path(checkpoint)
    return exact.exact_front(space, rules=rules, workers=workers_of(jobs), method=method, checkpoint=file)


def columns(space: AnySpace, word: str = "") -> pd.DataFrame:
    """Every name that formulas, options and tables of a space may use: group, name, unit, value, meaning.

    Parameters
    ----------
    space : Space, str or Path
        The space.
    word : str
        List only names that have it in them or in their meaning.
    """
    fields = ["group", "name", "unit", "value", "meaning"]
    import pandas as pd

    from dse.spaces.listed_names import listed_names

    return pd.DataFrame(listed_names(chosen_space(space), word), columns=fields)
