"""Evaluated designs as nested records: what JSON output holds of each, with the shardings and tiles of its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from costmodel.columns import FloatArray
from costmodel.rules.rules import WorkloadRules
from costmodel.training.design import DesignPoints, kernel_of_tile, tile_columns
from costmodel.training.run import rank_run
from dse.pricing.evaluated import Evaluation, with_intervals, with_runs
from dse.pricing.evaluation import Record, evaluate, transformer_run
from dse.pricing.several_workloads import layouts_of, prefixed_columns
from dse.pricing.space_rules import NATIVE
from dse.spaces.sections.parameters import Value
from dse.spaces.space import Space


def kernel_choices(space: Space, columns: Mapping[str, FloatArray]) -> list[dict[str, Value]]:
    """Values of `Space.solved` for each design: name -> word of a sharding, or edge of an output tile. [elements]

    Empty where nothing is solved for; the edge is 0 if a design does not have the product. `columns` are (points,)
    values of parameters.
    """
    points = next(iter(columns.values())).size
    if not space.solved or not points:
        return [{} for _ in range(points)]
    from costmodel.steps.transformer import resolve_sharding, resolve_tiling  # imports the whole step

    run = transformer_run(space, columns, DesignPoints)
    names = [parameter.name for parameter in space.solved]
    tiled = any(name.endswith("_tile_m") for name in names)
    design = (resolve_tiling if tiled else resolve_sharding)(run.model, run.system, run.design)
    shape = rank_run(run.of(design)).design
    found: list[dict[str, Value]] = [{} for _ in range(points)]
    for parameter in space.solved:
        if parameter.words:
            places = shape.assignments.place(shape.assignment, parameter.name.removesuffix("_sharding"))
            values: list[Value] = [parameter.words[place] for place in np.broadcast_to(places, (points,))]
        else:
            edges = design.tile_edges.get(parameter.name, np.zeros(1))
            values = [int(edge) for edge in np.broadcast_to(edges, (points,))]
        for choices, value in zip(found, values, strict=True):
            choices[parameter.name] = value
    return found


def with_kernels(space: Space, records: Sequence[Record]) -> list[Record]:
    """Records of designs whose `params` say how each kernel is split and tiled, where that is solved for.

    Trials of a study have that already, unless an earlier version stored them.
    """
    lacking = [not all(p.name in record["params"] for p in space.solved) for record in records]
    if not any(lacking):
        return [*records]
    columns = space.encode([record["params"] for record in records])
    return [
        {**record, "params": {**record["params"], **choices}}
        for record, choices in zip(records, kernel_choices(space, columns), strict=True)
    ]


def kernels_text(space: Space, params: Mapping[str, Any]) -> str:
    """Shardings and tiles of the kernels of a design, in words; "" if the space does not choose them.

    ``column: qkv, mlp_up; row: projection, mlp_down; tiles 128 x 256: qkv, mlp_up``
    """
    names = {name: params[name] for name in space.kernel_columns if name in params}
    groups: dict[str, list[str]] = {}
    for name, value in names.items():
        if name.endswith("_sharding"):
            groups.setdefault(str(value), []).append(name.removesuffix("_sharding"))
        elif name.endswith("_tile_m") and value:
            kernel = kernel_of_tile(name)
            other = names.get(tile_columns(kernel)[1], value)
            groups.setdefault(f"tiles {value} x {other}", []).append(kernel)
    return "; ".join(f"{group}: {', '.join(kernels)}" for group, kernels in groups.items())


def design_records(space: Space, designs: Mapping[str, FloatArray], evaluation: Evaluation) -> list[dict[str, Any]]:
    """One nested record per evaluated design, as in JSON output; names end in their units."""
    points = len(evaluation.values)

    def rows(columns: Mapping[str, FloatArray]) -> list[dict[str, float]]:
        lists = {name: np.broadcast_to(values, (points,)).tolist() for name, values in columns.items()}
        return [{name: values[row] for name, values in lists.items()} for row in range(points)]

    records = [
        {"feasible": feasible, "params": params, "derived": derived, "values": values, "margins": margins}
        | {"breakdown": breakdown}
        for feasible, params, derived, values, margins, breakdown in zip(
            evaluation.feasible.tolist(),
            space.decode(designs),
            rows(evaluation.derived),
            rows(dict(zip((o.key for o in space.objectives), evaluation.values.T, strict=True))),
            rows({limit.key: evaluation.margins[:, i] for i, limit in enumerate(space.limits)}),
            rows(evaluation.breakdown.by_key()),
            strict=True,
        )
    ]
    if space.workloads:
        layouts, parts = layouts_of(space, evaluation), rows(prefixed_columns(evaluation))
        for record, layout, part in zip(records, layouts, parts, strict=True):
            record["layouts"], record["breakdown"] = layout, {**record["breakdown"], **part}
    return with_runs(space, records)


def priced_design(space: Space, params: Mapping[str, Any], *, rules: WorkloadRules | None = None) -> dict[str, Any]:
    """The record of one design, with what was solved for it."""
    columns = space.encode([params])
    records = with_kernels(space, design_records(space, columns, evaluate(space, columns, rules=rules)))
    return with_intervals(space, records, rules.profile if rules else NATIVE)[0]
