"""Messages -> graphs and set-ups, once everything in them holds together.

A set-up of DFModel is a protocol buffer with blocks for the graph, the system, its cost, the run and the solver, whose
names differ by generation (`block`). A missing number reads as 0, which no formula would notice. So each block is
checked first, and all mistakes are reported together with the names of their fields. GB/s, GHz and similar units
become SI here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, Final

import numpy as np

from costmodel.columns import LARGEST, FloatArray, IntArray
from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import data_beside
from dse.adapters.dfmodel.files.setup_files import Message, first_generation
from dse.adapters.dfmodel.graph import ALL_REDUCE, NONE, NOTHING, PERIODIC, SHARDINGS, STATED, DfmodelGraph, K
from dse.adapters.dfmodel.setup import AXES, ROLES, TOPOLOGIES, Setup
from dse.adapters.dfmodel.workloads import WORKLOADS

#: Sizes of tensors are float32. [-]
_ROUNDING: Final = 1e-6
#: Execution style whose kernels run in groups. [code]
DATAFLOW: Final = 1
_DATA: Final[dict[str, Any]] = data_beside(__file__, "workloads.yaml")
#: Workload -> its fields that a file states at least, and those whose product is its data.
WORKLOAD_FIELDS: Final[dict[str, dict[str, list[str]]]] = _DATA["fields"]
#: Block -> field -> least and largest number, and the expected values in words.
LIMITS: Final[dict[str, dict[str, tuple[float, float, str]]]] = _DATA["limits"]


def mistakes(message: Message) -> list[str]:
    """One line for each thing that does not hold together."""
    run = message.DESCRIPTOR.fields_by_number[4].name
    block = getattr(message, run)
    if not (message.HasField("system") or message.HasField(run)):
        return [f"a graph alone, without system and {run}; whole set-ups are evaluated"]
    return [
        *_workload_mistakes(block, run),
        *_system_mistakes(message.system, block),
        *_kernel_mistakes(message, block),
        *_connection_mistakes(message),
        *_group_mistakes(message, block),
    ]


def _workload_mistakes(block: Message, run: str) -> Iterator[str]:
    name = block.WhichOneof("workload_variant")
    if name not in WORKLOAD_FIELDS:
        yield f"{run}: no workload that can be evaluated; expected a block {' or '.join(WORKLOAD_FIELDS)}"
        return
    content = getattr(block, name)
    for field in WORKLOAD_FIELDS[name]["stated"]:
        if getattr(content, field) < 1:
            yield f"{run}.{name}.{field}: {getattr(content, field)}; expected 1 or more"
    yield from _limit_mistakes(content, f"{run}.{name}", "workload")
    yield from _limit_mistakes(block, run, "run")
    if (counted := getattr(block, "optimization", "")) not in ("", "C", "CM", "CN", "CMN"):
        yield f"{run}.optimization: {counted!r}; expected C, CM, CN or CMN, the parts of the time that count"


def _limit_mistakes(content: Message, where: str, part: str) -> Iterator[str]:
    """Numbers of a block that are outside of their limits, `limits` in `workloads.yaml`."""
    for field, (low, high, expected) in LIMITS[part].items():
        value = getattr(content, field, low)
        if not low <= value <= high:
            yield f"{where}.{field}: {value:g}; expected {expected}"


def _system_mistakes(system: Message, block: Message) -> Iterator[str]:
    for part, content in (("accelerator", system.accelerator), ("memory", system.memory)):
        yield from _limit_mistakes(content, f"system.{part}", part)
    memory, second = system.memory, "system.memory.second_dram_"
    if bool(memory.second_dram_bw) != bool(memory.second_dram_cap):
        yield f"{second}bw, {second}cap: one without the other; a second tier has both"
    elif memory.second_dram_cap and not memory.dram_cap:
        yield f"{second}cap: {memory.second_dram_cap:g} beside a dram_cap without limit; give both"
    if memory.second_dram_bw > memory.dram_bw:
        yield f"{second}bw: {memory.second_dram_bw:g} is above dram_bw; the first tier is the faster one"
    yield from _network_mistakes(system, block)


def _network_mistakes(system: Message, block: Message) -> Iterator[str]:
    topology = system.WhichOneof("topology_variant")
    if topology is None:
        yield f"system: no topology; expected one of {', '.join(TOPOLOGIES)}"
        return
    if topology not in TOPOLOGIES:
        yield f"system.{topology}: splits of sequences (SP) are not evaluated; expected {', '.join(TOPOLOGIES)}"
        return
    network = getattr(system, topology)
    axes = AXES[: len(TOPOLOGIES[topology])]
    if system.HBD and len(axes) < len(AXES):
        yield f"system.HBD: {system.HBD}; only networks of three dimensions have domains"
    if not 1 <= system.num_chip <= LARGEST:
        yield f"system.num_chip: {system.num_chip}; expected 1 to {LARGEST:g}"
    sizes = [getattr(network, axis) for axis in axes]
    given, chips = [size for size in sizes if size], system.num_chip // workload_copies(block)
    shape = " x ".join(map(str, sizes))
    if min(sizes) < 0 or (chips % prod(given) if 0 in sizes else prod(sizes) != chips):
        yield f"system.{topology}: {shape} is not num_chip, {system.num_chip}; give other sizes, 0 where open"
    for axis in axes:
        if not 0 < getattr(network, f"link_bw_{axis}") < inf:
            yield f"system.{topology}.link_bw_{axis}: expected more than 0"
    if block.WhichOneof("workload_variant") != "llm":
        copies = workload_copies(block)
        if 0 in sizes or system.num_chip % copies:
            yield f"system.{topology}: {shape} chips in {copies} copies; expected sizes above 0, and as many in each"
        return
    llm, roles = block.llm, network_roles(network, axes)
    if roles not in ROLES[len(axes)]:
        known = " or ".join(", ".join(legal) for legal in ROLES[len(axes)])
        yield f"system.{topology}: par {', '.join(map(repr, roles))}; expected {known}"
    elif (replicas := dict(zip(roles, sizes, strict=True)).get("DP", 1)) > 0:
        per_step = (llm.micro_batch_size or 1) * replicas
        if llm.global_batch_size % per_step:
            yield (
                f"llm.global_batch_size: {llm.global_batch_size} is not a whole number of micro-batches on "
                f"{replicas} replicas; choose a multiple of {per_step}"
            )


def _kernel_mistakes(message: Message, block: Message) -> Iterator[str]:
    kernels, word = message.dataflow_graph.kernels, block.word
    rules = WORKLOADS[block.WhichOneof("workload_variant") or "llm"]
    sharded = rules.sharded
    collectives = {ALL_REDUCE, PERIODIC, *STATED} if sharded else set().union(*rules.rates)
    if not kernels:
        yield "dataflow_graph: no kernels; a graph has at least one"
    for name, count in Counter(kernel.id for kernel in kernels).items():
        if count > 1:
            yield f"dataflow_graph: {count} kernels have id {name}; each needs its own"
    for kernel in kernels:
        where = f"kernel {kernel.name!r} (id {kernel.id})"
        kind = kernel.WhichOneof("variant")
        if kind is None or not kernel.type or (not kernel.fwd_bwd and sharded):
            yield f"{where}: no dimensions, type or direction; each kernel has a block with them"
            continue
        part = getattr(kernel, kind)
        if kernel.type != 1 and kind.startswith("gemm"):
            yield f"{where}: type and {kind} contradict each other; a gemm is SYSTOLIC"
        if part.sharding not in {0, *SHARDINGS} - (set() if kind.startswith("gemm") else {K}):
            yield f"{where}: sharding {part.sharding}; the kernel has no such dimension"
        stated = {part.communication_type, part.communication_type_2} - {NOTHING}
        if not stated <= collectives:
            names = part.DESCRIPTOR.fields_by_name["communication_type"].enum_type.values_by_number
            wrong = ", ".join(names[code].name if code in names else str(code) for code in sorted(stated - collectives))
            yield f"{where}: {wrong} is not a collective of this workload; leave it out"
        dims = [part.outer, part.M, part.N, *([part.K] if kind.startswith("gemm") else [])]
        if (min(dims) < 1 and (sharded or any(dims))) or part.tiling not in SHARDINGS:
            yield f"{where}: dimensions {' x '.join(map(str, dims))} and a tiling; expected 1 or more"
            continue
        sizes = [("output_tensor_size", part.outer * part.M * part.N * word)]
        if kind == "gemm_input1_weight" and part.weight_tensor_size:
            sizes.append(("weight_tensor_size", part.outer * part.M * part.K * word))
        for field, expected in sizes:
            yield from _size_mistakes(f"{where}: {field}", getattr(part, field), expected, "its dimensions")


def _connection_mistakes(message: Message) -> Iterator[str]:
    kernels = {kernel.id: kernel for kernel in message.dataflow_graph.kernels}
    for index, edge in enumerate(message.dataflow_graph.connections, start=1):
        where = f"connection {edge.id or index}"
        for field, name in (("startIdx", edge.startName), ("endIdx", edge.endName)):
            number = getattr(edge, field)
            if number not in kernels:
                yield f"{where}: {field} {number}: no such kernel; ids are those of kernels"
            elif name and name != kernels[number].name:
                named = kernels[number].name
                yield f"{where}: {field} {number} is {named!r}, not {name!r}{suggestion(name, [named])}"
        start = kernels.get(edge.startIdx)
        kind = None if start is None else start.WhichOneof("variant")
        if start is not None and kind is not None and edge.tensor_size:
            expected = getattr(start, kind).output_tensor_size
            yield from _size_mistakes(
                f"{where}: tensor_size", edge.tensor_size, expected, f"what {start.name!r} produces"
            )


def _size_mistakes(where: str, size: float, expected: float, against: str) -> Iterator[str]:
    """A size that another contradicts."""
    if not abs(size - expected) <= _ROUNDING * expected:
        yield f"{where} {size:,.0f} contradicts {against}; expected {expected:,.0f}"


def _group_mistakes(message: Message, block: Message) -> Iterator[str]:
    """Mistakes in the groups of kernels that a file gives, where it fuses them."""
    kernels = {kernel.id: kernel for kernel in message.dataflow_graph.kernels}
    if block.execution_style != DATAFLOW or block.num_config in (0, len(kernels)):
        return
    for kernel in kernels.values():
        if not -1 <= kernel.config < block.num_config:
            yield (
                f"kernel {kernel.name!r} (id {kernel.id}): config {kernel.config}; expected a group below "
                f"num_config, {block.num_config}, or -1 where it is open"
            )
    for index, edge in enumerate(message.dataflow_graph.connections, start=1):
        start, end = (kernels.get(number) for number in (edge.startIdx, edge.endIdx))
        if start is not None and end is not None and -1 < end.config < start.config:
            yield (
                f"connection {edge.id or index}: leads from {start.name!r} in config {start.config} back to "
                f"{end.name!r} in config {end.config}; groups run in order"
            )


#: Column of a set-up -> where a message has it, and the factor to SI units.
FIELDS: Final[dict[str, tuple[str, float]]] = {
    name: (str(at), float(factor)) for name, (at, factor) in data_beside(__file__, "fields.yaml").items()
}
#: Overlap of the third generation, by its codes.
OVERLAPS: Final = ("none", "perfect", "none", "compute_memory")


@dataclass(frozen=True, slots=True)
class SetupFile:
    """Graph, set-up, sharding and groups of a file, ready to be evaluated."""

    graph: DfmodelGraph
    setup: Setup
    sharding: IntArray | None  #: (kernels,); None where the file leaves some kernel open
    pins: IntArray  #: group that the file gives each kernel, -1 where it is open; (kernels,)
    most_groups: int  #: that kernels may be put into; 0 where each kernel runs alone
    tiles_open: bool  #: the file states no size of a tile; `setup` has one token then
    batches_open: bool = False  #: the file states no size of a micro-batch; `setup` has one sequence then


def run_block(message: Message) -> Message:
    """The block on how to run: `miscellany` of the first generation, `execution` later."""
    return message.miscellany if "miscellany" in message.DESCRIPTOR.fields_by_name else message.execution


def block(message: Message, path: str) -> tuple[Message, str]:
    """The block that holds a field of `FIELDS`, and the field's own name."""
    first, *inner, name = path.split(".")
    content = run_block(message) if first == "run" else getattr(message, first)
    for step in inner:
        content = getattr(content, step)
    return content, name


