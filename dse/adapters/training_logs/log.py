"""Step times, peak memory and failures in the logs of training runs; `lines.yaml` has the lines that state them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import median, pstdev
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import content, data_beside
from dse.tuning.study_candidates import OUT_OF_MEMORY

DATA: Final[dict[str, Any]] = data_beside(__file__, "lines.yaml")
#: Share of the steps that is left out as warm-up, and fewest steps of it. [-]
WARM_UP, FEWEST = 0.2, 2
#: Colours of a terminal, as torchtitan prints them.
COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
MULTIPLES: Final = {"K": 1e3, "M": 1e6}


def read_log(path: Path, tokens_of_gpu: float) -> dict[str, Any]:
    """Contents of the log of a run, as arguments of `dse.tuning.study_candidates.tell`; None for unknown values.

    The step time is the median of the steps after warm-up, its spread a standard deviation over it; the memory is that
    which the allocator reserved. `tokens_of_gpu` are the tokens of a step over the number of GPUs. [-]

    Raises `DseError` if the file cannot be read, or has no lines that are known.
    """
    text = COLOURS.sub("", content(path).decode("utf-8", errors="replace"))
    died = re.search(DATA["out_of_memory"], text) is not None
    framework, times = "", list[float]()
    for row in DATA["step_times"]:
        if positive := [value for value in numbers(row, text) if value > 0]:
            framework = row["framework"]
            times = [tokens_of_gpu / value if row.get("tokens") else value * row["factor"] for value in positive]
            break
    if not times and not died:
        raise DseError(f"{path}: no step time and no failure; looked for {DATA['looked_for']}")
    steady = times[max(round(WARM_UP * len(times)), min(FEWEST, len(times) - 1)) :]
    sizes = [size * row["factor"] for row in DATA["memory"] for size in numbers(row, text)]
    known = steady if not died else []
    return {
        "software": framework,
        "failed": OUT_OF_MEMORY if died else "",
        "step_time": median(known) if known else None,
        "spread": pstdev(known) / median(known) or None if known else None,
        "peak_memory": max(sizes, default=None),
    }


def numbers(row: dict[str, Any], text: str) -> list[float]:
    """Numbers of all lines of one kind; no pattern is tried on a log without its word."""
    return [number(word) for word in re.findall(row["pattern"], text)] if row["word"] in text else []


def number(text: str) -> float:
    """A number of a log: ``1,234.5``, or ``1.23K``; 0 for one that is none, or too large for one."""
    try:
        value = float(text.rstrip("KM").replace(",", "")) * MULTIPLES.get(text[-1], 1.0)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
