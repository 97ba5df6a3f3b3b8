"""Every name that formulas and options may use with a space, with its unit and meaning."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from costmodel.columns import layout_of
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import readable, unit_name
from costmodel.rules.registry import all_columns, design_columns
from costmodel.training.design_table import Domain
from dse.predictions import INTERVAL_UNITS
from dse.spaces.sections.parameters import keyed
from dse.spaces.space import Space


@cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    """Group of names -> name -> its meaning."""
    tables: Mapping[str, Mapping[str, str]] = data_beside(__file__, "meanings.yaml")
    return tables


def meaning(name: str, memories: Collection[str] = (), tiers: Collection[str] = ()) -> str:
    """Meaning of a name, in a line; "" for a name that a space makes up.

    >>> meaning("tp"), meaning("sram_bandwidth", memories=["sram"])
    ('ranks that share each layer: tensor parallelism', 'bandwidth of sram')
    """
    tables = _tables()
    for group in ("design", "run", "model", "machine", "results"):
        if name in tables[group]:
            return tables[group][name]
    if name.endswith("_fraction"):
        return f"share of the package's power which {name.removesuffix('_fraction')} takes"
    for owners, table in ((memories, tables["of_a_memory"]), (tiers, tables["of_a_tier"])):
        for owner in owners:
            short = name.removeprefix(f"{owner}_")
            if short != name and short in table:
                return table[short].format(owner)
    if name.endswith("_sharding"):
        return f"how kernel {name.removesuffix('_sharding')} is split, where sharding is sample"
    if name.endswith(("_tile_m", "_tile_n")):
        return f"edge of {name[:-7]}'s output tile along {name[-1]}"
    return ""


@dataclass(frozen=True, slots=True)
class ListedName:
    """A name of a space."""

    group: str  #: parameters, given, derived, margins, design, model, machine or results
    name: str
    unit: str
    value: str  #: its options, value or formula; "" where only evaluation gives it
    meaning: str


def listed_names(space: Space, word: str = "") -> list[ListedName]:
    """Names of a space that have a word in them or in their meaning, by group; names that the space sets come first."""
    by_name: dict[str, ListedName] = {}
    for listed in _every(space):
        by_name.setdefault(listed.name, listed)
    return [one for one in by_name.values() if word.lower() in f"{one.name}\n{one.meaning}".lower()]


def _every(space: Space) -> Iterator[ListedName]:
    memories = [level.name for level in space.system.memory]
    tiers = [tier.name for tier in space.system.network]

    def listed(group: str, name: str, unit: str, value: str) -> ListedName:
        meaning_usual = "" if group in ("model", "results") else "a name of this space alone"
        return ListedName(group, name, unit, value, meaning(name, memories, tiers) or meaning_usual)

    for parameter in space.parameters:
        yield listed("parameters", parameter.name, parameter.unit, parameter.described())
    for name, value in space.given.items():
        yield listed("given", name, unit_name(space.names[name].dimension), _shown(space, name, value))
    for derived in space.derived:
        yield listed("derived", derived.name, derived.unit, _with_short_numbers(str(derived.expression)))
    for limit in space.limits:
        name = keyed(limit.name, limit.unit)
        yield ListedName("margins", name, limit.unit, limit.expression, "how far this limit is; below 0: broken")
    yield from (
        listed("results", name, unit, "")
        for name, unit in {**layout_of(space.workload.work.results).units, **INTERVAL_UNITS}.items()
    )
    for name, unit in space.system.units().items():
        yield listed("machine", name, unit, _constant(space.constants.get(name, np.nan), unit))
    ruled = {*re.findall(r"\w+", " ".join(rule.expression for rule in space.rules))}
    for name in ("num_parameters", *space.model.dimensions, *space.model.counts):
        if space.constants.get(name) or name in ruled:
            yield listed("model", name, "-", readable(space.constants[name], "-", digits=12))
    for name in design_columns(space.workload):
        yield listed("design", name, "-", ", ".join(all_columns().get(name, Domain()).words[:8]))


def _constant(value: float, unit: str) -> str:
    """A quantity of the machine; nothing where the machine has none.

    >>> [_constant(value, "B/s") for value in (2e12, np.inf, np.nan)]
    ['2 TB/s', 'unlimited', '']
    """
    return "" if np.isnan(value) else "unlimited" if np.isinf(value) else readable(value, unit)


def _with_short_numbers(formula: str) -> str:
    """A formula whose quantities have three digits.

    >>> _with_short_numbers("sram_bandwidth * 2.4813630534351147e-06 s")
    'sram_bandwidth * 2.48 us'
    """
    long = r"(\d+\.\d{4,}(?:e[+-]?\d+)?) ([A-Za-z$/]+)"
    return re.sub(long, lambda match: readable(float(match[1]), match[2]), formula)


def _shown(space: Space, name: str, value: float) -> str:
    """A given value as its file has it."""
    known = space.names[name]
    if known.words:
        return known.words[int(value)]
    return str(bool(value)).lower() if known.boolean else readable(value, unit_name(known.dimension), digits=6)
