"""Designs as workloads of AICB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from costmodel.rules.registry import NATIVE
from costmodel.steps.transformer import resolve_sharding
from costmodel.training.run import TransformerRun, rank_run
from costmodel.training.sharding import SHARDINGS
from dse.adapters.simai.design_rows import design_workload, rows_know
from dse.adapters.simai.files.aicb import workload_file
from dse.adapters.simai.time import ENDLESS, endless_rows
from dse.output.artefact import Artefact


def workloads(run: TransformerRun, form: str = "aicb", profile: str = NATIVE) -> Iterator[Artefact]:
    """Designs as AICB's workloads; shardings that its rows cannot say become the nearest that they can."""
    run = run.of(resolve_sharding(run.model, run.system, run.design))
    shape, points = rank_run(run).design, range(run.num_points)
    named, numbers = shape.assignments.named, np.broadcast_to(shape.assignment, (len(points),)).tolist()
    notes: list[tuple[str, ...]] = [() for _ in points]
    codes = np.broadcast_to(run.design.sharding, (len(points),)).copy()
    for point in np.flatnonzero(~np.broadcast_to(rows_know(rank_run(run)), (len(points),))).tolist():
        words = shape.assignments.words(numbers[point])
        lost = {name: {k: w for k, w in words.items() if shape.assignments.words(own)[k] != w}
                for name, own in named.items()}  # fmt: skip
        nearest = min(lost, key=lambda name: len(lost[name]))
        codes[point] = SHARDINGS.index(nearest)
        kernels = ", ".join(f"{kernel} by {word}" for kernel, word in lost[nearest].items())
        notes[point] = (f"rows cannot split {kernels}; they are those of sharding={nearest}",)
    rows = design_workload(run.of(replace(run.design, sharding=codes)))
    for point in points:
        file = workload_file(rows, point=point)
        endless = [f"row {name}: {ENDLESS}" for name in endless_rows(file.workload)]
        yield Artefact(file.text.encode(), (*notes[point], *endless))