def variant(kernel: Message) -> Message:
    """The block with a kernel's dimensions."""
    return getattr(kernel, kernel.WhichOneof("variant"))


def setup_file(message: Message, where: str) -> SetupFile:
    """Graph, set-up, sharding and groups of a set-up.

    Raises `DseError` with one line for each thing that does not hold together.
    """
    oldest = "training" in message.DESCRIPTOR.fields_by_name
    all_mistakes = [*_limit_mistakes(message.training, "training", "oldest")] if oldest else []
    old, message = message, first_generation(message) if oldest else message
    all_mistakes += mistakes(message)
    if all_mistakes:
        raise DseError("\n".join(f"{where}: {mistake}" for mistake in all_mistakes))
    graph = _graph(message.dataflow_graph)
    kernels = message.dataflow_graph.kernels
    sharding = np.array([variant(kernel).sharding for kernel in kernels])
    run, setup = run_block(message), _setup(message)
    setup = _oldest(setup, old) if oldest else setup
    if setup.workload != "llm" or getattr(run, "skip_inter_chip_optimization", False):
        sharding = np.where(sharding, sharding, NONE)
    stated = np.count_nonzero(sharding)
    try:
        graph.levels()
        if graph.own_stages.any() and not setup.effective_stages.any():
            raise DseError("effective_stage: 0, but kernels have use_effective_stage; expected 1 or more")
        if 0 < stated < len(kernels):
            raise DseError(f"{stated} of {len(kernels)} kernels state a sharding; state all of them, or none")
    except DseError as error:
        raise DseError(f"{where}: {error}") from error
    fused = run.execution_style == DATAFLOW
    alone = run.num_config in (0, len(kernels)) and not oldest  # then the reference runs each kernel alone
    return SetupFile(
        graph=graph,
        setup=setup,
        sharding=sharding if stated else None,
        pins=np.array([kernel.config for kernel in kernels]),
        most_groups=(run.num_config or len(kernels)) if fused and not alone else 0,
        tiles_open=setup.workload == "llm" and run.llm.tile_size == 0,
        batches_open=oldest and setup.workload == "llm" and run.llm.micro_batch_size == 0,
    )


