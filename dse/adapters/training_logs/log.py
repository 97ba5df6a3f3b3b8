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
MULTIPLES: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def read_log(path: Path, tokens_of_gpu: float) -> dict[str, Any]:
    """Contents of the log of a run, as arguments of `dse.tuning.study_candidates.tell`, without unknown ones.

    The step time is the median of the steps after warm-up, its spread a standard deviation over it; the memory is that
    which the allocator reserved. `tokens_of_gpu` are the tokens of a step over the number of GPUs. [-]

    Raises `DseError` if the file cannot be read, has no lines that are known, one step, or steps after out of memory.
    """
    text = COLOURS.sub("", content(path).decode("utf-8", errors="replace"))
    died = max((match.end() for match in re.finditer(DATA["out_of_memory"], text)), default=0)
    framework, times = "", list[float]()
    for row in DATA["step_times"]:
        if positive := [value for value in numbers(row, text) if value > 0]:
            framework = row["framework"]
            times = [tokens_of_gpu / value if row.get("tokens") else value * row["factor"] for value in positive]
            if died and (later := len(numbers(row, text[died:]))):
                raise DseError(f"{path}: {later} steps after out of memory: report it by --failed oom or --step-time")
            break
    if len(times) < FEWEST and not died:
        few = "one step time, which includes warm-up: run more steps" if times else "no step time and no failure"
        raise DseError(f"{path}: {few}; looked for {DATA['looked_for']}")
    steady = times[max(round(WARM_UP * len(times)), min(FEWEST, len(times) - 1)) :]
    sizes = [size * row["factor"] for row in DATA["memory"] for size in numbers(row, text)]
    run = {"software": framework, "failed": OUT_OF_MEMORY if died else "", "peak_memory": max(sizes, default=None)}
    return run if died else {**run, "step_time": median(steady), "spread": pstdev(steady) / median(steady) or None}


def numbers(row: dict[str, Any], text: str) -> list[float]:
    """Numbers of all lines of one kind; no pattern is tried on a log without its word."""
    return [number(word) for word in re.findall(row["pattern"], text)] if row["word"] in text else []


def number(text: str) -> float:
    """A number of a log: ``1,234.5``, or ``1.23K``; 0 for one that is none, or too large for one."""
    try:
        value = float(text.rstrip("KMGT").replace(",", "")) * MULTIPLES.get(text[-1], 1.0)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
