"""Machines: a chip, its memory levels, the tiers of links around it, its price and power.

A `System` is a record of columns: one machine, or one for each design. Each quantity declares its unit and its range.
Dollars and watts follow from the unit costs of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from costmodel.columns import Columns, FloatArray, column, layout_of, short_repr
from costmodel.errors import DseError, suggestion

#: Endings of the names of quantities that must be positive.
POSITIVE: Final = (
    "bandwidth", "capacity", "clock", "efficiency", "sustained", "size", "height", "width",
    "used", "oversubscription", "wrap", "clustering", "lanes", "cores", "per_core", "streaming",
)  # fmt: skip
#: Quantities with these endings that may be 0.
NONE_OF: Final = ("collective_cores", "nominal_clock")
#: The least number above 0, and the largest one, of quantities with no other ends: costs stay finite. [-]
LEAST, LARGEST = 1e-30, 1e30
_UNKNOWN: Final = np.asarray(np.nan)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, in the unit of the quantity; numbers between 0 and `least` are outside."""

    low: float = 0.0
    high: float = LARGEST
    least: float = 0.0

    def holds(self, values: ArrayLike) -> Any:
        """True for values inside the range, and for NaN, an unknown value. [as the values]"""
        numbers: FloatArray = np.asarray(values, dtype=np.float64)
        return ~((numbers < self.low) | (numbers > self.high) | ((numbers > 0) & (numbers < self.least)))

    def refusal(self, value: float) -> str:
        """Message for a value outside of a range: it names the expected range.

        >>> Range(high=1.0).refusal(5.0)
        '5: expected a share, at most 1'
        """
        if value > self.high:
            wanted = "a share, at most 1" if self.high == 1 else f"at most {self.high:g}"
            return f"{value:g}: expected {wanted if value < np.inf else 'a finite number'}"
        if value < 0:
            return f"{value:g}: expected no negative number"
        low = max(self.low, self.least)
        return f"{value:g}: expected {f'at least {low:g}' if value or low > LEAST else 'more than 0'}"


class MachinePart(Columns):
    """A table of quantities of machines, each in its range."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Build from scalars, lists and arrays; non-column fields pass through untouched.

        Raises `DseError` if a quantity is out of its range.
        """
        part = super().of(**values)
        ranges = part_ranges(cls)
        for name, numbers in part.columns().items():
            if (outside := np.extract(~ranges[name].holds(numbers), numbers)).size:
                raise DseError(f"{cls.__name__}: {name}: {ranges[name].refusal(float(outside[0]))}")
        return part


def part_ranges(record: type[Columns]) -> dict[str, Range]:
    """Name -> range of each quantity of a record: from its column, else from the ending of its name."""
    if record not in _RANGES:
        _RANGES[record] = {item.name: _range(item) for item in fields(record) if "unit" in item.metadata}
    return _RANGES[record]


#: Record class -> its ranges, kept because they are asked for with every batch.
_RANGES: dict[type[Any], dict[str, Range]] = {}