def _graph(message: Message) -> DfmodelGraph:
    kernels = message.kernels
    parts = [variant(kernel) for kernel in kernels]
    kinds = np.array([kernel.WhichOneof("variant") for kernel in kernels])
    numbers = {kernel.id: at for at, kernel in enumerate(kernels)}
    edges = message.connections
    return DfmodelGraph(
        names=tuple(kernel.name for kernel in kernels),
        backward=np.array([kernel.fwd_bwd == 2 for kernel in kernels]),
        systolic=np.array([kernel.type == 1 for kernel in kernels]),
        weighted=kinds == "gemm_input1_weight",
        tiling=np.array([part.tiling for part in parts]),
        **{name: _numbers(parts, *fields) for name, fields in _DATA["kernels"].items()},
        start=np.array([numbers[edge.startIdx] for edge in edges], dtype=np.int64),
        end=np.array([numbers[edge.endIdx] for edge in edges], dtype=np.int64),
        own_stages=np.array([part.use_effective_stage for part in parts], dtype=bool),
        collectives=np.array([(part.communication_type, part.communication_type_2) for part in parts]).T,
        streamed=np.array([part.skip_weight for part in parts], dtype=bool),
        zero_out=np.array([edge.zero_out for edge in edges], dtype=bool),
    )


def _numbers(parts: Sequence[Any], *names: str) -> FloatArray:
    """The first of the named fields that each kernel has; without any, its K is 1, all else 0."""
    otherwise = float("K" in names)
    return np.array([next((float(getattr(p, n)) for n in names if hasattr(p, n)), otherwise) for p in parts])


