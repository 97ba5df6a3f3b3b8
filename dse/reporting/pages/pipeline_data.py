"""The pipeline of a design as data of a page, which draws its passes.

Schedules repeat themselves, so a stage is stored as runs of patterns of few distinct works.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.steps.timeline import KINDS, Timeline
from dse.explaining.timeline import EXPOSED, events_frame, folded

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.columns import FloatArray, IntArray

#: Passes that a pipeline draws at most, if these are of two stages or more. [-]
PASSES: Final = 1200
#: Resolution of times of a pipeline: this share of the step. [-]
RESOLUTION: Final = 1e7
#: A pattern and its repetitions, or all before the next of these.
PATTERN: Final = re.compile(r"(.{1,48}?)\1+|(?:(?!(.{1,48}?)\2).)+", re.DOTALL)


def pipeline_data(events: Timeline) -> dict[str, Any]:
    """One step, stage by stage, without the repetitions of its period.

    A work is a kind, a chunk, its time and its exposed communication; times are whole multiples of ``unit``. A row is a
    stage and its works in order, as runs: a number of repetitions, then the works that are repeated. The passes of a
    kind through a chunk are of one micro-batch after the other. Kind -1 is idle. Kinds -2, -3 and so on skip
    micro-batches of kinds 0, 1 and so on; their time is the number of these. Of a pipeline with many passes some of the
    stages are kept.
    """
    unit, stages = float(events.end.max()) / RESOLUTION, int(events.stage.max()) + 1
    likely = min(int((events.stage == 0).sum()), 6 * (int(events.chunk.max()) + 1) * stages)  # 3 micro-batches a stage
    shown = spread_out(np.arange(stages), PASSES // likely)
    kept, period = folded(events_frame(events.take(np.isin(events.stage, shown).nonzero()[0])))
    shown = spread_out(shown, PASSES * len(shown) // len(kept))
    kept = kept[kept["stage"].isin(shown)].sort_values(["stage", "start_s", "end_s"], kind="stable")
    exposed = [name for name in EXPOSED if (kept[name] > 0).any()]
    works = whole_works(kept, exposed, unit)
    happens = (works[:, :, 2] != 0) | (np.arange(works.shape[1]) > 1)
    unique, places = np.unique(works[happens], axis=0, return_inverse=True)
    stage = np.repeat(kept["stage"].to_numpy(), happens.sum(axis=1))
    data = {
        "unit": unit,
        "stages": stages,
        "kinds": KINDS,
        "exposed": [name.rpartition("_communication")[0] or name.rpartition("_")[0] for name in exposed],
        "works": unique.astype(int).tolist(),
        "rows": [[row, *repeated(places.ravel()[stage == row].tolist())] for row in shown.tolist()],
    }
    if period:
        data["period"] = [round(period.start / unit), round(period.time / unit), period.count]
    return data


def spread_out(stages: IntArray, most: int) -> IntArray:
    """Stages at equal distances, among them the first and the last."""
    kept: IntArray = stages[np.linspace(0, len(stages) - 1, min(len(stages), max(2, most))).round().astype(int)]
    return kept


def whole_works(kept: pd.DataFrame, exposed: Sequence[str], unit: float) -> FloatArray:
    """Works of each event, in whole units: the gap before it, micro-batches that are skipped, and the event. [-]

    (events, 3, numbers of a work).
    """
    numbers, stage, chunk = kept[["start_s", "end_s", *exposed]].to_numpy() / unit, kept["stage"], kept["chunk"]
    kind, batch = kept["kind"].map(KINDS.index), kept["micro_batch"]
    before = np.append(0.0, numbers[:-1, 1]) * (stage == stage.shift())
    skipped = batch - batch.groupby([stage, kind, chunk]).shift(fill_value=-1) - 1
    works = np.zeros((len(kept), 3, 3 + len(exposed)))
    works[:, 0, 0], works[:, 0, 2] = -1, numbers[:, 0] - before
    works[:, 1, :3] = np.stack([-2 - kind, chunk, skipped * (batch >= 0)], axis=1)
    works[:, 2, 0], works[:, 2, 1], works[:, 2, 2] = kind, chunk, numbers[:, 1] - numbers[:, 0]
    works[:, 2, 3:] = numbers[:, 2:]
    return works.round() + 0.0


def repeated(values: Sequence[int]) -> list[list[int]]:
    """Values as runs: a number of repetitions, then the values that are repeated."""
    runs = [(run[0], run[1] or run[0]) for run in PATTERN.finditer("".join(map(chr, values)))]
    return [[len(text) // len(pattern), *map(ord, pattern)] for text, pattern in runs]
