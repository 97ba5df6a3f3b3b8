"""What ships with the package: spaces, models and systems, with the facts that tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.formats import shipped
from costmodel.formats.model_file import load_model
from costmodel.formats.quantity import readable
from costmodel.formats.strict_yaml import read_text
from costmodel.formats.system_file import load_system
from costmodel.machine.price import chip_power, chip_price
from costmodel.machine.system import System
from costmodel.training.model import AnyModel, ModelShape
from dse.spaces.space import Space

#: Fact -> its SI unit, for those that are physical.
UNITS: Final[Mapping[str, str]] = {
    "peak_flop_per_s": "FLOP/s",
    "memory_bytes": "B",
    "memory_bandwidth_bytes_per_s": "B/s",
    "node_bandwidth_bytes_per_s": "B/s",
    "fabric_bandwidth_bytes_per_s": "B/s",
    "price_per_chip_usd": "$",
    "power_per_chip_w": "W",
}

#: Facts that stand below the table, in words.
BELOW: Final = ("objectives", "description")

#: Endings of such names.
SUFFIXES: Final = ("_bytes_per_s", "_flop_per_s", "_bytes", "_usd", "_w")


def heading(fact: str) -> str:
    """A fact's name for people.

    >>> heading("memory_bandwidth_bytes_per_s"), heading("hidden_size")
    ('memory bandwidth', 'hidden size')
    """
    for suffix in SUFFIXES:
        if fact in UNITS:
            fact = fact.removesuffix(suffix)
    return fact.replace("_", " ")


def fact_text(fact: str, value: Any) -> str:
    """A fact for people.

    >>> fact_text("parameters", 174.6e9), fact_text("price_per_chip_usd", 24730.4), fact_text("layers", 96)
    ('175 billion', '$24.7K', '96')
    """
    if isinstance(value, str):
        return value
    if fact in UNITS:
        return readable(value, UNITS[fact])
    if value < 1e8:
        return f"{value:,.0f}"
    return f"{value / 1e9:,.{0 if value >= 1e11 else 1}f} billion"


def model_facts(model: AnyModel) -> dict[str, Any]:
    """What a model is; one without attention has no heads."""
    attention = (
        {"heads": model.num_attention_heads, "query_groups": model.num_query_groups}
        if isinstance(model, ModelShape)
        else {}
    )
    return {
        "name": model.name,
        "parameters": model.num_parameters,
        "layers": model.num_layers,
        "hidden_size": model.hidden_size,
        **attention,
        "seq_len": model.seq_len,
        "vocab_size": model.vocab_size,
    }


def system_facts(system: System) -> dict[str, Any]:
    """What a system is; bandwidths are of one chip, links in one direction, host and facility shared out."""
    node, *outer = system.network
    facts = {
        "name": system.name,
        "peak_flop_per_s": system.chip.peak_flop_rate,
        "memory_bytes": system.dram.capacity,
        "memory_bandwidth_bytes_per_s": system.dram.bandwidth,
        "node_size": node.size,
        "node_bandwidth_bytes_per_s": node.bandwidth,
        **({"fabric_bandwidth_bytes_per_s": outer[-1].bandwidth} if outer else {}),
        "price_per_chip_usd": chip_price(system),
        "power_per_chip_w": chip_power(system),
    }
    return {name: value.item() if isinstance(value, np.ndarray) else value for name, value in facts.items()}


def space_facts(space: Space) -> dict[str, Any]:
    """What a space is."""
    return {
        "name": space.name,
        "model": space.model.name,
        "system": space.system.name,
        "parameters": len(space.parameters),
        "legal_designs": space.legal.count,
        "objectives": [objective.name for objective in space.objectives],
        "description": space.description,
    }


#: Kind of file -> facts about each that ships.
LISTS: Final[Mapping[str, Callable[[], list[dict[str, Any]]]]] = {
    "spaces": lambda: [space_facts(Space.load(name)) for name in shipped.names("spaces")],
    "models": lambda: [model_facts(load_model(name)) for name in shipped.names("models")],
    "systems": lambda: [system_facts(load_system(name)) for name in shipped.names("systems")],
}


def text_of(name: str, kind: str) -> str:
    """The file of that name and kind ("spaces", "models" or "systems"), as it ships.

    Raises
    ------
    DseError
        If there is none.
    """
    return read_text(shipped.located(name, kind, Path()))