def network_roles(network: Message, axes: Sequence[str]) -> tuple[str, ...]:
    """Group that each dimension serves; where a file states none, those of the oldest files."""
    roles = tuple(getattr(network, f"par_{axis}") for axis in axes)
    return roles if any(roles) else ROLES[len(axes)][0]


def workload_copies(block: Message) -> int:
    """Copies of the workload that the chips share."""
    return getattr(getattr(block, block.WhichOneof("workload_variant") or "llm"), "num_copy", 0) or 1


def _workload_columns(run: Message, chips: float) -> dict[str, float]:
    """Columns of a workload; those of the batch and layers of a language model are 1 for others."""
    name = run.WhichOneof("workload_variant")
    content, copies = getattr(run, name), workload_copies(run)
    stated = getattr(run, "effective_stage", 0) or getattr(content, "effective_stage", 0)
    stages = {"effective_stages": stated} if stated else {}
    if name == "llm":
        return stages
    one = ("hidden_size", "head_size", "num_attention_heads", "seq_len", "num_layers")
    return {
        **dict.fromkeys(one, 1) | stages,
        "copies": copies,
        "stored_bytes": prod(getattr(content, f, 0) for f in WORKLOAD_FIELDS[name]["data"]) * run.word * copies / chips,
        "global_batch_size": getattr(content, "global_batch_size", 1),
        "replicas": chips / copies if name == "dlrm" else 1,
    }


