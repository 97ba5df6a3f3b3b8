"""Designs and machines of this program as set-ups of DFModel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_rows
from costmodel.errors import DseError
from costmodel.kernels.collectives import subgroups_per_tier
from costmodel.machine.price import chip_power, chip_price
from costmodel.machine.system import LinkTier, System
from costmodel.profiles.dfmodel.network import port_bandwidths
from costmodel.profiles.dfmodel.setup import AXES, ROLES, TOPOLOGIES, Setup
from costmodel.training.design import CHOICES, RECOMPUTE_NONE, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import MIXED_PRECISION, Precision
from costmodel.training.ranks import Group

#: Share of a link in what it costs and draws together with its port of a switch: the published set-up
#: has $2 and $24, 52 mW and 52 mW for a GB/s [Ko2024]_.
LINK_PRICE_SHARE: Final = 2 / 26
LINK_POWER_SHARE: Final = 1 / 2

#: Topologies by the codes of a design's column.
_TOPOLOGIES: Final = CHOICES["topology"]


def network_roles(design: DesignPoints) -> IntArray:
    """Place among the `ROLES` of each design's topology; -1 where groups of several chips have no dimension.

    The first roles count that leave only groups of one chip without a dimension.
    """
    dims = np.array([len(TOPOLOGIES[name]) for name in _TOPOLOGIES])[design.topology.astype(np.intp)]
    found = np.full(design.num_points, -1, dtype=np.intp)
    for dim, choices in ROLES.items():
        for place, roles in reversed([*enumerate(choices)]):
            without = [degree for role, degree in _degrees(design).items() if role not in roles]
            fits = (dims == dim) & np.all([np.equal(degree, 1) for degree in without], axis=0)
            found = np.where(fits, place, found)
    return found


@dataclass(frozen=True, slots=True)
class Gap:
    """Designs that DFModel has no number for."""

    column: str  #: what is at fault
    missing: Callable[[ModelShape, DesignPoints], BoolArray]  #: whether there is no number; (points,)
    words: str  #: why, and what would do, with columns of the design in braces
    pin: str  #: value of the column that always does

    def reason(self, model: ModelShape, design: DesignPoints, row: int) -> str:
        """Why one design has no number, and what would do."""
        columns = {name: values[row] for name, values in design.columns().items()}
        words = {name: CHOICES[name][int(columns[name])] for name in ("recompute", "topology")}
        return self.words.format(**{**columns, **words}, seq_len=model.seq_len)


#: What no set-up can hold.
REFUSED: Final = (
    Gap(
        "topology",
        lambda model, design: np.less(network_roles(design), 0),
        "topology {topology}: too few dimensions for tp={tp:g} pp={pp:g} dp={dp:g}; "
        "take one of three, such as sw_sw_sw",
        "sw_sw_sw",
    ),
    Gap(
        "tile_size",
        lambda model, design: np.greater(model.seq_len % design.tile_size, 0),
        "tile_size: {tile_size:g} does not divide seq_len, {seq_len:g}; take a divisor",
        "1",
    ),
)
#: What has no number, whatever the machine.
GAPS: Final = (
    Gap(
        "recompute",
        lambda model, design: np.not_equal(design.recompute, RECOMPUTE_NONE),
        "recompute={recompute}: each kernel runs once; take recompute=none",
        "none",
    ),
    Gap(
        "vpp",
        lambda model, design: np.greater(design.vpp, 1),
        "vpp={vpp:g}: a stage is one chunk; take vpp=1",
        "1",
    ),
    *REFUSED,
)


def _degrees(design: DesignPoints) -> dict[str, FloatArray]:
    """Parallel group -> chips of one."""
    return {"TP": design.tp, "PP": design.pp, "DP": design.dp}


def _shared_columns(design: DesignPoints) -> dict[str, FloatArray]:
    """Columns in which the designs of a `Setup` must not differ."""
    return {name: getattr(design, name) for name in ("topology", "overlap", "execution")}


def alike(design: DesignPoints) -> Iterator[IntArray]:
    """Rows of designs that a `Setup` can hold together; those whose topology does not fit are left out."""
    roles = network_roles(design)
    _, group = distinct_rows(roles.astype(np.float64), *_shared_columns(design).values())
    group = np.broadcast_to(group, roles.shape)
    for own in range(int(group.max(initial=-1)) + 1):
        yield np.flatnonzero((group == own) & (roles >= 0))


def design_setup(
    model: ModelShape, system: System, design: DesignPoints, *, precision: Precision = MIXED_PRECISION
) -> Setup:
    """Designs on a machine as DFModel is told them; (points,) columns.

    Parameters
    ----------
    model : ModelShape
        The transformer.
    system : System
        The machine; each quantity holds one value, or one per design.
    design : DesignPoints
        Layouts, (points,), that share `topology`, `overlap`, `execution`, and the parallel groups that need
        a dimension of the network: what `alike` yields. `design.take([row])` is one design.
    precision : Precision
        Bytes of operands.

    Returns
    -------
    setup : Setup
        All-reduces in two halves. [SI units]

    Raises
    ------
    DseError
        If the designs do not share these, their groups do not fit the topology, or tiles do not divide
        the sequence.

    Notes
    -----
    Every matrix unit is a core. The peak rate is that of the datasheet, `utilization` what the chip
    sustains of it. SRAM is all on-chip levels together. Bandwidths are those that are reached; a group
    has the links of the slowest tier that it spans, of the innermost where it is one chip.

    DFModel prices ports of links and of switches. What a tier costs and draws is split between both as
    in the reference's published set-up, so that topologies differ in price. Units per port are means
    over the dimensions, weighted by their ports. All else of a chip is the accelerator's, DRAM too.
    """
    for gap in REFUSED:
        refused = np.flatnonzero(gap.missing(model, design))
        if refused.size:
            raise DseError(gap.reason(model, design, int(refused[0])))
    topology, roles = _shared_network(design)
    links = group_links(design, system)
    setup = Setup(
        topology=topology,
        roles=roles,
        overlap=CHOICES["overlap"][int(design.overlap[0])],
        kernel_by_kernel=bool(design.execution[0] == 0),
        doubled=True,
        link_latency=links["TP"].latency,
        **_dimensions(design, roles, links),
        **_chip(system),
        **_training(model, design, precision),
    )
    return _with_prices(setup, system, [links[role] for role in roles])


def _dimensions(design: DesignPoints, roles: Sequence[str], links: Mapping[str, LinkTier]) -> dict[str, Any]:
    """Sizes of the network's dimensions, and bandwidths of their links."""
    degrees, axes = _degrees(design), dict(zip(AXES, roles, strict=False))
    return {
        "num_chips": design.world_size,
        **{axis: degrees[role] for axis, role in axes.items()},
        **{f"{axis}_bandwidth": reached_bandwidth(links[role]) for axis, role in axes.items()},
    }


