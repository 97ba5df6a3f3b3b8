"""The pipeline of a design as data of a page, which draws its passes.

Schedules repeat themselves, so a stage is stored as runs of patterns of few distinct works.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.columns import distinct_rows
from costmodel.steps.timeline import KINDS, Timeline
from dse.explaining.timeline import EXPOSED, folded
from dse.fronts import thinned

if TYPE_CHECKING:
    from costmodel.columns import FloatArray

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
    shown = thinned(np.arange(stages), max(2, PASSES // likely))
    kept, period = folded(events.take(np.isin(events.stage, shown).nonzero()[0]))
    shown = thinned(shown, max(2, PASSES * len(shown) // kept.num_points))
    order = np.lexsort([kept.end, kept.start, kept.stage])
    kept = kept.take(order[np.isin(kept.stage[order], shown)])
    exposed = {name: column for name, column in EXPOSED.items() if (getattr(kept, column) > 0).any()}
    works = whole_works(kept, exposed.values(), unit)
    happens = (works[:, :, 2] != 0) | (np.arange(works.shape[1]) > 1)
    works, stage = works[happens], np.repeat(kept.stage, happens.sum(axis=1))
    unique, places = distinct_rows(*works.T)
    data = {
        "unit": unit,
        "stages": stages,
        "kinds": KINDS,
        "exposed": [name.rpartition("_communication")[0] or name.rpartition("_")[0] for name in exposed],
        "works": works[unique].astype(int).tolist(),
        "rows": [[row, *repeated(places[stage == row].tolist())] for row in shown.tolist()],
    }
    if period:
        data["period"] = [round(period.start / unit), round(period.time / unit), period.count]
    return data


def whole_works(kept: Timeline, exposed: Collection[str], unit: float) -> FloatArray:
    """Works of each event, in whole units: the gap before it, micro-batches that are skipped, and the event. [-]

    `exposed` are columns of exposed communication. (events, 3, numbers of a work).
    """
    start, end, stage = kept.start / unit, kept.end / unit, kept.stage
    gap = start - np.append(0.0, end[:-1]) * (stage == np.append(-1.0, stage[:-1]))
    order = np.lexsort([kept.chunk, kept.kind, stage])
    passes = np.stack([stage, kept.kind, kept.chunk])[:, order]
    follows = np.append(False, (passes[:, 1:] == passes[:, :-1]).all(axis=0))
    before, batch = np.full(len(order), -1.0), kept.micro_batch[order]
    before[order] = np.where(follows, np.append(-1.0, batch[:-1]), -1.0)
    works = np.zeros((len(order), 3, 3 + len(exposed)))
    works[:, 0, 0], works[:, 0, 2] = -1, gap
    works[:, 1, :3] = np.stack(
        [-2 - kept.kind, kept.chunk, (kept.micro_batch - before - 1) * (kept.micro_batch >= 0)], axis=1
    )
    works[:, 2, :3] = np.stack([kept.kind, kept.chunk, end - start], axis=1)
    works[:, 2, 3:] = np.stack([getattr(kept, name) / unit for name in exposed], axis=1) if exposed else 0.0
    return works.round() + 0.0


def repeated(values: Sequence[int]) -> list[list[int]]:
    """Values as runs: a number of repetitions, then the values that are repeated."""
    runs = [(run[0], run[1] or run[0]) for run in PATTERN.finditer("".join(map(chr, values)))]
    return [[len(text) // len(pattern), *map(ord, pattern)] for text, pattern in runs]