def _setup(message: Message) -> Setup:
    columns = {}
    for name, (path, factor) in FIELDS.items():
        content, field = block(message, path)
        value = float(getattr(content, field))
        columns[name] = 1.0 if value == 0 and name in ("micro_batch_size", "tile_size") else value * factor
    topology = message.system.WhichOneof("topology_variant")
    network = getattr(message.system, topology)
    axes = AXES[: len(TOPOLOGIES[topology])]
    for axis in axes:
        columns[axis] = float(getattr(network, axis))
        columns[f"{axis}_bandwidth"] = getattr(network, f"link_bw_{axis}") * 1e9
    run = run_block(message)
    newest, workload = hasattr(run, "overlap"), run.WhichOneof("workload_variant")
    overlap, counted = OVERLAPS[run.overlap if newest else run.perfect_overlap], getattr(run, "optimization", "")
    columns |= _workload_columns(run, columns["num_chips"])
    if not WORKLOADS[workload].limits_sram:
        columns["sram_bytes"] = 0.0
    return Setup.of(
        topology=topology,
        roles=network_roles(network, axes) if WORKLOADS[workload].sharded else (),
        workload=workload,
        kernel_by_kernel=run.execution_style != DATAFLOW,
        overlap=overlap if overlap != "none" else {"CMN": overlap}.get(counted, counted or overlap),
        doubled=newest and run.separate_rs_ag_for_ar,
        **{name: [value] for name, value in columns.items()},
    )


def _oldest(setup: Setup, message: Message) -> Setup:
    """A set-up with the rules of the oldest generation, whose Linpack states the kernels of one chip."""
    run, chips = message.training, setup.num_chips
    setup = replace(setup, trains=run.training, micro_batch_size=chips**0 * (run.micro_batch_size or 1))
    setup = replace(setup, least_utilization=chips**0 * run.util_threshold)
    if setup.workload != "hpl":
        return setup
    sram = chips**0 * message.system.accelerator.sram_cap
    shared = {"global_batch_size": chips, "replicas": chips, "sram_bytes": sram, "stored_bytes": 0 * chips}
    return replace(setup, workload="panels", **shared)
