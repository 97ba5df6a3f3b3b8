"""Collectives, price and power of DFModel's networks.

A network has one to three dimensions, each a ring, a switch or a complete graph, and each serves one parallel group. A
collective takes a share of the tensor over the bandwidth of a link; latency counts in the later generations alone.
Published generations differ in whether an all-reduce sends the tensor once or twice (`_halves`). Links and switches
have prices and powers for each GB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, divisors
from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from dse.adapters.dfmodel.graph import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL
from dse.adapters.dfmodel.setup import AXES, GENERATIONS, Dimension, Setup, product

Shares = Mapping[int, Callable[[FloatArray], FloatArray]]

#: Kind of dimension -> collective -> share of the unsharded tensor that passes a link, of a group of g.
_SHARES: Final[Mapping[str, Shares]] = {
    "r": {ALL_REDUCE: lambda g: (g - 1) / g, ALL_GATHER: lambda g: (g - 1) / g, ALL_TO_ALL: lambda g: g * g / 8},
    "sw": {ALL_REDUCE: lambda g: (g - 1) / g, ALL_GATHER: lambda g: (g - 1) / g, ALL_TO_ALL: lambda g: g / 4},
    "fc": {ALL_REDUCE: lambda g: 1 / g, ALL_GATHER: lambda g: 1 / g, ALL_TO_ALL: lambda g: g**0},
}

#: Ports of links and of switches, and rings of a torus: topology -> a product for each dimension.
_PORTS: Final[dict[str, dict[str, list[str]]]] = data_beside(__file__, "ports.yaml")


def rate(setup: Setup, generation: str, role: str, collective: int) -> FloatArray:
    """Time of a collective for each byte of the unsharded tensor, without latency, (points,). [s/B]

    0 where no dimension serves the role.
    """
    dimension = setup.dimension(role)
    if dimension is None:
        return np.zeros_like(setup.num_chips)
    share = _SHARES[dimension.kind][collective](dimension.size) / dimension.bandwidth
    if collective != ALL_REDUCE:
        return share
    flat = _halves(setup, generation, role, dimension.kind) * share
    return np.where(setup.domain_size > 0, _domain_rate(setup, role, dimension), flat)


def _halves(setup: Setup, generation: str, role: str, kind: str) -> float:
    """Number of times that an all-reduce sends the tensor over the links: 1, or 2 for its two halves."""
    rules = GENERATIONS[generation]
    stated = rules.fully_connected if kind == "fc" else rules.halves
    if stated is not None:
        return stated
    return 2.0 if setup.doubled and (role != "DP" or (rules.gradients and kind != "fc")) else 1.0


def _domain_rate(setup: Setup, role: str, dimension: Dimension) -> FloatArray:
    """Rate of an all-reduce inside domains of high bandwidth, then between them, over the role's own links.

    Between domains passes the share that is left of the tensor: a ring's over a domain's chips. A
    tensor-parallel group goes on over y, the pipeline's links: the rule of the reference.
    """
    beyond = (setup.dimension("PP") or dimension) if role == "TP" else dimension
    group, domain = dimension.size, np.maximum(setup.domain_size, 1)
    inside = np.minimum(group, domain)
    between = np.where(domain >= group, 1, group / domain)
    fast = (inside - 1) / (inside * setup.x_bandwidth)
    return fast + (between - 1) / (group * beyond.bandwidth)


def sized(setup: Setup) -> Setup:
    """A set-up of one row once for each way to size its open dimensions (size 0), in the order of x, y, z.

    Raises `DseError` if no sizes make the number of chips, with whole micro-batches on every replica.
    """
    chips = int(setup.num_chips.flat[0])
    given = [int(dimension.size.flat[0]) for dimension in setup.dimensions]
    if all(given):
        return setup
    *earlier, last = ([size] if size else divisors(chips) for size in given)
    *tables, ones = (table.ravel() for table in np.meshgrid(*earlier, [1.0], indexing="ij"))
    rest = chips / np.prod([*tables, ones], axis=0)
    sizes = np.stack([*tables, rest])[:, np.isin(rest, last)]
    rows = replace(setup, **dict(zip(AXES, sizes, strict=False)))
    whole = np.flatnonzero(rows.micro_batches % 1 == 0)
    if whole.size == 0:
        raise DseError(
            f"system.{setup.topology}: no sizes of the open dimensions make {chips} chips and whole "
            "micro-batches on every replica; change num_chip or global_batch_size"
        )
    return rows.take(whole)


def latency(setup: Setup, generation: str) -> FloatArray:
    """Time that each all-reduce of the tensor-parallel group adds. [s]"""
    rules, dimension = GENERATIONS[generation], setup.dimension("TP")
    if dimension is None:
        return np.zeros_like(setup.num_chips)
    one_step, stated = rules.latencies is None and dimension.kind == "fc", 2.0 if setup.doubled else 1.0
    passes, steps = stated if rules.latencies is None else rules.latencies, 1.0 if one_step else dimension.size - 1
    return np.where(setup.domain_size > 0, 0.0, passes * setup.link_latency * steps)


def exchange_rate(setup: Setup, generation: str) -> FloatArray:
    """Time of an all-to-all of all chips of a copy for each byte of a message between two chips, (points,). [s/B]

    The dimension whose links carry most decides. A torus has all messages pass each dimension; in other networks pass
    those between the chips that the dimensions so far join.
    """
    rules, sizes = GENERATIONS[generation], [dimension.size for dimension in setup.dimensions]
    axes = {axis: getattr(setup, axis) for axis in AXES}
    chips = setup.num_chips / setup.copies
    torus = len(sizes) > 1 and {dimension.kind for dimension in setup.dimensions} == {"r"}
    joined = [chips if torus else np.prod(sizes[:last], axis=0) for last in range(1, len(sizes) + 1)]
    tables = _PORTS["rings"] | _PORTS.get(f"rings_{generation}", {})
    rings = tables.get(setup.topology, ["1"] * len(sizes))
    times = [
        product(rules.exchanged_pairs, n=n)
        / (product(rules.exchange_links[d.kind], x=d.size) * product(parallel, **axes) * d.bandwidth)
        for n, d, parallel in zip(joined, setup.dimensions, rings, strict=True)
    ]
    return np.where(chips > 1, np.maximum.reduce(times), 0.0)


def transfer_rate(setup: Setup) -> FloatArray:
    """Time of a byte between pipeline stages; 0 without a pipeline. [s/B]"""
    pipeline = setup.dimension("PP")
    return np.zeros_like(setup.num_chips) if pipeline is None else 1 / pipeline.bandwidth


def system_price(setup: Setup, generation: str = "") -> FloatArray:
    """Chips, DRAM, links and switches. [$]"""
    chip = setup.dram_bandwidth * setup.dram_price + setup.accelerator_price
    links, switches = port_bandwidths(setup, generation)
    return setup.num_chips * chip + sum(links) * setup.link_price + sum(switches) * setup.switch_price


def system_power(setup: Setup, generation: str = "") -> FloatArray:
    """Chips, DRAM, links and switches. [W]"""
    chip = setup.dram_bandwidth * setup.dram_power + setup.accelerator_power
    links, switches = port_bandwidths(setup, generation)
    drawn = sum(port * getattr(setup, f"{axis}_link_power") for port, axis in zip(links, AXES, strict=False))
    power: FloatArray = setup.num_chips * chip + drawn + sum(switches) * setup.switch_power
    return power


def port_bandwidths(setup: Setup, generation: str = "") -> tuple[list[FloatArray], list[FloatArray]]:
    """Bandwidth of all ports of links and of switches, for each dimension, of a generation's networks. [B/s]"""
    others = _PORTS["from_chips"]
    tables = [_PORTS[part] | _PORTS.get(f"{part}_{generation}", {}) for part in ("links", "switches")]
    n, axes = setup.num_chips / setup.copies, {axis: getattr(setup, axis) for axis in AXES}
    bandwidths = [dimension.bandwidth * setup.copies for dimension in setup.dimensions]
    links, switches = (
        [
            np.where(n >= float(least), product(ports, n=n, **axes) * b, 0.0)
            for ports, b in zip(table[setup.topology], bandwidths, strict=True)
        ]
        for table, least in zip(tables, others.get(generation, others["others"]), strict=True)
    )
    return links, switches