def _chip(system: System) -> dict[str, Any]:
    """Cores, rates and memories of a chip."""
    chip, dram = system.chip, system.dram
    return {
        "cores": chip.cores * chip.arrays_per_core,
        "array_width": chip.array_width,
        "array_height": chip.array_height,
        "frequency": chip.clock,
        "utilization": chip.sustained * chip.matrix_efficiency,
        "sram_bytes": sum((level.capacity for level in system.memory[:-1]), start=np.zeros(())),
        "dram_bandwidth": dram.bandwidth * dram.efficiency,
        "dram_bytes": dram.capacity,
    }


def _training(model: ModelShape, design: DesignPoints, precision: Precision) -> dict[str, Any]:
    """The model, the batch, and how a layer streams."""
    one = np.ones(design.num_points)
    shape = ("hidden_size", "head_size", "num_attention_heads", "seq_len", "num_layers")
    return {
        **{name: getattr(model, name) * one for name in shape},
        "global_batch_size": design.global_batch_size,
        "micro_batch_size": design.micro_batch_size,
        "tile_size": design.tile_size,
        "element_bytes": precision.element_bytes * one,
    }


def _shared_network(design: DesignPoints) -> tuple[str, tuple[str, ...]]:
    """Topology and roles of designs that share them."""
    places = network_roles(design)
    topology = _TOPOLOGIES[int(design.topology[0])]
    for name, values in (*_shared_columns(design).items(), ("groups", places)):
        if np.any(values != values[0]):
            raise DseError(f"designs differ in {name}; make a set-up of those that are alike")
    return topology, ROLES[len(TOPOLOGIES[topology])][int(places[0])]


def group_links(design: DesignPoints, system: System) -> dict[str, LinkTier]:
    """Parallel group -> the links that join it; groups lie as for collectives: tp, then dp, then pp."""
    ranks = design.ranks
    return {axis.upper(): slowest_tier(ranks.group(axis), system.network) for axis in ranks.sizes}


def slowest_tier(group: Group, network: Sequence[LinkTier]) -> LinkTier:
    """Of the tiers that a group spans, the one of least bandwidth; the innermost for a group of one.

    Parameters
    ----------
    group : Group
        Ranks, (points,).
    network : sequence of LinkTier
        Tiers from the inside out.

    Returns
    -------
    tier : LinkTier
        (points,) columns. [SI units]
    """
    subgroups = subgroups_per_tier(group, network)
    reached = [
        np.where(inner > outer, reached_bandwidth(tier), np.inf)
        for tier, inner, outer in zip(network, subgroups[:-1], subgroups[1:], strict=True)
    ]
    slowest = np.argmin(reached, axis=0)
    tables = [tier.columns() for tier in network]
    columns = {name: np.choose(slowest, [table[name] for table in tables]) for name in tables[0]}
    return LinkTier(name="slowest", **columns)


def reached_bandwidth(tier: LinkTier) -> FloatArray:
    """What large collectives reach over a chip's links. [B/s]"""
    return tier.bandwidth * tier.efficiency


def _with_prices(setup: Setup, system: System, links: Sequence[LinkTier]) -> Setup:
    """The set-up with prices and powers from those of the machine."""
    ports = port_bandwidths(setup)  # of links, of switches
    overhead = system.host.power_overhead
    prices = [tier.price / tier.efficiency for tier in links]
    powers = [tier.energy / tier.efficiency * overhead for tier in links]
    tiers_price = sum(tier.bandwidth * tier.price for tier in system.network)
    tiers_power = sum(tier.bandwidth * tier.energy for tier in system.network)
    drawn: dict[str, Any] = {
        f"{axis}_link_power": LINK_POWER_SHARE * power for axis, power in zip(AXES, powers, strict=False)
    }
    return replace(
        setup,
        accelerator_price=chip_price(system) - tiers_price,
        accelerator_power=chip_power(system) - tiers_power * overhead,
        link_price=LINK_PRICE_SHARE * _mean(prices, ports[0]),
        switch_price=(1 - LINK_PRICE_SHARE) * _mean(prices, ports[1]),
        switch_power=(1 - LINK_POWER_SHARE) * _mean(powers, ports[1]),
        **drawn,
    )


def _mean(values: Sequence[FloatArray], weights: Sequence[FloatArray]) -> FloatArray:
    """Mean over dimensions; 0 where nothing weighs."""
    whole = sum(weights[1:], start=weights[0])
    weighed = sum((v * w for v, w in zip(values, weights, strict=True)), start=np.zeros(()))
    return np.divide(weighed, whole, out=np.zeros_like(whole), where=whole > 0)
