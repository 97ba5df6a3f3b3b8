"""The report of one set-up by DFModel's rules, as text and as a record for other programs.

A file may leave parts open: the sharding, the groups of fused kernels, the tile, the micro-batch, the sizes of the
network. Each open part is solved here, and the report names it. Equally good shardings give different times,
since bytes do not tell which links they take; the report has the shortest and the longest of these times.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.columns import IntArray
from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from dse.adapters.dfmodel.evaluation import DfmodelEvaluation, dram_capacity, evaluate, unit_shortage, within_capacity
from dse.adapters.dfmodel.files import SetupFile, load_setup, setup_file
from dse.adapters.dfmodel.graph import (
    DfmodelGraph,
    Sharding,
    equal_choices,
    moved_bytes,
    published_sharding,
    sharding_words,
)
from dse.adapters.dfmodel.mapping import (
    Mapping,
    fastest_design,
    fastest_mapping,
    fused_ways,
    groupings,
    shortage,
    with_tiles,
)
from dse.adapters.dfmodel.network import sized
from dse.adapters.dfmodel.setup import GENERATIONS, Setup
from dse.output import percent
from dse.reporting.design_table import facts, ruled_table

#: The most equally good choices that are all tried. [-]
MOST_TIES: Final = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of the user that replace those of the file."""

    resolve: bool = False  #: sharding, groups and tiles solved again, as if the file left them open
    prefer: str | None = None  #: sharding solved again, with this row of `PUBLISHED` among equally good ones
    groups: int | None = None  #: groups solved again, with this maximum; 0 = each kernel alone
    tile_size: int | None = None  #: tokens; 0 = the fastest


@dataclass(frozen=True, slots=True)
class DfmodelReport:
    """A set-up, the choices made for it, and the results."""

    file: SetupFile
    setup: Setup  #: with all sizes
    sharding: IntArray
    groups: IntArray
    evaluation: DfmodelEvaluation
    tile_chosen: bool  #: the size of a tile was found, not given
    #: Shardings that move as little as one that was found, their times, and if these are exact. [-], [s], [s], [-]
    ties: tuple[int, float, float, bool] | None


def evaluated_file(path: Path, *, generation: str, wanted: Wanted = Wanted()) -> DfmodelReport:
    """Evaluate a file by its own sharding, groups and tiles; where it leaves some open, by the best."""
    file = setup_file(load_setup(path), str(path))
    try:
        return _decided(file, generation, wanted)
    except DseError as error:
        raise DseError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def _decided(file: SetupFile, generation: str, wanted: Wanted) -> DfmodelReport:
    """The report, once open parts are solved."""
    if (most := wanted.groups) is not None:
        file = replace(file, setup=replace(file.setup, kernel_by_kernel=not most), most_groups=most)
    graph, sharding = file.graph, file.sharding
    best, ties = None, None
    if sharding is None or wanted.resolve or wanted.prefer:
        best = published_sharding(graph, wanted.prefer, by_size=not wanted.resolve)
        sharding = best.choices
    pins = file.pins if wanted.groups is None and not wanted.resolve else np.full(len(graph), -1)
    designs = _designs(file, generation, wanted)
    mapping = _fastest(graph, designs, sharding, file.most_groups, pins, generation, lenient=wanted.tile_size is None)
    if file.batches_open:
        mapping = _with_batches(graph, mapping, sharding, generation)
    evaluation = evaluate(graph, mapping.setup, sharding, generation=generation, groups=mapping.groups)
    if best is not None and best.count > 1:
        ties = best.count, *tied_times(graph, best, mapping, generation)
    if not np.isfinite(evaluation.iteration_time[0]):
        crowded = int(np.argmax(~np.isfinite(evaluation.group_time[0])))
        raise DseError(
            f"group {crowded} has {np.sum(mapping.groups == crowded)} kernels on "
            f"{mapping.setup.cores.flat[0]:.0f} cores; each kernel takes at least one, "
            "and kernels with num_input share no group with others: fuse fewer"
        )
    design = (graph, mapping.setup, sharding, mapping.groups, generation, evaluation.compute_time[0])
    if np.any(mapping.setup.memory_units) and (short := unit_shortage(*design)):
        raise DseError(f"system.accelerator.pmu: {short}")
    reached = float((evaluation.utilization * evaluation.pipeline_factor)[0])
    if reached < float(mapping.setup.least_utilization.flat[0]):
        raise DseError(f"util_threshold: the fastest design reaches {reached:.6g}; lower the threshold")
    stated = not _tile_is_open(file, wanted) and mapping.setup.tile_size[0] == designs.tile_size[0]
    return DfmodelReport(file, mapping.setup, sharding, mapping.groups, evaluation, not stated, ties)


