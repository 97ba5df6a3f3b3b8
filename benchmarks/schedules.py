"""Pipelines timed per second: `python benchmarks/schedules.py`.

Times designs of several mixes in one process pinned to one thread. Each design has passes and messages of
its own, and a first and a last rank unlike the others. Printed are the first call, which draws up the
orders of the ranks, and the median of later ones.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
import time

import numpy as np

from costmodel import DesignPoints
from costmodel.columns import FloatArray
from costmodel.steps.pipeline.schedules import SCHEDULES, order
from costmodel.steps.pipeline.simulation import TimedPasses
from costmodel.steps.pipeline.timed_pipelines import design_pipelines, pipeline_ranks

POWERS: FloatArray = np.array([2.0**exponent for exponent in range(10)])
COUNTS: FloatArray = np.arange(1, 513).astype(np.float64)
#: Mix -> (schedules, ranks, chunks per rank, micro-batches).
MIXES: dict[str, tuple[list[str], FloatArray, FloatArray, FloatArray]] = {
    "1F1B, powers of two": (["1f1b"], POWERS[:6], POWERS[:1], POWERS[3:9]),
    "1F1B and interleaved, powers of two": (["1f1b"], POWERS[:6], np.array([1.0, 2, 3, 4, 6]), POWERS[3:9]),
    "every schedule, powers of two": (list(SCHEDULES), POWERS[:7], POWERS[:4], POWERS[3:]),
    "every schedule, any size": (list(SCHEDULES), COUNTS[:64], COUNTS[:8], COUNTS),
}


def designs(mix: str, points: int, rng: np.random.Generator) -> tuple[DesignPoints, TimedPasses]:
    """Legal designs of a mix, each with separate times."""
    words, ranks, chunks, steps = MIXES[mix]
    found: list[tuple[str, float, float, float]] = []
    while len(found) < points:
        p, v, m = (rng.choice(options, points) for options in (ranks, chunks, steps))
        for place, word in enumerate(rng.choice(words, points).tolist()):
            one = p[place : place + 1], v[place : place + 1], m[place : place + 1]
            if all(rule.met(*one, one[0]).all() for rule in SCHEDULES[word].rules):
                found.append((word, *(float(size[0]) for size in one)))
    word, *sizes = zip(*found[:points], strict=True)
    p, v, m = (np.array(column, dtype=np.float64) for column in sizes)
    scale = np.where(np.arange(int(p.max())) < p[:, np.newaxis], 1.0, 0.0)
    scale[:, 0] = rng.uniform(0.9, 1.1, points)
    scale[np.arange(points), p.astype(np.intp) - 1] = rng.uniform(0.9, 1.2, points)
    forward, backward, weight = rng.uniform(1, 2, (3, points, 1)) * scale
    message = rng.uniform(0, 0.3, points)
    passes = TimedPasses(
        forward=forward, backward=backward, weight=weight, pair=forward + backward + weight, message=message
    )
    return DesignPoints.of(schedule=list(word), pp=p, vpp=v, gradient_accumulation_steps=m), passes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000, help="designs to time (default 10,000)")
    parser.add_argument("--repeats", type=int, default=3, help="timed repetitions, of which the median counts")
    args = parser.parse_args()
    print(f"{'':38s}{'orders':>8s}{'first call':>14s}{'later calls':>14s}  designs/s")
    for mix in MIXES:
        asked = designs(mix, args.points, np.random.default_rng(0))
        order.cache_clear()
        seconds = []
        for _ in range(args.repeats + 1):
            start = time.perf_counter()
            pipeline_ranks(design_pipelines(*asked))
            seconds.append(time.perf_counter() - start)
        info, later = order.cache_info(), statistics.median(seconds[1:])
        drawn = info.misses // (args.repeats + 1) if info.misses > info.maxsize else info.misses  # type: ignore[operator]
        print(f"{mix:38s}{drawn:8,d}{args.points / seconds[0]:14,.0f}{args.points / later:14,.0f}")


if __name__ == "__main__":
    main()
