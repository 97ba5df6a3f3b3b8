"""Reload analysis of the matrix products of designs, and the optimizer's costs by parameter group, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodel.columns import per_kernel
from costmodel.errors import DseError
from costmodel.rules.rules import TRAINING
from costmodel.training.design import DesignPoints
from costmodel.training.run import TransformerRun, rank_run
from dse.pricing.evaluation import transformer_run
from dse.spaces.space import Space

#: Row of a table.
Row = dict[str, Any]

#: Kinds of tables: of matrix products, and of parameter groups.
WORK_TABLES: Final = ("gemms", "optimizer")


def work_tables(kind: str, space: Space, designs: Sequence[Mapping[str, Any]]) -> Iterator[list[Row]]:
    """A table of the work of each of some designs, one after the other.

    Raises `DseError` if the model is no transformer, or groups of the optimizer share costs (`parameter_groups`).

    "gemms": a row for each matrix product and pass of one micro-batch on one rank, with the times that each operand
    crosses from each memory level: ``LEVEL_reload_AB`` of A, ``LEVEL_reload_BC`` of B and ``LEVEL_reload_AC`` of C.
    "optimizer": a row for each parameter group of a rank of the stage with most parameters, with gradient clipping and
    update. Columns end in their units.
    """
    if space.workload.work != TRAINING or space.workloads:
        raise DseError(f"space {space.name}: {kind}: known for the training of one transformer only")
    from costmodel.steps.transformer import resolve_tiling  # imports the whole step, here and below

    for design in designs:
        run = transformer_run(space, space.encode([design]), DesignPoints)
        resolved = resolve_tiling(run.model, run.system, run.design)
        own = replace(run.of(resolved), system=run.system.sliced(run.design.world_size))
        yield [*(_gemm_rows if kind == "gemms" else _optimizer_rows)(own)]


def _gemm_rows(run: TransformerRun) -> Iterator[Row]:
    """Rows of the products of one design, in the order of the model."""
    from costmodel.kernels.gemm_reloads import gemm_reloads

    found = gemm_reloads(rank_run(run))
    gemms, costs = found.gemms, found.costs
    bound = np.where(costs.memory_bound, "memory", "arithmetic")
    launch = per_kernel(run.system.chip.kernel_launch)
    bound = np.where(launch > costs.time / 2, "launch", bound)
    columns = {
        **{name: getattr(gemms, name) for name in ("count", "batch", "m", "n", "k")},
        "tile_m": found.tile_m,
        "tile_n": found.tile_n,
    }
    for place, label in enumerate(gemms.labels):
        row: Row = {"product": label.name, "pass": label.of_pass, "part": label.part}
        row |= {name: int(values[0, place]) if float(values[0, place]).is_integer() else float(values[0, place])
                for name, values in columns.items()}  # fmt: skip
        for level, reads in reversed([*found.levels.items()]):
            for operand, often in (("AB", reads.of_a), ("AC", reads.of_c), ("BC", reads.of_b)):
                row[f"{level}_reload_{operand}"] = float(often[0, place])
            row[f"{level}_bytes"] = float(reads.bytes_moved[0, place])
        row |= {"flops": float(costs.flops[0, place]), "time_s": float(costs.time[0, place])}
        yield row | {"bound": str(bound[0, place])}


def _optimizer_rows(run: TransformerRun) -> Iterator[Row]:
    """Rows of the parameter groups of one design, and what they share."""
    from costmodel.steps.update.parameter_groups import parameter_groups

    for group, own in parameter_groups(run).items():
        yield {
            "group": group,
            "parameters": float(own.parameters.flat[0]),
            "owned": float(own.owned.flat[0]),
            "gradclip_flops": float(own.clip_flops.flat[0]),
            "gradclip_bytes": float(own.clip_bytes.flat[0]),
            "gradclip_time_s": float(own.clip_time.flat[0]),
            "apply_grad_flops": float(own.apply_flops.flat[0]),
            "apply_grad_bytes": float(own.apply_bytes.flat[0]),
            "apply_grad_time_s": float(own.apply_time.flat[0]),
        }


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, numbers in full."""
    import pandas as pd

    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
