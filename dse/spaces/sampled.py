"""`sharding: sample` and `tiling: sample` of a search space, written out as one parameter for each choice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from costmodel.formats.strict_yaml import Section
from costmodel.training.design import MOST_HALVINGS, TILED_PRODUCTS
from costmodel.training.sharding import KERNELS

#: What a sampled sharding needs of the sizes that it splits.
EVEN: Final = "hidden_size % tp == 0 and ffn_hidden_size % tp == 0 and seq_len % tp == 0"


def written_out(section: Section, columns: Collection[str]) -> Section:
    """The same space with a parameter for the split of each kernel, and the tile of each product.

    Names that the file has itself stay as they are. Mistakes are noted in the section's source. Models whose
    layouts have no such `columns` are left to the reader of the file, which tells what it does not know.
    """
    if "sharding" not in columns:
        return section
    given = _mapping(section, "given")
    parameters = _mapping(section, "parameters")
    _check(section, given, parameters)
    named = {*given, *parameters, *_mapping(section, "derived")}
    added: dict[str, Any] = {}
    rules: dict[str, str] = {}
    if given.get("sharding") == "sample":
        added |= {f"{kernel}_sharding": list(ways) for kernel, ways in KERNELS.items()}
        rules |= {"tp_splits_evenly": EVEN} if "tp" in named else {}
    if given.get("tiling") == "sample":
        for product in _products(given, parameters):
            m, n = (f"{product}_tile_{axis}" for axis in "mn")
            added |= {name: list(range(MOST_HALVINGS + 1)) for name in (m, n)}
            rules[f"{product}_tile_fits"] = f"{m} + {n} >= 1 and abs({m} - {n}) <= 1"
    new = {name: options for name, options in added.items() if name not in named}
    constraints = {**rules, **_mapping(section, "constraints")}
    if not added:
        return section
    data = {**section.data, "parameters": {**parameters, **new}, "constraints": constraints}
    return Section(section.source, section.at, data)


def _mapping(section: Section, key: str) -> Mapping[str, Any]:
    """A part of the file; nothing where it is none, which its reader will tell."""
    found = section.data.get(key)
    return found if isinstance(found, dict) else {}


def _products(given: Mapping[str, Any], parameters: Mapping[str, Any]) -> Iterator[str]:
    """Products that some design has: fused attention has none of its own."""
    unfused = "attention" in parameters or given.get("attention") == "unfused"
    yield from (name for name in TILED_PRODUCTS if unfused or name not in ("scores", "context"))


def _check(section: Section, given: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Note choices that contradict each other."""
    for name, columns in (
        ("sharding", [f"{kernel}_sharding" for kernel in KERNELS]),
        ("tiling", [f"{product}_tile_{axis}" for product in TILED_PRODUCTS for axis in "mn"]),
    ):
        options = parameters.get(name)
        if isinstance(options, list) and "sample" in options:
            section.section("parameters").mistake(
                name, "sample is no option beside others; write it under given"
            )
        told = next((column for column in columns if column in {*given, *parameters}), None)
        if told and given.get(name) != "sample":
            section.mistake(None, f"{told}: counts with {name}: sample alone; write that under given")
    shared = parameters.get("sequence_parallel", given.get("sequence_parallel"))
    if {"sharding"} & {*given, *parameters} and shared not in (None, False, [False]):
        section.mistake(
            None,
            "sequence_parallel: is sharding: megatron_sp by another name; leave it out, or set it to false",
        )
