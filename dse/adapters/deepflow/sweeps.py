"""Sweeps of set-ups: every combination of the values that options of `dse evaluate --set` list, fastest first.

A combination is read as a set-up of its own, so that DeepFlow's own rules say which ones it can run. All that it can
are evaluated in one batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.errors import DseError
from dse.adapters.deepflow.setups import ChipSetup, read_setup
from dse.adapters.deepflow.summaries import runs, setup_figures

#: Combinations of a sweep at most. [-]
MOST: Final = 5000
#: Figures of a design in a sweep beside its time, which people trade against it.
TRADED: Final = ("core.tot_area", "core.tot_power", "hw.throughput")


def listed(text: str) -> list[str]:
    """Values of an option: ``"2,4,8"``, or ``"36:132:12"`` from the first to the last in steps.

    >>> listed("CR"), listed("2,4"), listed("36:60:12")
    (['CR'], ['2', '4'], ['36', '48', '60'])
    """
    if len(parts := text.split(":")) != 3:
        return text.split(",")
    from dse.pricing.sweep import stepped  # loads all of spaces

    try:
        values = stepped(parts, "-", MOST)
    except ValueError as error:
        example = "2,4,8 or first:last:step, such as 36:132:12"
        raise DseError(f"--set {text!r}: {error}; expected values such as {example}") from None
    if len(values) > MOST:
        raise DseError(f"--set {text!r}: at most {MOST:,} values")
    return [str(value) for value in values]


def sweep(
    path: Path, generation: str, model_path: Path | None, values: Mapping[str, list[str]], note: Callable[[str], None]
) -> dict[str, Any]:
    """Designs of a sweep, the fastest first, and the number of those that DeepFlow cannot run by reason.

    `values` are those of each option; `note` takes each line that is said of set-ups, once. Times are in s, areas in
    mm2, powers in W, throughputs in TFLOP/s. Raises `DseError` if there are more than `MOST` combinations, or DeepFlow
    can run none.
    """
    if (number := math.prod(map(len, values.values()))) > MOST:
        raise DseError(f"--set: {number:,} combinations; at most {MOST:,}")
    refused, batches = Counter[str](), dict[str, list[tuple[dict[str, str], ChipSetup]]]()
    for chosen in product(*values.values()):
        options = dict(zip(values, chosen, strict=True))
        try:
            setup = read_setup(path, generation, model_path, options)
        except DseError as error:
            refused[str(error)] += 1
        else:
            batches.setdefault(setup.mode, []).append((options, setup))
    designs = []
    for line in dict.fromkeys(line for batch in batches.values() for _, setup in batch for line in setup.notes):
        note(line)
    for batch in batches.values():
        first, sheets = batch[0][1], [setup.sheet for _, setup in batch]
        whole = replace(first, sheet={name: np.concatenate([sheet[name] for sheet in sheets]) for name in first.sheet})
        figures = setup_figures(whole)
        for row, why in enumerate(runs(whole, figures)):
            if why:
                refused[why] += 1
                continue
            numbers = {name: float(np.broadcast_to(figures[name], (len(batch),))[row]) for name in ("Time", *TRADED)}
            designs.append(batch[row][0] | numbers)
    if not designs:
        raise DseError(refused.most_common(1)[0][0])
    return {"designs": sorted(designs, key=lambda design: design["Time"]), "refused": dict(refused)}
