"""Pairs of runs that differ in one setting: the measured and the predicted effect of the setting.

A chooser needs differences between designs more than their levels. A pair is a row of a CSV file with two designs; each
design is read as a row of measurements with that `design`, and predicted in the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel import DseError
from dse.validation.comparison import ComparedRow, compared
from dse.validation.table import MeasuredRow, csv_cells, measured_row

#: Published pairs that are built in, each with its source.
PUBLISHED: Final = Path(__file__).parent / "data" / "pairs.csv"
#: Column of a pair -> column of the row of each of its two runs. `changed_` columns are empty where both agree.
SHARED: Final = {"model": "model", "framework": "framework", "seq": "seq", "given": "given", "source": "source"}
DIFFERING: Final = {"design": "design", "system": "hw", "gpus": "gpus", "step_s": "iter_time_s", "memory_gb": "mem_gb"}
#: Columns without which a table has no pairs.
NEEDED: Final = ("id", "model", "system", "base_design", "changed_design")
#: Smaller effects are none: runs of one configuration differ by as much. [-]
NO_EFFECT: Final = 0.02
#: Largest difference of effects that counts as right. [-]
CLOSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """Two runs with their predictions."""

    id: str
    changed: str  #: the setting that differs, in words
    runs: tuple[ComparedRow, ComparedRow]  #: before and after

    @property
    def why_not(self) -> str:
        """The reason why the pair has no effect to compare; "" if it has one."""
        base, changed = self.runs
        reason = base.why_not or changed.why_not
        same = replace(base.row, iter_time_s=0.0, mem_gb="") == replace(changed.row, iter_time_s=0.0, mem_gb="")
        return reason or ("a difference between its designs" if same else "")

    @property
    def measured(self) -> float:
        """Measured step time after the change over the one before, less 1. [-]"""
        return self.runs[1].measured_s / self.runs[0].measured_s - 1

    @property
    def predicted(self) -> float:
        """Predicted change of the step time over the time before; over the measured one if no batch is stated. [-]"""
        base, changed = self.runs
        stated = re.search("micro_batch_size|gradient_accumulation_steps", base.row.design)
        return (changed.predicted_s - base.predicted_s) / (base.predicted_s if stated else base.measured_s)

    @property
    def sign_right(self) -> bool:
        """True if both effects have one sign; where none is measured (below `NO_EFFECT`), if none is predicted."""
        if abs(self.measured) < NO_EFFECT:
            return abs(self.predicted) < NO_EFFECT
        return (self.measured > 0) == (self.predicted > 0)

    @property
    def close(self) -> bool:
        """True if the effects differ by at most `CLOSE`."""
        return abs(self.measured - self.predicted) <= CLOSE

    @property
    def memory(self) -> tuple[float, float]:
        """Measured and predicted change of memory, nan where a run states none. [B]"""
        base, changed = self.runs
        return changed.measured_bytes - base.measured_bytes, changed.predicted_bytes - base.predicted_bytes


def compared_pairs(path: Path = PUBLISHED) -> list[ComparedPair]:
    """Every pair of a table with its predictions.

    Raises `DseError` if the file is no such table.
    """
    heading, lines = csv_cells(path)
    lacking = [name for name in NEEDED if name not in heading]
    if lacking:
        raise DseError(f"{path}: no column {', '.join(lacking)}; a pair has the columns {', '.join(NEEDED)}")
    pairs = [(dict(zip(heading, cells, strict=False)), line) for line, cells in lines]
    runs = compared([run for cells, line in pairs for run in _runs(cells, line)])
    return [
        ComparedPair(cells["id"], cells.get("what_changed", ""), (base, changed))
        for (cells, _), base, changed in zip(pairs, runs[::2], runs[1::2], strict=True)
    ]


def _runs(cells: dict[str, str], line: int) -> list[MeasuredRow]:
    """Both runs of a pair as rows of measurements."""
    runs = []
    for which in ("base", "changed"):
        values = {"row_type": "train_step", "dataset": "pairs", "id": cells["id"]}
        values |= {name: cells.get(name, "") for name in SHARED}
        for name, column in DIFFERING.items():
            usual = cells.get(name, cells.get(f"base_{name}", "")) if name in ("system", "gpus", "design") else ""
            values[column] = cells.get(f"{which}_{name}", "") or usual
        values["mem_kind"] = "allocated" if values["mem_gb"] else ""
        runs.append(measured_row(line, [*values], [*values.values()]))
    return runs


def pairs_record(pairs: Sequence[ComparedPair]) -> dict[str, Any]:
    """Pairs as one JSON object: the summary, and each pair."""
    known = [pair for pair in pairs if not pair.why_not]
    return {
        "pairs": len(pairs),
        "expressed": len(known),
        "sign_right": sum(pair.sign_right for pair in known),
        "within_5_points": sum(pair.close for pair in known),
        "mean_abs_difference_points": float(np.mean([100 * abs(p.measured - p.predicted) for p in known] or [np.nan])),
        "rows": [_pair_record(pair) for pair in pairs],
    }


def _pair_record(pair: ComparedPair) -> dict[str, Any]:
    """A pair; nan and None where it has no effect. Effects in percent, memory in GB."""
    texts = {"id": pair.id, "changed": pair.changed, "source": pair.runs[0].row.source, "why_not": pair.why_not or None}
    memory = {f"{kind}_memory_change_gb": change / 1e9 for kind, change in zip(KINDS, pair.memory, strict=True)}
    effects = {f"{kind}_percent": math.nan if pair.why_not else 100 * getattr(pair, kind) for kind in KINDS}
    verdicts = {"sign_right": pair.sign_right, "within_5_points": pair.close}
    return {**texts, **effects, **memory, **({} if pair.why_not else verdicts)}


KINDS: Final = ("measured", "predicted")
