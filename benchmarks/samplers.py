"""How near each sampler comes to the best front of a space: ``python benchmarks/samplers.py [SPACE]``.

Each sampler runs a few studies of 500 trials. Printed is the share of the best front's hypervolume that
its designs dominate after 100 and after 500 trials: the median over the seeds, and the range. The best
front is exact, every legal design priced, where there are at most five million of them; else it is that of
all the studies together. Hypervolume is measured up to the front's own worst values and a tenth beyond,
where a design that is merely feasible counts for nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from costmodel.columns import FloatArray
from dse.fronts.hypervolume import Box
from dse.fronts.pareto import as_costs, non_dominated
from dse.pricing.evaluation import evaluate
from dse.search.samplers import SAMPLERS
from dse.search.study import Study
from dse.spaces.space import Space

#: Trials after which the share is read off.
MARKS = (100, 500)

#: Most legal designs that are priced one and all.
MOST_DESIGNS = 5e6


def exact_front(space: Space) -> FloatArray:
    """(points, objectives) costs of the feasible designs that no other beats."""
    directions = [objective.direction for objective in space.objectives]
    front = np.empty((0, len(directions)))
    for columns in space.legal.enumerate(65536):
        evaluation = evaluate(space, columns)
        front = better(front, as_costs(evaluation.values, directions)[evaluation.feasible])
    return front


def better(front: FloatArray, costs: FloatArray) -> FloatArray:
    """The distinct points of the front of a front and other points; infeasible ones are NaN."""
    both = np.concatenate([front, costs])
    return np.unique(both[non_dominated(both)], axis=0)


def run(space: Space, sampler: str, seed: int) -> tuple[FloatArray, float]:
    """(trials, objectives) costs of a study, NaN where infeasible, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{Path(folder)}/dse.db"
        study = Study.create(space, "benchmark", storage=storage, sampler=sampler, seed=seed)
        start = perf_counter()
        study.run(max(MARKS))
        return study.table.costs, perf_counter() - start


def shares(costs: FloatArray, front: FloatArray) -> FloatArray:
    """Share of a front's hypervolume at each mark. [-]"""
    around = Box.around(front)
    box = Box(around.ideal, around.ideal + 1.1 * (around.reference - around.ideal))
    history = box.history(costs)
    reached: FloatArray = history[np.minimum(MARKS, history.size) - 1] / box.hypervolume(front)
    return reached


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per sampler."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("space", nargs="?", default="gpt3_175b_1024_a100", help="shipped name or YAML file")
    parser.add_argument(
        "--samplers", nargs="+", choices=SAMPLERS, default=["nsga2", "nsga3", "tpe", "random"]
    )
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    space = Space.load(options.space)
    exact = space.legal.count <= MOST_DESIGNS
    front = exact_front(space) if exact else np.empty((0, len(space.objectives)))
    found = {name: [run(space, name, seed) for seed in range(options.seeds)] for name in options.samplers}
    for runs in found.values():
        for costs, _ in runs:
            front = better(front, costs)
    kind = "exact" if exact else "best known"
    print(f"{space.name}: {space.legal.count:,.0f} legal designs, {len(front)} on the {kind} front")
    print(f"{'sampler':10}" + "".join(f"{f'share at {mark}':>26}" for mark in MARKS) + f"{'seconds':>10}")
    for name, runs in found.items():
        table = np.array([shares(costs, front) for costs, _ in runs])
        told = [f"{np.median(c):.3f} [{c.min():.3f}, {c.max():.3f}]" for c in table.T]
        seconds = np.median([seconds for _, seconds in runs])
        print(f"{name:10}" + "".join(f"{text:>26}" for text in told) + f"{seconds:10.2f}")


if __name__ == "__main__":
    main()
