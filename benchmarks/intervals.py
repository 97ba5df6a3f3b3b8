"""Intervals of predicted steps: `python benchmarks/intervals.py [MEASUREMENTS.csv ...] [-o FILE]`.

Evaluates every measured step, sorts the ratios of measured to predicted times by class, and writes the 90 %
interval of each class: the table of `dse.predictions.intervals`. Then it prints the share of rows that lie in
intervals made without them, ten times a tenth of the rows left out. It also counts the kinds of the runs that
ship; without files, it only counts these and keeps the intervals.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import t as student

from dse import predictions
from dse.predictions.intervals import (
    SCALES,
    MeasuredChip,
    kind_codes,
    kind_words,
    layer_word,
    scale_codes,
    software_of,
    wider_classes,
)
from dse.validation.comparison import ComparedRow, compared
from dse.validation.rows import expressed_row
from dse.validation.table import SHIPPED, read_table

#: Fewest rows of which a class is made, and share of them outside on either side.
FEWEST = 6
OUTSIDE = 0.05
#: Rows of a class that has quantiles of its own.
MANY = 39
#: The table that ships. It keeps how far chips were off before a step of theirs was used (`unseen_chips`),
#: which shipped constants show no more.
TABLE = Path(predictions.__file__).with_name("residuals.yaml")
#: Parts of the rows, each left out once.
FOLDS = 10

#: The classes of a row, the narrowest first, and measured over predicted time.
Left = tuple[list[tuple[str, ...]], float]


def chips_of(rows: Sequence[ComparedRow]) -> list[MeasuredChip]:
    """Chips of measured steps, each once, with the largest run of it."""
    found: list[MeasuredChip] = []
    for one in rows:
        run = expressed_row(one.row)
        system = run.machine.system
        place = next((at for at, chip in enumerate(found) if chip.found_in(system)), None)
        if place is None:
            peak, bandwidth = float(system.chip.peak_flop_rate), float(system.dram.bandwidth)
            same = [chip for chip in found if chip.name == system.name]
            name = f"{system.name} at {bandwidth / 1e12:g} TB/s" if same else system.name
            found.append(MeasuredChip(name, peak, bandwidth, run.ranks))
        elif run.ranks > found[place].largest:
            found[place] = replace(found[place], largest=run.ranks)
    return found


def left_of(rows: Sequence[ComparedRow], chips: Sequence[MeasuredChip]) -> list[Left]:
    """Classes and ratio of each measured step."""
    found: list[Left] = []
    for one in rows:
        run = expressed_row(one.row)
        system, design = run.machine.system, run.design()
        scale = SCALES[int(scale_codes(system, design.tp, design.world_size)[0])]
        layers = layer_word(int(design.precision[0]), experts=run.model.num_experts > 0)
        chip = next(chip.name for chip in chips if chip.found_in(system))
        framework, staged = run.framework.name, bool(design.pp[0] > 1)
        classes = wider_classes(framework, chip, scale, staged=staged, layers=layers)
        found.append((classes, one.measured_s / one.predicted_s))
    return found


def kinds_of(rows: Sequence[ComparedRow], chips: Sequence[MeasuredChip]) -> dict[tuple[str, ...], int]:
    """Software, chip and kind of measured steps -> how many there are. [-]"""
    found: Counter[tuple[str, ...]] = Counter()
    for one in rows:
        run = expressed_row(one.row)
        design, system = run.design(), run.machine.system
        codes = kind_codes(design.precision, design.schedule, design.pp, design.cp, design.overlap_ep)
        chip = next((chip.name for chip in chips if chip.found_in(system)), system.name)
        kind = kind_words(run.model, [int(column[0]) for column in codes])
        found[(software_of(run.framework.name), chip, *kind)] += 1
    return dict(sorted(found.items()))


def timed_runs(paths: Iterable[Path]) -> list[ComparedRow]:
    """Steps of some tables that ran, with their predictions."""
    rows = compared([row for path in paths for row in read_table(path)])
    return [one for one in rows if one.ran and one.row.row_type == "train_step"]


def quantiles(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which values the next one lies nine times of ten, the prediction itself included.

    Of many the order statistics of one more; of few Student's prediction interval of their logarithms.
    """
    if len(ratios) >= MANY:
        ordered = np.sort(ratios)
        place = int((len(ordered) + 1) * OUTSIDE) - 1
        low, high = float(ordered[place]), float(ordered[-1 - place])
    else:
        logs = np.log(ratios)
        spread = logs.std(ddof=1) * np.sqrt(1 + 1 / logs.size) * student.ppf(1 - OUTSIDE, logs.size - 1)
        low, high = (float(np.exp(logs.mean() + sign * spread)) for sign in (-1, 1))
    return min(low, 1.0), max(high, 1.0)


def table(left: Iterable[Left]) -> dict[tuple[str, ...], tuple[float, float, int]]:
    """Low, high and rows of every class that has enough of them; that of all always is there."""
    members: dict[tuple[str, ...], list[float]] = {}
    for classes, ratio in left:
        for words in classes:
            members.setdefault(words, []).append(ratio)
    return {
        words: (*quantiles(ratios), len(ratios))
        for words, ratios in sorted(members.items())
        if len(ratios) >= FEWEST or not words
    }


def coverage(left: Sequence[Left]) -> float:
    """Share of rows that lie in intervals made without them. [-]"""
    rng, inside = np.random.default_rng(0), 0
    for out in np.array_split(rng.permutation(len(left)), FOLDS):
        own = table(row for place, row in enumerate(left) if place not in {*out.tolist()})
        for place in out:
            classes, ratio = left[place]
            low, high, _ = own[next(words for words in classes if words in own)]
            inside += low <= ratio <= high
    return inside / len(left)


def main() -> int:
    """Write the table, print the coverage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="MEASUREMENTS.csv")
    parser.add_argument("-o", dest="out", type=Path, help="where to write the table; default: print it")
    args = parser.parse_args()
    data: dict[str, Any] = yaml.safe_load(TABLE.read_text())
    if args.files:
        rows = timed_runs(args.files)
        chips = chips_of(rows)
        left = left_of(rows, chips)
        data |= {
            "chips": [asdict(chip) for chip in chips],
            "classes": [
                {"of": list(words), "rows": count, "low": round(low, 3), "high": round(high, 3)}
                for words, (low, high, count) in table(left).items()
            ],
        }
        share = coverage(left)
        print(f"{len(left)} steps; {share:.1%} lie in intervals made without them", file=sys.stderr)
    measured = [MeasuredChip(**chip) for chip in data["chips"]]
    data["kinds"] = [
        {"of": list(words), "runs": count} for words, count in kinds_of(timed_runs(SHIPPED), measured).items()
    ]
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)
    if args.out:
        args.out.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
