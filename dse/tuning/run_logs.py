"""Logs of training runs, by the lines in `run_logs.yaml`: step times, peak memory, runs that died out of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median, pstdev
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import content, data_beside

DATA: Final[dict[str, Any]] = data_beside(__file__)
#: Share of the steps that is left out as warm-up, and fewest such steps. [-]
WARM_UP, FEWEST = 0.2, 2
#: Bytes of the units of memory; Megatron-LM writes MiB without one. [B]
UNITS: Final = {"": 2.0**20, "MiB": 2.0**20, "GiB": 2.0**30, "B": 1.0}
MULTIPLES: Final = {"K": 1e3, "M": 1e6}


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Contents of the log of a run; None for unknown values."""

    framework: str
    steps: int
    step_time: float | None  #: median of the steps after warm-up [s]
    spread: float | None  #: standard deviation over the median [-]
    peak_memory: float | None  #: that the allocator reserved [B]
    out_of_memory: bool


def read_log(path: Path, tokens_of_gpu: float) -> LoggedRun:
    """Contents of the log of a run; `tokens_of_gpu` are the tokens of a step over the number of GPUs. [-]

    Raises `DseError` if the file cannot be read, or has no lines that are known.
    """
    text = content(path).decode("utf-8", errors="replace")
    died = re.search(DATA["out_of_memory"], text) is not None
    framework, times = "", list[float]()
    for row in DATA["step_times"]:
        numbers = [number(word) for word in re.findall(row["pattern"], text)]
        if positive := [value for value in numbers if value > 0]:
            framework = row["framework"]
            times = [tokens_of_gpu / value if row.get("tokens") else value * row["factor"] for value in positive]
            break
    if not times and not died:
        raise DseError(
            f"{path}: no step time and no failure; looked for lines of Megatron-LM (elapsed time per iteration), "
            'Megatron-Bridge (Step Time), torchtitan (tps), MaxText (completed step), nanotron, or JSON ("step_time")'
        )
    steady = times[max(round(WARM_UP * len(times)), min(FEWEST, len(times) - 1)) :]
    sizes = [number(size) * UNITS[unit or ("B" if '"' in one else "")] for one in DATA["memory"]
             for size, unit in re.findall(one, text)]  # fmt: skip
    return LoggedRun(
        framework,
        len(times),
        median(steady) if steady and not died else None,
        pstdev(steady) / median(steady) if len(steady) > 1 and not died else None,
        max(sizes, default=None),
        died,
    )


def number(text: str) -> float:
    """A number of a log: ``1,234.5``, or ``1.23K``; 0 for one that is none."""
    try:
        return float(text.rstrip("KM").replace(",", "")) * MULTIPLES.get(text[-1], 1.0)
    except ValueError:
        return 0.0
