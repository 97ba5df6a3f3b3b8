"""Built-in spaces, models and systems, with the figures that distinguish them.

`dse list` shows a row for each file. A row is computed from the loaded file and never written by hand: parameters of a
model, bandwidths of one chip of a system, legal designs of a space. Keys of rows end in their units, for JSON; a table
has words instead (`heading`, `fact_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.formats import shipped
from costmodel.formats.framework_file import Framework, framework_text, load_framework
from costmodel.formats.input_files import data_beside, read_text
from costmodel.formats.model_file import AnyModel, load_model
from costmodel.formats.quantity import readable
from costmodel.formats.system_file import load_system
from costmodel.machine import System, chip_power, chip_price
from costmodel.training.model import ModelShape
from costmodel.training.precision import MIXED_PRECISION
from dse.spaces.space import Space

#: Fact -> its SI unit, for those that are physical.
UNITS: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["units"]
#: Fact of a model -> the field with it.
DIMENSIONS: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["dimensions"]

#: Facts that a table leaves out, or says below it in words.
BELOW: Final = ("objectives", "description", "title", "flops_per_token_full", "active_parameters_without_input_table")

#: Endings of keys that state units.
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
    """Figures of a model; one without attention has no heads, and every parameter of it is active."""
    facts: dict[str, Any] = {"name": model.name, "parameters": model.num_parameters}
    facts["active_parameters"] = getattr(model, "active_parameters", model.num_parameters)
    facts |= {fact: getattr(model, field) for fact, field in DIMENSIONS.items() if hasattr(model, field)}
    if isinstance(model, ModelShape):
        without = model.active_parameters - model.hidden_size * (0.0 if model.tied_embeddings else model.vocab_size)
        facts |= {
            "flops_per_token": 3 * model.forward_flops(causal=True),
            "flops_per_token_full": 3 * model.forward_flops(causal=False),
            "active_parameters_without_input_table": without,
        }
    else:
        facts["flops_per_token"] = 3 * model.forward_flops_per_sequence / model.seq_len
    return {**facts, "title": model.title or model.name}


def model_text(model: AnyModel) -> str:
    """Counts that follow from the dimensions of a model, as comments of its file."""
    facts, precision = model_facts(model), MIXED_PRECISION
    parameters, states = facts["parameters"], precision.state_bytes
    kept = precision.element_bytes + precision.gradient_bytes
    lines = [f"parameters: {parameters:,.0f}"]
    if isinstance(model, ModelShape):
        if model.mtp_layers:
            lines.append(f"... of multi-token prediction in addition: {model.mtp_parameters:,.0f}")
        lines.append(
            f"active parameters: {facts['active_parameters']:,.0f}, "
            f"without the input table {facts['active_parameters_without_input_table']:,.0f}"
        )
    lines.append(
        f"FLOPs per token, forward and backward, at {model.seq_len:,.0f} tokens: "
        f"{facts['flops_per_token']:.5g}"
        + (f" (causal half), {facts['flops_per_token_full']:.5g} (full)" if "heads" in facts else "")
    )
    lines.append(
        f"memory of weights, gradients and Adam states: {kept + states:g} B per parameter, "
        f"{kept:g} + {states:g}/dp with a distributed optimizer; "
        f"{readable((kept + states) * parameters, 'B')} in all"
    )
    return "".join(f"# {line}\n" for line in lines)


def system_facts(system: System) -> dict[str, Any]:
    """Figures of a system: bandwidths of one chip, links in one direction, shares of host and facility."""
    node, *outer = system.network
    facts = {
        "name": system.name,
        "peak_flop_per_s": system.chip.peak_flop_rate,
        "memory_bytes": system.dram.capacity,
        "nominal_memory_bytes": system.dram.sold_capacity,
        "memory_bandwidth_bytes_per_s": system.dram.bandwidth,
        "node_size": node.size,
        "node_bandwidth_bytes_per_s": node.bandwidth,
        **({"fabric_bandwidth_bytes_per_s": outer[-1].bandwidth} if outer else {}),
        "price_per_chip_usd": chip_price(system),
        "power_per_chip_w": chip_power(system),
    }
    return {name: value.item() if isinstance(value, np.ndarray) else value for name, value in facts.items()}


def framework_facts(framework: Framework) -> dict[str, Any]:
    """Figures of a framework, with its releases."""
    releases = ", ".join(release.name for release in framework.releases)
    return {"name": framework.name, "values": len(framework.given), "releases": releases,
            "description": framework.description}  # fmt: skip


def space_facts(space: Space) -> dict[str, Any]:
    """Figures of a space."""
    return {
        "name": space.name,
        "model": space.model.name,
        "system": space.system.name,
        "parameters": len(space.parameters),
        "legal_designs": space.legal.count,
        "objectives": [objective.name for objective in space.objectives],
        "description": space.description,
    }


#: Kind of file -> facts about each built-in file of the kind.
LISTS: Final[Mapping[str, Callable[[], list[dict[str, Any]]]]] = {
    "spaces": lambda: [space_facts(Space.load(name)) for name in shipped.names("spaces")],
    "models": lambda: [model_facts(load_model(name)) for name in shipped.names("models")],
    "systems": lambda: [system_facts(load_system(name)) for name in shipped.names("systems")],
    "frameworks": lambda: [framework_facts(load_framework(name)) for name in shipped.names("frameworks")],
}


def text_of(name: str, kind: str) -> str:
    """Text of the built-in file with a name and kind (a key of `LISTS`).

    The text of a model ends with quantities derived from it, as comments.

    Raises `DseError` if there is none.
    """
    if kind == "frameworks":
        return framework_text(name)
    text = read_text(shipped.located(name, kind, Path()))
    return text + model_text(load_model(name)) if kind == "models" else text