def _range(item: Field[Any]) -> Range:
    """The range of a column."""
    default = item.default_factory
    high = np.inf if default is not MISSING and np.isinf(default()).any() else LARGEST
    needed = item.name.endswith(POSITIVE) and not item.name.endswith(NONE_OF)
    low = item.metadata.get("low", LEAST if needed else 0.0)
    return Range(low, item.metadata.get("high", high), LEAST)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chip(MachinePart):
    """One accelerator. Each column holds one value, or one per design. Energies and areas are unit costs."""

    cores: FloatArray = column("-", low=1, high=1e9)
    arrays_per_core: FloatArray = column("-", low=1, high=1e9)  #: matrix units in one core
    array_height: FloatArray = column("-", low=1, high=1e9)  #: multiply-adds per cycle of a matrix unit: height * width
    array_width: FloatArray = column("-", low=1, high=1e9)
    clock: FloatArray = column("Hz", high=1e11)
    sustained: FloatArray = column("-", high=1)  #: share of the clock that hours of matrix work can hold
    matrix_efficiency: FloatArray = column("-", high=1)  #: share of a busy matrix unit's cycles that multiply
    flash_2_efficiency: FloatArray = column("-", 1, high=2)  #: rate of FlashAttention-2 over fused
    #: Softmax exponentials per core and cycle of fused attention that computes them during products; 0: after them.
    exponentials: FloatArray = column("-", 0)
    softmax_overlap: FloatArray = column("-", 4.5, low=1)  #: power p of that time: 1 in turn, large if simultaneous [-]
    attention_efficiency: FloatArray = column("-", 1, high=2)  #: of its products, over those of matrix products
    #: Keys that take as long as filling the pipeline of a query tile: forward (except FlashAttention-2), and backward.
    attention_fill: FloatArray = column("-", 0)
    attention_fill_backward: FloatArray = column("-", 0)
    product_streaming: FloatArray = column("-", 1, high=2)  #: rate of the farthest memory in products, over streams
    burst: FloatArray = column("s", np.inf)  #: length of a kernel whose clock falls half of the way to `sustained`
    cast_launch: FloatArray = column("s", 0)  #: floor of a cast to 8 or 4 bits, beyond that of a kernel
    cast_efficiency: FloatArray = column("-", 1, high=2)  #: rate of casts over streaming
    fp8_speedup: FloatArray = column("-", 0)  #: rate of 8-bit products over that of 16 bits; 0: it has none
    mx_speedup: FloatArray = column("-", 0)  #: ... of 8 bits with a scale for each 32 elements (MX)
    fp4_speedup: FloatArray = column("-", 0)  #: ... of 4 bits with scales of blocks
    fp8_efficiency: FloatArray = column("-", 1, high=2)  #: of 8-bit products, MX or not, over 16 bits
    fp4_efficiency: FloatArray = column("-", 1, high=2)  #: of 4-bit products over that of 16 bits
    block_efficiency: FloatArray = column("-", 1, high=2)  #: of 8 bits with scales of blocks, over one scale
    compute_capability: FloatArray = column("-", 0)  #: of CUDA: 9 on Hopper; 0: no chip of CUDA
    jax_devices: FloatArray = column("-", 1, low=1)  #: that JAX has for one chip
    expert_latency: FloatArray = column("s", 0)  #: of each further expert whose product one call makes
    sorting_efficiency: FloatArray = column("-", 1, high=2)  #: of sorting tokens by expert, over streaming
    grouped_efficiency: FloatArray = column("-", 1, high=2)  #: of products of experts in one call, over single ones
    vector_lanes: FloatArray = column("-")  #: fp32 multiply-adds per core and cycle, outside the matrix units
    kernel_launch: FloatArray = column("s")  #: floor of one kernel's time, and the gap before the next
    tile_latency: FloatArray = column("s")  #: time to fill and drain the pipeline of one output tile
    collective_cores: FloatArray = column("-")  #: that a running collective takes from concurrent kernels
    #: The same of one kind of communication; `collective_cores` where NaN, as where a file leaves it out.
    tp_collective_cores: FloatArray = column("-", np.nan)
    cp_collective_cores: FloatArray = column("-", np.nan)
    ep_collective_cores: FloatArray = column("-", np.nan)
    dp_collective_cores: FloatArray = column("-", 0)  #: those of replicas take none unless a file gives a number
    reserved_memory: FloatArray = column("B")  #: taken by the driver and its context
    energy_per_flop: FloatArray = column("J")  #: at the nominal clock
    nominal_clock: FloatArray = column("Hz", 0)  #: voltage follows the clock from here; 0: it does not
    least_voltage: FloatArray = column("-", 1, high=1)  #: over that at the nominal clock; less is not possible
    idle_power: FloatArray = column("W")
    fixed_area: FloatArray = column("m2")  #: die area that no quantity here changes
    array_area: FloatArray = column("m2")  #: die area per multiply-add of the matrix units
    sram_area: FloatArray = column("m2/B")
    area_price: FloatArray = column("$/m2")  #: of dies as they are made, good ones and bad ones
    defect_density: FloatArray = column("1/m2", 0)  #: of faults that spoil a die
    defect_clustering: FloatArray = column("-", 3)  #: the more, the less do faults come in clusters
    base_price: FloatArray = column("$")  #: package, board, and margin of the seller

    @property
    def peak_flop_rate(self) -> FloatArray:
        """Matrix units, 16-bit operands, datasheet clock. [FLOP/s]"""
        return 2 * self.cores * self.arrays_per_core * self.array_height * self.array_width * self.clock

    @property
    def voltage(self) -> FloatArray:
        """Voltage over that at the nominal clock: as the clock, down to the least that works. [-]"""
        scaled = np.maximum(self.clock / np.where(self.nominal_clock == 0, 1, self.nominal_clock),
                            self.least_voltage)  # fmt: skip
        return np.where(self.nominal_clock == 0, 1.0, scaled)

    @property
    def flop_energy(self) -> FloatArray:
        """Energy of one FLOP at the clock: by the square of the voltage [Chandrakasan1992]_. [J]"""
        return self.energy_per_flop * self.voltage**2

    @property
    def matrix_flop_rate(self) -> FloatArray:
        """Rate that busy matrix units deliver over hours. [FLOP/s]"""
        return self.peak_flop_rate * self.sustained * self.matrix_efficiency

    def format_rate(self, units: str) -> FloatArray:
        """Rate of products of "fp8", "block", "mx" or "fp4" operands over that of 16 bits; 0: no units. [-]"""
        of_eight_bits = self.fp8_efficiency * (self.block_efficiency if units in ("block", "mx") else 1.0)
        return self.format_speedup(units) * (self.fp4_efficiency if units == "fp4" else of_eight_bits)

    def format_speedup(self, units: str) -> FloatArray:
        """Peak rate of products in a format over that of 16 bits, as data sheets have it; 0: no units. [-]"""
        return np.asarray(getattr(self, f"{units.replace('block', 'fp8')}_speedup"))

    @property
    def vector_flop_rate(self) -> FloatArray:
        """Vector lanes at the datasheet clock. [FLOP/s]"""
        return 2 * self.cores * self.vector_lanes * self.clock

    def taken_cores(self, kind: str) -> FloatArray:
        """Cores that a collective of a kind takes from concurrent kernels, at most all: "tp", "cp", "ep", "dp". [-]"""
        cores: FloatArray = getattr(self, f"{kind}_collective_cores")
        return np.minimum(np.where(np.isnan(cores), self.collective_cores, cores), self.cores)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryLevel(MachinePart):
    """A level of the memory hierarchy, all of the chip together."""

    name: str
    capacity: FloatArray = column("B")  #: as the driver reports it: usable
    nominal: FloatArray = column("B", np.nan)  #: capacity as it is sold; NaN where that is the usable one
    bandwidth: FloatArray = column("B/s")
    efficiency: FloatArray = column("-", high=1)  #: share of the bandwidth that streaming kernels reach
    energy: FloatArray = column("J/B")
    price: FloatArray = column("$/B", 0)  #: of capacity; on-die levels cost by area instead
    bandwidth_price: FloatArray = column("$ s/B", 0)  #: of bandwidth: base dies, interfaces and interposer

    @property
    def sold_capacity(self) -> FloatArray:
        """Capacity by which the memory is sold. [B]"""
        return np.where(np.isnan(self.nominal), self.capacity, self.nominal)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LinkTier(MachinePart):
    """Links that join groups of chips: those of a node, then those of the fabric between nodes."""

    name: str
    size: FloatArray = column("-")  #: chips that one group of this tier joins
    bandwidth: FloatArray = column("B/s")  #: of one chip, one direction
    efficiency: FloatArray = column("-", high=1)  #: share of the bandwidth that large collectives reach
    latency: FloatArray = column("s")  #: of one step of an algorithm
    launch: FloatArray = column("s")  #: floor of one collective
    call: FloatArray = column("s", 0)  #: further floor where the host waits for each collective, as no step does
    ramp: FloatArray = column("B", 0)  #: sent while the pipelines of a collective are filled: `climbed`
    own_share: FloatArray = column("-", 0)  #: cost of copying a byte of the local share over that of sending one
    in_switch: FloatArray = column("-", 0, high=1)  #: 1 where switches reduce and multicast
    in_switch_rate: FloatArray = column("-", 1, high=2)  #: rate to switches that reduce over that of rings
    used: FloatArray = column("-", np.inf)  #: most chips of a group that a run takes
    oversubscription: FloatArray = column("-", 1, low=1)  #: bandwidth of all members over that of the network
    peer_bandwidth: FloatArray = column("B/s", np.inf)  #: of the links between two chips, one direction
    torus_x: FloatArray = column("-", 0)  #: chips along an axis of a torus; 0 where links are switched
    torus_y: FloatArray = column("-", 0)
    torus_z: FloatArray = column("-", 0)
    torus_wrap: FloatArray = column("-", 1)  #: an axis closes to a ring where this divides its chips
    energy: FloatArray = column("J/B")
    price: FloatArray = column("$ s/B", 0)  #: of bandwidth: links, and the share of switches

    @property
    def rate(self) -> FloatArray:
        """Rate that large collectives reach over all links of a chip, all chips at once. [B/s]"""
        return self.bandwidth * self.efficiency / self.oversubscription

    @property
    def carried(self) -> FloatArray:
        """Bandwidth of the links of a chip that carries on to the next tier. [B/s]"""
        return self.bandwidth / self.oversubscription

    @property
    def axes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Chips along the axes of a torus; 0 for axes that it does not have. [-]"""
        return self.torus_x, self.torus_y, self.torus_z

    @property
    def is_torus(self) -> bool:
        """True if the links are those of a torus, at any point."""
        return bool((self.torus_x > 0).any())


def slice_axes(axes: Sequence[FloatArray], chips: FloatArray) -> list[FloatArray]:
    """Lengths of the axes, (points,) each, of a slice with room for a run's chips; 0 for a missing axis. [-]

    `axes` are those of the whole torus; a run that needs more chips has the whole torus. [-]

    The shortest axis that has room is doubled until all chips fit, as slices of pods are offered.
    """
    whole = np.stack(np.broadcast_arrays(*axes, chips)[:-1])
    lengths = np.minimum(whole, 1.0)
    needed = np.minimum(chips, np.prod(np.maximum(whole, 1.0), axis=0))
    while (short := np.prod(np.maximum(lengths, 1.0), axis=0) < needed).any():
        room = np.where(lengths < whole, lengths, np.inf)
        shortest = np.arange(len(axes)).reshape(-1, *[1] * short.ndim) == np.argmin(room, axis=0)
        lengths = np.where(short & shortest, np.minimum(2 * lengths, whole), lengths)
    return [*lengths]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Host(MachinePart):
    """Hosts of the chips, per chip, and costs of a step outside of chips."""

    dispatch: FloatArray = column("s", 0)  #: to prepare one kernel; kernels shorter than that wait for it
    step_overhead: FloatArray = column("s", 0)  #: data loading, logging, loss scaling: once per step
    straggler: FloatArray = column("-", 0)  #: added share of compute time per doubling of the number of nodes
    power: FloatArray = column("W", 0)
    price: FloatArray = column("$", 0)
    power_price: FloatArray = column("$/W", 0)  #: of supplying and cooling a watt, over `price`
    power_overhead: FloatArray = column("-", 1, low=1)  #: facility power over machine power
    #: To and from its chip, either direction: PCIe 5 where a file does not say.
    link_bandwidth: FloatArray = column("B/s", 64e9)
    #: A chip's share of the host's memory: two processors with DDR5-4800 for eight chips.
    memory_bandwidth: FloatArray = column("B/s", 76.8e9)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Software(MachinePart):
    """Constants of the training software that are not columns of designs."""

    #: Unfused kernels that run in place of one fused kernel; each of them moves all its bytes.
    pointwise_kernels: FloatArray = column("-", 1, low=1)
    #: Passes that add up and scale outputs of adapters, next to products; compilers fuse them with other kernels.
    adapter_passes: FloatArray = column("-", 1)
    #: Passes in fp32 that add biases of experts, scaled by the weights of the router, which grouped products may fuse.
    expert_bias_passes: FloatArray = column("-", 1)
    #: Passes that clamp activations of experts and join their halves, which the activation may fuse.
    expert_clamp_passes: FloatArray = column("-", 0)
    #: Work of the host to launch a cast for one expert, over that for a kernel; 0: one launch for all experts.
    expert_casts: FloatArray = column("-", 0)
    #: Bytes that layers keep for their backward pass, over those with fused kernels.
    kept_activations: FloatArray = column("-", 1)
    #: Layers whose sharded weights and gradients are whole at once.
    whole_layers: FloatArray = column("-", 2)
    #: Memory that the allocator holds beyond that of tensors, over theirs; none with expandable segments.
    fragmentation: FloatArray = column("-", 0)
    #: Share of launches that wait for the kernel before: all of them where a program synchronizes each time.
    blocking_launches: FloatArray = column("-", 0, high=1)
    #: 1: tensor-parallel groups gather operands of products in their format, scales aside; 0: in 16 bits.
    narrow_gathers: FloatArray = column("-", 0, high=1)
    #: 1: gathered inputs of products are kept for their gradients; 0: shards, which are gathered again.
    kept_gathers: FloatArray = column("-", 0, high=1)
    #: 1: context-parallel ranks exchange keys and values of each query head; 0: of each group of heads.
    repeated_keys: FloatArray = column("-", 0, high=1)
    #: Work of the host for one collective, over that for a kernel.
    collective_launches: FloatArray = column("-", 1)
    #: The same of a tensor-parallel collective in a pipeline over several nodes, for each rank of its group.
    pipelined_launches: FloatArray = column("-", 0)
    #: Rate at which one process updates states on its host; the share of the host's memory bounds it.
    host_update_bandwidth: FloatArray = column("B/s", np.inf)
    #: 1 where replicas with sharded optimizer states (`zero` 1) all-reduce gradients and use only their share.
    whole_gradients: FloatArray = column("-", 0, high=1)
    #: 1 where an update copies 16-bit gradients to fp32 and 8-bit weights from 16 bits at once, and clears gradients.
    update_copies: FloatArray = column("-", 0, high=1)
    #: Bytes of a parameter that stay on the chip although the host updates its optimizer states.
    offloaded_weights: FloatArray = column("B", 0)
    #: Bytes of a parameter that cross with each pass, both ways: hosts hold its weight and gradient with its states.
    offloaded_shards: FloatArray = column("B", 0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Modules(MachinePart):
    """Work of modules of inference engines around their kernels, in tables of timings; no training step has it."""

    attention_floor: FloatArray = column("s", 0)
    attention_passes: FloatArray = column("-", 0)  #: over queries, keys, values and outputs: positions, key cache
    experts_floor: FloatArray = column("s", 0)
    cast_passes: FloatArray = column("-", 0)  #: over inputs of experts in narrow formats
    block_passes: FloatArray = column("-", 0)  #: ... further ones where 8 bits have scales of blocks
    other_pairs: FloatArray = column("-", 0, high=1)  #: share of tokens for experts of other ranks that passes read
    maximum_floor: FloatArray = column("s", 0)  #: of finding the scale of a tensor
    fp4_floor: FloatArray = column("s", 0)  #: of a cast to 4 bits


#: Quantities that never slow a step, nor lower a chip's price or power, when they grow: `System.never_slower`.
NEVER_SLOWER: Final[Mapping[type[Columns], tuple[str, ...]]] = {
    Chip: (
        *("cores", "arrays_per_core", "clock", "sustained", "matrix_efficiency", "flash_2_efficiency"),
        *("fp8_speedup", "mx_speedup", "fp4_speedup", "fp8_efficiency", "fp4_efficiency", "vector_lanes"),
        "sorting_efficiency",
    ),
    MemoryLevel: ("capacity", "bandwidth", "efficiency"),
    LinkTier: ("bandwidth", "efficiency", "peer_bandwidth"),
    Host: ("link_bandwidth", "memory_bandwidth"),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class System:
    """A chip, its memory levels from the nearest to the farthest, and its link tiers from the inside out.

    The last memory level is the one that holds the model. The first tier is the node.
    """

    __repr__ = short_repr

    name: str
    chip: Chip
    memory: tuple[MemoryLevel, ...]
    network: tuple[LinkTier, ...]
    host: Host = field(default_factory=lambda: Host.of())
    software: Software = field(default_factory=lambda: Software.of())
    modules: Modules = field(default_factory=lambda: Modules.of())
    framework: str = ""  #: the software that usually trains on it, a built-in framework; "": Megatron Core

    @property
    def dram(self) -> MemoryLevel:
        """The level that holds the model."""
        return self.memory[-1]

    def parts(self) -> dict[str, Columns]:
        """Every record by the prefix of its quantities: ``""``, ``"dram_"``, ``"node_"``, ``"host_"`` ..."""
        return {
            "": self.chip,
            **{level.name + "_": level for level in self.memory},
            **{tier.name + "_": tier for tier in self.network},
            "host_": self.host,
            "software_": self.software,
            "modules_": self.modules,
        }

    def quantities(self) -> dict[str, FloatArray]:
        """Name -> values of every quantity, as search spaces write them: ``dram_bandwidth``."""
        return self._by_quantity(lambda part: part.columns())

    def never_slower(self) -> list[str]:
        """Names of the quantities that never slow a step, nor lower its price or power, when they grow.

        The choices of a machine are among those of any that has more of these. That holds for a layout with
        its shardings whose schedule is 1F1B and whose replicas exchange once a step (`zero` up to 1). It does
        not hold from no units of a format, or no memory of a level, to some. Of other quantities more may
        hurt: larger matrix units are filled in part, larger groups of chips take more steps to cross; more
        latency, launches, cores lost to collectives, or oversubscription does.
        """
        return [*self._by_quantity(lambda part: dict.fromkeys(NEVER_SLOWER.get(type(part), ())))]

    def ranges(self) -> dict[str, Range]:
        """Name -> range of every quantity."""
        return self._by_quantity(lambda part: part_ranges(type(part)))

    def units(self) -> dict[str, str]:
        """Name -> SI unit of every quantity."""
        return self._by_quantity(lambda part: layout_of(type(part)).units)

    def _by_quantity(self, facts: Callable[[Columns], Mapping[str, T]]) -> dict[str, T]:
        """Name of every quantity, as search spaces write it -> a fact of its column."""
        return {prefix + name: fact for prefix, part in self.parts().items() for name, fact in facts(part).items()}

    def sliced(self, world_size: FloatArray) -> Self:
        """The system with tori cut to slices for `world_size` chips [-], as near to a cube as doublings come."""
        if not any(tier.is_torus for tier in self.network):
            return self
        tiers, unit = [], np.ones(())
        for tier in self.network:
            cut = slice_axes(tier.axes, np.ceil(world_size / unit)) if tier.is_torus else tier.axes
            tiers.append(replace(tier, torus_x=cut[0], torus_y=cut[1], torus_z=cut[2]))
            unit = tier.size
        return replace(self, network=tuple(tiers))

    def with_quantities(self, values: Mapping[str, ArrayLike]) -> Self:
        """The system with some quantities replaced, by one value or by one per design.

        Any number will do: laws and differences hold for machines that cannot be, too.

        Raises `DseError` for a name that is not a quantity of this system.
        """
        known = self.quantities()
        for name in values:
            if name not in known:
                raise DseError(f"system {self.name}: {name}: unknown quantity{suggestion(name, known)}")
        new = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}

        def changed(prefix: str, part: Any) -> Any:
            replaced = {n: new[prefix + n] for n in layout_of(type(part)).units if prefix + n in new}
            return replace(part, **replaced) if replaced else part

        return self._changed(changed)

    @lru_cache(maxsize=8)  # noqa: B019  (systems are few, or short-lived)
    def only(self, names: frozenset[str] | tuple[str, ...]) -> Self:
        """The system with some of its quantities alone: others are NaN, so that no result can depend on them."""

        def kept(prefix: str, part: Columns) -> Columns:
            return part.with_columns({n: _UNKNOWN for n in layout_of(type(part)).units if prefix + n not in names})

        return self._changed(kept)

    @lru_cache(maxsize=8)  # noqa: B019  (systems are few, or short-lived)
    def is_one(self) -> bool:
        """True if every quantity is one number: all points have the same machine."""
        return not any(values.ndim for part in self.parts().values() for values in part.arrays())

    def take(self, rows: Any) -> Self:
        """The system of some of the points; quantities of one value stay as they are."""
        return self if self.is_one() else self._changed(lambda _, part: part.take(rows))

    def map(self, function: Callable[[FloatArray], FloatArray]) -> Self:
        """The system with `function` applied to every quantity."""
        return self._changed(lambda _, part: part.map(function))

    def _changed(self, change: Callable[[str, Any], Any]) -> Self:
        """The system with a change of each record, by its prefix."""
        return replace(
            self,
            chip=change("", self.chip),
            memory=tuple(change(level.name + "_", level) for level in self.memory),
            network=tuple(change(tier.name + "_", tier) for tier in self.network),
            host=change("host_", self.host),
            software=change("software_", self.software),
            modules=change("modules_", self.modules),
        )


def die_area(system: System) -> FloatArray:
    """Area of the chip's logic die. [m2]

    A fixed part, the matrix units by their multiply-adds, and the on-die memories by their capacity.
    """
    chip = system.chip
    multiply_adds = chip.cores * chip.arrays_per_core * chip.array_height * chip.array_width
    area = chip.fixed_area + chip.array_area * multiply_adds
    for level in system.memory[:-1]:
        area = area + chip.sram_area * level.capacity
    return area


def die_yield(system: System) -> FloatArray:
    """Share of dies without a fault: negative binomial, for faults in clusters [Cunningham1990]_. [-]

    ``(1 + area * defect_density / defect_clustering) ** -defect_clustering``; Poisson's for no clusters.
    """
    chip = system.chip
    faults = die_area(system) * chip.defect_density / chip.defect_clustering
    return np.asarray((1 + faults) ** -chip.defect_clustering)


def chip_price(system: System) -> FloatArray:
    """Price of one chip with its memory, its links, and its share of host and switches. [$]

    Good dies pay for bad ones. Memory is paid by capacity and by bandwidth, links by bandwidth, supplies and
    cooling by the power that `chip_power` provisions.
    """
    die = die_area(system) * system.chip.area_price / die_yield(system)
    price = system.chip.base_price + die + system.host.price
    for level in system.memory:
        price = price + level.capacity * level.price + level.bandwidth * level.bandwidth_price
    for tier in system.network:
        price = price + tier.carried * tier.price
    return price + chip_power(system) * system.host.power_price


def chip_power(system: System) -> FloatArray:
    """Power to provision for one chip and its share of the host, everything busy at once. [W]

    Idle power, arithmetic at the sustained peak and its voltage, and every memory level and link at its bandwidth.
    """
    chip = system.chip
    power = chip.idle_power + chip.matrix_flop_rate * chip.flop_energy + system.host.power
    for level in system.memory:
        power = power + level.bandwidth * level.energy
    for tier in system.network:
        power = power + tier.carried * tier.energy
    return power * system.host.power_overhead
