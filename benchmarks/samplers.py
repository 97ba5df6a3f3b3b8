"""How near each sampler comes to the exact front of a space: ``python benchmarks/samplers.py [SPACE]``.

Every legal design is priced for the exact front. Then each sampler runs a few studies of 500 trials, and
the share of the exact front's hypervolume that its designs dominate is printed, after 100 and after 500
trials: the median over the seeds, and the range. Hypervolume is measured up to the front's own worst
values and a tenth beyond, where a design that is merely feasible counts for nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from costmodel.columns import FloatArray
from dse.evaluate import evaluate
from dse.hypervolume import Box
from dse.pareto import as_costs, non_dominated
from dse.samplers import SAMPLERS
from dse.space import Space
from dse.study import Study

#: Trials after which the share is read off.
MARKS = (100, 500)


def exact_front(space: Space) -> FloatArray:
    """(points, objectives) costs of the feasible designs that no other beats."""
    directions = [objective.direction for objective in space.objectives]
    front = np.empty((0, len(directions)))
    for columns in space.legal.enumerate(65536):
        evaluation = evaluate(space, columns)
        costs = as_costs(evaluation.values, directions)[evaluation.feasible]
        front = np.concatenate([front, costs])
        front = front[non_dominated(front)]
    return front


def box_of(front: FloatArray) -> Box:
    """From the front's best values to a tenth beyond its worst."""
    box = Box.around(front)
    return Box(box.ideal, box.ideal + 1.1 * (box.reference - box.ideal))


def shares(space: Space, sampler: str, seed: int, box: Box) -> tuple[FloatArray, float]:
    """Hypervolume at each mark, and the seconds that the search took."""
    with tempfile.TemporaryDirectory() as folder:
        study = Study.create(
            space, "benchmark", storage=f"sqlite:///{Path(folder)}/dse.db", sampler=sampler, seed=seed
        )
        start = perf_counter()
        study.run(max(MARKS))
        seconds = perf_counter() - start
        history = box.history(study.table.costs)
    return history[np.minimum(MARKS, history.size) - 1], seconds


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
    front = exact_front(space)
    box = box_of(front)
    exact = box.hypervolume(front)
    print(f"{space.name}: {space.legal.count:,.0f} legal designs, {len(front)} on the exact front")
    print(f"{'sampler':10}" + "".join(f"{f'share at {mark}':>26}" for mark in MARKS) + f"{'seconds':>10}")
    for sampler in options.samplers:
        runs = [shares(space, sampler, seed, box) for seed in range(options.seeds)]
        table = np.array([found for found, _ in runs]) / exact
        told = [f"{np.median(c):.3f} [{c.min():.3f}, {c.max():.3f}]" for c in table.T]
        print(
            f"{sampler:10}" + "".join(f"{t:>26}" for t in told) + f"{np.median([s for _, s in runs]):10.2f}"
        )


if __name__ == "__main__":
    main()
