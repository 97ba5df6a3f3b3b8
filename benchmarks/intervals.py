"""Intervals of predicted steps: `python benchmarks/intervals.py [MEASUREMENTS.csv ...] [-o FILE]`.

Evaluates every measured step, sorts the ratios of measured to predicted times by class, and writes the 90 %
interval of each class: the table of `dse.predictions`. Then it prints the share of rows that lie in
intervals made without them: without a tenth of the rows, or without all rows of a source, a machine, a release.
It also counts the kinds of the runs that ship; without files, it only counts these and keeps the intervals.

Runs of one source on one machine with one release share an error. The interval of a class is that of a run of
another such group: Student's interval of the mean of groups, with their variance and that of runs in a group.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import t as student

from costmodel import DesignPoints
from dse import predictions
from dse.predictions import (
    SCALES,
    MeasuredChip,
    kind_codes,
    kind_words,
    known_ends,
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
#: Weight of the usual variances in those of a class, as that of so many more groups, and rows.
USUAL_GROUPS = 4.0
USUAL_ROWS = 4.0
#: The table that ships.
TABLE = Path(predictions.__file__).with_suffix(".yaml")
#: Parts of the rows, each left out once.
FOLDS = 10


@dataclass(frozen=True, slots=True)
class Left:
    """A measured step: its classes by chip, the narrowest first, measured over predicted time, and its groups."""

    wider: Callable[[str], list[tuple[str, ...]]]
    ratio: float
    source: str
    machine: str
    release: str
    kind: tuple[str, ...]

    @property
    def classes(self) -> list[tuple[str, ...]]:
        """Classes of its own machine."""
        return self.wider(self.machine)

    @property
    def group(self) -> tuple[str, str, str]:
        """Source, machine and listed release, which share an error."""
        return self.source, self.machine, self.classes[0][0]


Classes = dict[tuple[str, ...], tuple[float, float, int]]


def chips_of(rows: Sequence[ComparedRow]) -> list[MeasuredChip]:
    """Chips of measured steps, each once, with the largest run of it."""
    found: list[MeasuredChip] = []
    for one in rows:
        run = expressed_row(one.row)
        system = run.machine.system
        place = next((at for at, chip in enumerate(found) if chip.found_in(system)), None)
        if place is None:
            peak, bandwidth = float(system.chip.peak_flop_rate), float(system.dram.bandwidth)
            links = float(system.chip.compute_capability), float(system.network[0].bandwidth)
            same = [chip for chip in found if chip.name == system.name]
            name = f"{system.name} at {bandwidth / 1e12:g} TB/s" if same else system.name
            found.append(MeasuredChip(name, peak, bandwidth, run.ranks, *links))
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
        wider = partial(wider_classes, framework, scale=scale, staged=staged, layers=layers)
        kind = (chip, *kind_words(run.model, codes_of(design)))
        source = re.split(r"[ ,(]", one.row.source.removeprefix("https://github.com/"))[0]
        names = {"MLPerf": "mlcommons", "mlcommons/training_results": "mlcommons"}
        source = next((name for start, name in names.items() if source.startswith(start)), source)
        found.append(Left(wider, one.measured_s / one.predicted_s, source, chip, framework, kind))
    return found


def codes_of(design: DesignPoints) -> list[int]:
    """Codes of the kind of a design."""
    return [int(column[0]) for column in kind_codes(design.columns())]


def kinds_of(rows: Sequence[ComparedRow], chips: Sequence[MeasuredChip]) -> dict[tuple[str, ...], int]:
    """Software, chip and kind of measured steps -> how many there are. [-]"""
    found: Counter[tuple[str, ...]] = Counter()
    for one in rows:
        run = expressed_row(one.row)
        design, system = run.design(), run.machine.system
        chip = next((chip.name for chip in chips if chip.found_in(system)), system.name)
        kind = kind_words(run.model, codes_of(design))
        found[(software_of(run.framework.name), chip, *kind)] += 1
    return dict(sorted(found.items()))


def timed_runs(paths: Iterable[Path]) -> list[ComparedRow]:
    """Steps of some tables that ran, with their predictions."""
    rows = compared([row for path in paths for row in read_table(path)])
    return [one for one in rows if one.ran and one.row.row_type == "train_step"]


def spreads(groups: Iterable[Sequence[float]]) -> tuple[float, int, float, int]:
    """Sums of squares of logarithms between groups and within them, with their degrees of freedom."""
    logs = [np.log(ratios) for ratios in groups]
    means = np.array([own.mean() for own in logs])
    within = sum(float(((own - own.mean()) ** 2).sum()) for own in logs)
    return float(((means - means.mean()) ** 2).sum()), means.size - 1, within, sum(map(len, logs)) - means.size


def usual_variances(members: Iterable[Mapping[tuple[str, ...], Sequence[float]]]) -> tuple[float, float]:
    """Medians over classes of several groups of the variances between and within groups."""
    sums = [spreads(groups.values()) for groups in members if len(groups) > 1]
    between = [square / degrees for square, degrees, _, _ in sums if degrees]
    within = [square / degrees for _, _, square, degrees in sums if degrees]
    return float(np.median(between or [0.01])), float(np.median(within or [0.01]))


def interval_of(groups: Iterable[Sequence[float]], usual: tuple[float, float]) -> tuple[float, float]:
    """Between which values a ratio of another group lies nine times of ten, the prediction itself included.

    Student's interval of the mean of the groups. Their variances are those of the class and the usual ones.
    """
    groups = list(groups)
    between, degrees, within, rows = spreads(groups)
    variance = (between + USUAL_GROUPS * usual[0]) / (degrees + USUAL_GROUPS)
    noise = (within + USUAL_ROWS * usual[1]) / (rows + USUAL_ROWS)
    middle = sum(float(np.log(own).mean()) for own in groups) / (len(groups) + 1)  # one more, without an error
    reach = np.sqrt(variance * (1 + 1 / len(groups)) + noise)
    ends = middle + reach * student.ppf([OUTSIDE, 1 - OUTSIDE], degrees + USUAL_GROUPS)
    low, high = np.exp(ends)
    return min(float(low), 1.0), max(float(high), 1.0)


def table(left: Iterable[Left]) -> Classes:
    """Low, high and rows of every class that has enough of them; that of all always is there."""
    members: dict[tuple[str, ...], dict[tuple[str, ...], list[float]]] = {}
    for row in left:
        for words in row.classes:
            members.setdefault(words, {}).setdefault(row.group, []).append(row.ratio)
    usual = usual_variances(members.values())
    counts = {words: sum(map(len, groups.values())) for words, groups in members.items()}
    return {
        words: (*interval_of(groups.values(), usual), counts[words])
        for words, groups in sorted(members.items())
        if counts[words] >= FEWEST or not words
    }


def left_out(left: Sequence[Left], parts: Sequence[object]) -> list[tuple[float, float, float]]:
    """Low, high and ratio of each row, by intervals made without the rows of its part."""
    ends: list[tuple[float, float, float]] = []
    for part in dict.fromkeys(parts):
        others = [row for row, own in zip(left, parts, strict=True) if own != part]
        classes, machines = table(others), {row.machine: None for row in others}
        for row in (row for row, own in zip(left, parts, strict=True) if own == part):
            ends.append((*known_ends(classes, row.wider, row.machine, machines), row.ratio))
    return ends


def coverage(ends: Sequence[tuple[float, float, float]]) -> str:
    """Share of rows in their intervals, of those in narrow ones, and the median of high over low, in words."""
    inside = np.array([low <= ratio <= high for low, high, ratio in ends])
    width = np.array([high / low for low, high, _ in ends])
    narrow = width < NARROW
    share = f"{inside[narrow].mean():.0%} of {narrow.sum()}" if narrow.any() else "none"
    return f"{inside.mean():.0%} inside; narrow ones (below {NARROW}): {share}; median width {np.median(width):.2f}"


#: High over low of narrow intervals.
NARROW = 1.3


def unseen(left: Sequence[Left]) -> dict[str, float]:
    """Factors that widen intervals of machines and kinds without rows, so that 95 % of the left-out rows lie inside.

    More than 90 %, since the constants of the cost model know rows that are left out here.
    """
    ends = [*left_out(left, [row.machine for row in left]), *left_out(left, [row.kind for row in left])]
    low = np.quantile([ratio / low for low, _, ratio in ends], OUTSIDE / 2)
    high = np.quantile([ratio / high for _, high, ratio in ends], 1 - OUTSIDE / 2)
    return {"low": round(min(float(low), 1.0), 2), "high": round(max(float(high), 1.0), 2)}


def main() -> int:
    """Write the table, print the coverage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="MEASUREMENTS.csv")
    parser.add_argument("--without", default=[], type=lambda text: text.split(","), help="data sets to leave out: A,B")
    parser.add_argument("-o", dest="out", type=Path, help="where to write the table; default: print it")
    args = parser.parse_args()
    data: dict[str, Any] = yaml.safe_load(TABLE.read_text())
    if args.files:
        rows = [one for one in timed_runs(args.files) if one.row.dataset not in args.without]
        chips = chips_of(rows)
        left = left_of(rows, chips)
        data |= {
            "chips": [asdict(chip) for chip in chips],
            "classes": [
                {"of": list(words), "rows": count, "low": round(low, 3), "high": round(high, 3)}
                for words, (low, high, count) in table(left).items()
            ],
        }
        data["unseen_chips"] = unseen(left)
        tenths = [int(place) % FOLDS for place in np.random.default_rng(0).permutation(len(left))]
        parts = {"tenth": tenths, **{of: [getattr(row, of) for row in left] for of in ("source", "machine", "release")}}
        for name, own in parts.items():
            print(f"{len(left)} steps, without those of its {name}: {coverage(left_out(left, own))}", file=sys.stderr)
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