def _with_batches(graph: DfmodelGraph, mapping: Mapping, sharding: IntArray, generation: str) -> Mapping:
    """The mapping with the fastest size of a micro-batch that fits, else with one sequence; groups are the same."""
    row = mapping.setup
    sizes = np.arange(1.0, row.micro_batches.flat[0] + 1)
    rows = replace(row.take(np.zeros(sizes.size, dtype=np.intp)), micro_batch_size=sizes)
    return fastest_design(graph, rows, sharding, mapping.groups, generation=generation) or mapping


def tied_times(graph: DfmodelGraph, best: Sharding, design: Mapping, generation: str) -> tuple[float, float, bool]:
    """Shortest and longest time of equally good shardings with the same groups and tile, and if no other is. [s]

    Parts of the graph that change the time of one group are tried together, up to `MOST_TIES` choices, others alone.
    """
    joined: list[tuple[set[int], list[dict[int, int]]]] = []  # groups, and choices of kernels that change their times
    exact = True
    for part in equal_choices(graph, best):
        edges = np.isin(graph.start, [*part[0]]) | np.isin(graph.end, [*part[0]])
        near = [*part[0], *graph.start[edges], *graph.end[edges]]
        groups = {*design.groups[slice(None) if np.any(design.setup.second_dram_bytes) else near].tolist()}
        met = [other for other in joined if other[0] & groups]
        if prod(len(choices) for _, choices in met) * len(part) <= MOST_TIES:
            joined = [other for other in joined if not other[0] & groups]
            groups = groups.union(*(of_other for of_other, _ in met))
            part = [dict(ChainMap(*changes)) for changes in product(part, *(choices for _, choices in met))]
        else:
            exact = False
        joined.append((groups, part))

    def time(*changes: dict[int, int]) -> float:
        choices = best.choices.copy()
        for change in changes:
            choices[[*change]] = [*change.values()]
        return evaluate(graph, design.setup, choices, generation=generation, groups=design.groups).iteration_time.item()

    tried = [sorted(part, key=time) for _, part in joined]
    return time(*(part[0] for part in tried)), time(*(part[-1] for part in tried)), exact


def _fastest(
    graph: DfmodelGraph,
    designs: Setup,
    sharding: IntArray,
    most: int,
    pins: IntArray,
    generation: str,
    *,
    lenient: bool,
) -> Mapping:
    """The fastest design that fits, with its groups; the only one whether it fits or not, if its groups are given.

    If none fits given groups, the smallest tile where `lenient`, and where designs differ in their tiles alone at a
    given utilization, which makes all as fast.
    """
    opened = most > 0 and pins.min() < 0
    groups = np.unique(pins, return_inverse=True)[1] if most else np.arange(len(graph))
    order = groups if most else np.argsort(np.argsort(graph.levels(), kind="stable"))
    alike = np.all(designs.utilization > 0) and np.unique(designs.tile_size).size == designs.num_points
    ways = fused_ways(graph, most, pins) if opened else groupings(graph.start, graph.end, order, order, len(graph))
    only = designs.num_points == 1 and not opened
    mapping = None if only else fastest_mapping(graph, designs, sharding, ways, generation=generation)
    if mapping is not None:
        return mapping if opened else Mapping(mapping.setup, groups)
    if only or (lenient and alike and not opened):
        return Mapping(designs.take(np.zeros(1, dtype=np.intp)), groups)
    none = f"mapping into at most {most} groups" if opened else "size of a tile or of a dimension makes the groups"
    short = shortage(graph, designs, sharding, ways, generation=generation)
    raise DseError(f"no {none} {'fits' if opened else 'fit'}: {short}")


def _tile_is_open(file: SetupFile, wanted: Wanted) -> bool:
    """True if the fastest tile is requested, or neither the file nor the user gives one."""
    if wanted.tile_size is not None:
        return wanted.tile_size == 0
    return file.tiles_open or (wanted.resolve and not file.setup.kernel_by_kernel)


def _designs(file: SetupFile, generation: str, wanted: Wanted) -> Setup:
    """The set-up for all sizes of dimensions and of tiles that are to be tried."""
    tile_size = np.array([float(wanted.tile_size)]) if wanted.tile_size else file.setup.tile_size
    setup = replace(file.setup, tile_size=tile_size)
    if refused := setup.refusals(generation):
        raise DseError("\n".join(refused))
    limited = GENERATIONS[generation].tile_limits and wanted.tile_size is None
    if _tile_is_open(file, wanted) or (limited and setup.workload == "llm"):
        largest = np.inf if _tile_is_open(file, wanted) else float(setup.tile_size[0])
        return with_tiles(sized(setup), generation, largest)
    return sized(setup)


