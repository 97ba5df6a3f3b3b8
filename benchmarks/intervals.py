"""Intervals of predicted steps: `python benchmarks/intervals.py MEASUREMENTS.csv [...] [-o FILE]`.

Prices every measured step, sorts what is left of it by class, and writes between which multiples of the
predicted time nine in ten of each class lie: the table of `dse.predictions.intervals`. Then it prints how
many rows lie in intervals that are made without them, ten times a tenth of the rows left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import yaml

from dse.predictions.intervals import LAYERS, SCALES, layer_codes, scale_codes, wider_classes
from dse.validation.comparison import ComparedRow, compared
from dse.validation.frameworks import convention_of
from dse.validation.rows import expressed_row
from dse.validation.table import read_table

#: Fewest rows of which a class is made, and share of them outside on either side.
FEWEST = 10
OUTSIDE = 0.05
#: How far chips were off before a step of theirs was used, which shipped constants show no more.
UNSEEN = {"low": 0.94, "high": 1.56}
#: Parts of the rows, each left out once.
FOLDS = 10

#: The words of the narrowest class of a row, and measured over predicted time.
Left = tuple[tuple[str, ...], float]


def left_of(rows: Sequence[ComparedRow]) -> list[tuple[Left, str, float]]:
    """Class and ratio of each measured step, with its system and chips."""
    found = []
    for one in rows:
        if not (one.is_step and one.ran):
            continue
        run = expressed_row(one.row)
        system, design = run.machine.system, run.design()
        scale = SCALES[int(scale_codes(system, design.tp, design.world_size)[0])]
        layers = LAYERS[int(layer_codes(design.precision, experts=run.model.num_experts > 0)[0])]
        words = wider_classes(convention_of(one.row).framework, scale, bool(design.pp[0] > 1), layers)[0]
        found.append(((words, one.measured_s / one.predicted_s), str(run.machine.name), run.ranks))
    return found


def quantiles(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which values the next one lies nine times of ten: order statistics of n + 1 [Vovk2005]_."""
    ordered = np.sort(ratios)
    place = max(int(np.floor((len(ordered) + 1) * OUTSIDE)) - 1, 0)
    return float(ordered[place]), float(ordered[-1 - place])


def table(left: Iterable[Left]) -> dict[tuple[str, ...], tuple[float, float, int]]:
    """Low, high and rows of every class that has enough of them; that of all always is there."""
    members: dict[tuple[str, ...], list[float]] = {}
    for words, ratio in left:
        for wider in wider_classes(words[0], words[1], words[2] == "stages", words[3]):
            members.setdefault(wider, []).append(ratio)
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
            words, ratio = left[place]
            wider = wider_classes(words[0], words[1], words[2] == "stages", words[3])
            low, high, _ = own[next(words for words in wider if words in own)]
            inside += low <= ratio <= high
    return inside / len(left)


def main() -> int:
    """Write the table, print the coverage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="MEASUREMENTS.csv")
    parser.add_argument("-o", dest="out", type=Path, help="where to write the table; default: print it")
    args = parser.parse_args()
    found = left_of(compared([row for path in args.files for row in read_table(path)]))
    left = [row for row, _, _ in found]
    chips: dict[str, float] = {}
    for _, system, ranks in found:
        chips[system] = max(chips.get(system, 0.0), ranks)
    data = {
        "level": 1 - 2 * OUTSIDE,
        "chips": {name: int(ranks) for name, ranks in sorted(chips.items())},
        "unseen_chips": UNSEEN,
        "classes": [
            {"of": list(words), "rows": rows, "low": round(low, 3), "high": round(high, 3)}
            for words, (low, high, rows) in table(left).items()
        ],
    }
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)
    if args.out:
        args.out.write_text(text)
    else:
        sys.stdout.write(text)
    print(f"{len(left)} steps; {coverage(left):.1%} lie in intervals made without them", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
