"""How near each sampler comes to the exact front of a space: ``python benchmarks/samplers.py [SPACE ...]``.

Each sampler runs some studies of 500 trials. Printed are, after 100, 200 and 500 trials, the share of the
front's hypervolume that its designs dominate (median over the seeds, and the worst), by how much the best
value of the first objective misses the best possible, how many designs of the front it has found, and the
CPU time of the studies. The front is exact, listed or by bounds, where that takes a minute or so; else it is
that of all the studies together and of one of 20 times the usual budget, and is called the best known.
Hypervolume is measured up to the front's own worst values and a tenth beyond, where a design that is merely
feasible counts for nothing. ``--picture FILE`` draws the shares over trials and over CPU time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from dse.api.study import Study
from dse.fronts.hypervolume import Box
from dse.fronts.pareto import non_dominated
from dse.pricing.evaluated import NATIVE, rules_for
from dse.searching.batches.loop import Progress
from dse.searching.exact.exact_front import exact_front
from dse.searching.samplers.samplers import SAMPLERS
from dse.spaces.space import Space

#: Trials after which shares are read off.
MARKS = (100, 200, 500)
#: Spaces with something to find, and the default one.
SPACES = (
    "gpt3_175b_1024_a100",
    "gpt3_175b_codesign",
    "gpt_1t_codesign",
    "gpt_1t_power_split",
    "gpt3_175b_kernels",
    "lstm_24b_power",
)
#: Most designs that are listed one by one.
MOST_LISTED = 5e6
#: How many times the usual trials the study has that stands in for an exact front.
LONGER = 20


@dataclass(frozen=True)
class Run:
    """One study: the costs of its trials, NaN where infeasible, and the CPU time after so many of them."""

    costs: FloatArray  #: (trials, objectives)
    trials: list[int]
    seconds: list[float]


def run(space: Space, sampler: str, seed: int, budget: int = MARKS[-1]) -> Run:
    """A study from its start to its end."""
    trials, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{Path(folder)}/dse.db"
        profile = profile_of(space)
        study = Study.create(space, "benchmark", storage=storage, sampler=sampler, seed=seed, profile=profile)
        start = process_time()

        def note(progress: Progress) -> None:
            trials.append(progress.complete)
            seconds.append(process_time() - start)

        study.run(budget, progress=note)
        return Run(study.table.costs, trials, seconds)


def profile_of(space: Space) -> str:
    """The native rules, or DFModel's first generation for a space that has its columns."""
    return "dfmodel-gen1" if "topology" in space.chosen else NATIVE


def reference_front(space: Space) -> tuple[FloatArray, str]:
    """Distinct costs of the best designs, and how they are known."""
    count, exact = space.legal.count, None
    if count <= MOST_LISTED:
        exact = exact_front(space, rules=rules_for(space, profile_of(space)), method="list")
    else:
        with suppress(DseError):  # bounds are not known of every space
            exact = exact_front(space, method="bounds")
    if exact is not None:
        return np.unique(exact.costs, axis=0), "exact"
    costs = run(space, "screening", 1000, LONGER * MARKS[-1]).costs
    return np.unique(costs[non_dominated(costs)], axis=0), "best known"


def box_of(front: FloatArray) -> Box:
    """Where the hypervolume of a front is measured."""
    around = Box.around(front)
    return Box(around.ideal, around.ideal + 1.1 * (around.reference - around.ideal))


def figures(found: Sequence[Run], front: FloatArray) -> dict[str, Any]:
    """What a line of the table says of the studies of one sampler."""
    box = box_of(front)
    histories = [box.history(each.costs) / box.hypervolume(front) for each in found]
    shares = np.array([[own[min(mark, own.size) - 1] for mark in MARKS] for own in histories])
    best = np.array([np.nanmin(each.costs[:, 0]) for each in found])
    ideal = front[:, 0].min()
    members = {row.tobytes() for row in front}
    return {
        "shares": shares,
        "misses": (best - ideal) / abs(ideal),
        "exact": int((best <= ideal).sum()),
        "found": int(np.median([len(members & {row.tobytes() for row in each.costs}) for each in found])),
        "seconds": float(np.median([each.seconds[-1] for each in found])),
    }


def told(name: str, figure: Mapping[str, Any], seeds: int) -> str:
    """One line of the table."""
    shares = "".join(f"{f'{np.median(column):.4f} ({column.min():.4f})':>18}" for column in figure["shares"].T)
    misses = f"{np.median(figure['misses']):.2%} ({np.max(figure['misses']):.2%})"
    best = f"{figure['exact']}/{seeds}"
    return f"{name:10}{shares}{misses:>18}{best:>8}{figure['found']:>8}{figure['seconds']:>8.2f}"


def measured(space: Space, samplers: Sequence[str], seeds: int) -> dict[str, list[Run]]:
    """Print the table of one space; its studies."""
    front, kind = reference_front(space)
    found = {name: [run(space, name, seed) for seed in range(seeds)] for name in samplers}
    if kind != "exact":
        everything = np.concatenate([front, *(each.costs for runs in found.values() for each in runs)])
        front = np.unique(everything[non_dominated(everything)], axis=0)
    print(f"\n{space.name}: {space.legal.count:,.0f} legal designs, {len(front)} points on the {kind} front")
    marks = "".join(f"{f'at {mark} (worst)':>18}" for mark in MARKS)
    print(f"{'sampler':10}{marks}{'fastest misses':>18}{'best in':>8}{'found':>8}{'CPU s':>8}")
    for name, runs in found.items():
        print(told(name, figures(runs, front), seeds), flush=True)
    box = box_of(front)
    scale = box.hypervolume(front)
    return {
        name: [Run(box.history(each.costs)[:, None] / scale, each.trials, each.seconds) for each in runs]
        for name, runs in found.items()
    }


def draw(spaces: Mapping[str, Mapping[str, Sequence[Run]]], file: Path) -> None:
    """Curves of the median share: above over trials, below over CPU time."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(spaces), figsize=(4 * len(spaces), 6), squeeze=False, sharey="col")
    for column, (space, samplers) in zip(axes.T, spaces.items(), strict=True):
        for name, runs in samplers.items():
            whole = [each for each in runs if each.trials == runs[0].trials]
            shares = np.median([each.costs[:, 0] for each in whole], axis=0)
            seconds = np.median([each.seconds[1:] for each in whole], axis=0)
            column[0].plot(np.arange(1, shares.size + 1), shares, label=name)
            column[1].plot(seconds, shares[np.array(runs[0].trials[1:]) - 1], marker=".", label=name)
        column[0].set(title=space, xlabel="trials", ylim=(0.7, 1.005))
        column[1].set(xlabel="CPU time [s]", xscale="log")
    axes[0, 0].set_ylabel("share of the front's hypervolume")
    axes[1, 0].set_ylabel("share of the front's hypervolume")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each space."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="*", default=SPACES, metavar="SPACE", help="shipped name or YAML file")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=["screening", "nsga2", "tpe", "random"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="SVG or PNG of the curves")
    options = parser.parse_args(arguments)
    spaces = [Space.load(name) for name in options.spaces]
    curves = {space.name: measured(space, options.samplers, options.seeds) for space in spaces}
    if options.picture:
        draw(curves, options.picture)


if __name__ == "__main__":
    main()
