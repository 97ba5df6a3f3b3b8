"""What DFModel's rules say about one set-up, for a person and for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.columns import FloatArray, IntArray
from costmodel.errors import DseError
from costmodel.formats.dfmodel import Priced, load_setup, priced
from costmodel.formats.quantity import readable
from costmodel.profiles.dfmodel.evaluate import Evaluation, evaluate
from costmodel.profiles.dfmodel.sharding import PUBLISHED, least_moving, moved_bytes, sharding_words
from dse.deepflow_report import facts, table_of
from dse.text import percent

_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Report:
    """A set-up, the sharding and groups that it was priced with, and what came out."""

    file: Priced
    sharding: IntArray
    groups: IntArray
    evaluation: Evaluation


def priced_file(path: Path, *, generation: str, resolve: bool = False, prefer: str | None = None) -> Report:
    """Price a file by its own sharding; by the one that moves least where it has none, or with `resolve`."""
    file = priced(load_setup(path), str(path))
    sharding = file.sharding
    if sharding is None or resolve:
        try:
            sharding = least_moving(file.graph, prefer=PUBLISHED[prefer] if prefer else None).choices
        except DseError as error:
            raise DseError(f"{path}: {error}") from error
    groups = np.arange(len(file.graph)) if file.groups is None else file.groups
    found = evaluate(file.graph, file.setup, sharding, generation=generation, groups=groups)
    if not np.isfinite(found.iteration_time[0]):
        crowded = int(np.argmax(~np.isfinite(found.group_time[0])))
        raise DseError(
            f"{path}: group {crowded} has {np.sum(groups == crowded)} kernels on "
            f"{file.setup.cores[0]:.0f} cores; each kernel takes at least one: fuse fewer"
        )
    return Report(file, sharding, groups, found)


def figures(report: Report) -> dict[str, Any]:
    """The figures of the reference under names that end in their units, with the sharding and the groups."""
    found, names = report.evaluation, report.file.graph.names
    return {
        "final_s": float(found.iteration_time[0]),
        "utilization": float(found.utilization[0]),
        "all_config_ii_ns": float(found.group_time[0].sum() * _NANOSECONDS),
        "per_config_ii_ns": (found.group_time[0] * _NANOSECONDS).tolist(),
        "pipeline_factor": float(found.pipeline_factor[0]),
        "p2p_ns": float(found.transfer_time[0] * _NANOSECONDS),
        "system_cost_usd": float(found.price[0]),
        "system_power_w": float(found.power[0]),
        "communication_bytes": moved_bytes(report.file.graph, report.sharding),
        "sharding": dict(zip(names, sharding_words(report.sharding), strict=True)),
        "groups": _members(report),
    }


def dfmodel_report(report: Report) -> list[RenderableType]:
    """The set-up in tables, section by section."""
    found, setup = report.evaluation, report.file.setup
    roles = " x ".join(
        f"{role} {d.size[0]:.0f}" for role, d in zip(setup.roles, setup.dimensions, strict=True)
    )
    rows = [
        ("iteration", readable(float(found.iteration_time[0]), "s", digits=6)),
        ("utilization", percent(float(found.utilization[0]))),
        ("one layer and micro-batch", readable(float(found.group_time[0].sum()), "s", digits=6)),
        ("pipeline factor", f"{found.pipeline_factor[0]:.6g}"),
        ("between pipeline stages", readable(float(found.transfer_time[0]), "s", digits=6)),
        ("moved by the sharding", readable(moved_bytes(report.file.graph, report.sharding), "B")),
        ("network", f"{setup.topology}: {roles}"),
        ("price", f"$ {found.price[0]:,.0f}"),
        ("power", readable(float(found.power[0]), "W", digits=5)),
    ]
    return [
        Text("Groups of kernels", style="bold"), Text(), _group_table(report), Text(),
        Text("Iteration", style="bold"), Text(), facts(rows),
    ]  # fmt: skip


def _members(report: Report) -> list[list[str]]:
    """Names of the kernels of each group."""
    names = np.array(report.file.graph.names)
    return [names[report.groups == group].tolist() for group in range(int(report.groups.max()) + 1)]


def _group_table(report: Report) -> Table:
    """Kernels with their sharding, and where the time of their group goes."""
    table = table_of("kernels", "sharded by", "compute", "memory", "network", "group")
    found, words = report.evaluation, np.array(sharding_words(report.sharding))
    parts: list[FloatArray] = [
        found.compute_time[0],
        found.memory_time[0],
        found.network_time[0],
        found.group_time[0],
    ]
    for group, names in enumerate(_members(report)):
        times = [readable(float(part[group]), "s", digits=4) for part in parts]
        own = words[report.groups == group]
        table.add_row("\n".join(names), "\n".join(own), *times)
    return table