def figures(report: DfmodelReport) -> dict[str, Any]:
    """The figures of the reference under names that end in their units, with the sharding and the groups."""
    evaluation, names = report.evaluation, report.file.graph.names
    return {
        "final_s": float(evaluation.iteration_time[0]),
        "utilization": float(evaluation.utilization[0]),
        "all_config_ii_ns": float(evaluation.group_time[0].sum() * 1e9),
        "per_config_ii_ns": (evaluation.group_time[0] * 1e9).tolist(),
        "pipeline_factor": float(evaluation.pipeline_factor[0]),
        "p2p_ns": float(evaluation.transfer_time[0] * 1e9),
        "system_cost_usd": float(evaluation.price[0]),
        "system_power_w": float(evaluation.power[0]),
        "network": report.setup.shape(),
        "tile_size": int(report.setup.tile_size.flat[0]),
        "tile_size_chosen": report.tile_chosen,
        "sram_bytes": evaluation.sram_bytes[0].tolist(),
        "dram_bytes": float(evaluation.dram_bytes[0]),
        "fits": bool(evaluation.fits[0]),
        "equal_shardings": report.ties and report.ties[0],
        "equal_shardings_s": report.ties and [*report.ties[1:3]],
        "equal_shardings_exact": report.ties and report.ties[3],
        "communication_bytes": moved_bytes(report.file.graph, report.sharding),
        "sharding": dict(zip(names, sharding_words(report.sharding), strict=True)),
        "groups": _members(report.file.graph, report.groups),
    }


def dfmodel_report(report: DfmodelReport) -> list[RenderableType]:
    """The set-up in tables, section by section."""
    evaluation, setup = report.evaluation, report.setup
    capacity = dram_capacity(setup)
    why = f", chosen: {'the fastest that fits' if evaluation.fits[0] else 'the smallest'}"
    limit = f" of {readable(float(capacity.flat[0]), 'B')}" if capacity.flat[0] else ""
    rows = [
        ("iteration", readable(float(evaluation.iteration_time[0]), "s", digits=6)),
        ("utilization", percent(float(evaluation.utilization[0]))),
        ("one layer and micro-batch", readable(float(evaluation.group_time[0].sum()), "s", digits=6)),
        ("pipeline factor", f"{evaluation.pipeline_factor[0]:.6g}"),
        ("between pipeline stages", readable(float(evaluation.transfer_time[0]), "s", digits=6)),
        ("moved by the sharding", readable(moved_bytes(report.file.graph, report.sharding), "B")),
        ("network", f"{setup.topology}: {setup.shape()}"),
        ("tile", f"{setup.tile_size.flat[0]:.0f} of {setup.seq_len.flat[0]:.0f} tokens" + why * report.tile_chosen),
        ("DRAM needed", (readable(float(evaluation.dram_bytes[0]), "B") + limit)),
        ("price", f"$ {evaluation.price[0]:,.0f}"),
        ("power", readable(float(evaluation.power[0]), "W", digits=5)),
    ]
    if report.ties is not None:
        count, *times, exact = report.ties
        fastest, slowest = (readable(time, "s", digits=6) for time in times)
        rows.append(
            ("equal shardings", f"{count:,} move as little: {'' if exact else 'at least '}{fastest} to {slowest}")
        )
    return [
        Text("Groups of kernels", style="bold"), Text(), _group_table(report), Text(),
        Text("Iteration", style="bold"), Text(), facts(rows),
    ]  # fmt: skip


def shortages(graph: DfmodelGraph, setup: Setup, groups: IntArray, evaluation: DfmodelEvaluation) -> list[str]:
    """Demands of the groups of one design that exceed the capacity, one line each."""
    parts = [
        (f"SRAM of group {group} ({', '.join(names)})", evaluation.sram_bytes[0, group], setup.sram_bytes)
        for group, names in enumerate(_members(graph, groups))
    ]
    parts.append(("DRAM", evaluation.dram_bytes[0], dram_capacity(setup)))
    return [
        f"{what}: {needed:,.0f} bytes are needed, {needed - room_there.flat[0]:,.0f} more than there are"
        for what, needed, room_there in parts
        if not within_capacity(needed, room_there)
    ]


def _members(graph: DfmodelGraph, groups: IntArray) -> list[list[str]]:
    """Names of the kernels of each group."""
    names = np.array(graph.names)
    return [names[groups == group].tolist() for group in range(int(groups.max()) + 1)]


def _group_table(report: DfmodelReport) -> Table:
    """Kernels with their sharding, and where the time of their group goes."""
    table = ruled_table("kernels", "sharded by", "compute", "memory", "network", "group", "SRAM")
    evaluation, words = report.evaluation, np.array(sharding_words(report.sharding))
    parts = [getattr(evaluation, f"{part}_time")[0] for part in ("compute", "memory", "network", "group")]
    for group, names in enumerate(_members(report.file.graph, report.groups)):
        times = [readable(float(part[group]), "s", digits=4) for part in parts]
        words_of_group = words[report.groups == group]
        sram = readable(float(evaluation.sram_bytes[0, group]), "B", digits=4)
        table.add_row("\n".join(names), "\n".join(words_of_group), *times, sram)
    return table
