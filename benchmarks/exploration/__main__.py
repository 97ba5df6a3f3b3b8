"""Score samplers: ``python -m benchmarks.exploration [SPACE ...] [--samplers NAME ...]``.

Each sampler has runs of `--budget` evaluations with `--seeds` seeds on each space. Printed are the share of the exact
front's hypervolume that its designs dominate (median of the seeds, and the worst), by how much its best value of the
first objective misses the best possible (median, worst), in how many runs it has the best, CPU time, and designs
evaluated. Hypervolume counts up to a tenth beyond the front's worst values.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.exploration.fronts import Front, certify, load
from benchmarks.exploration.problem import SPACES, Problem
from benchmarks.exploration.samplers import SAMPLERS, run

COLUMNS = ("space", "half", "sampler", "share", "worst", "misses", "worst_miss", "best", "cpu_s", "evaluations")


def scored(problems: Sequence[tuple[Problem, float]], front: Front) -> dict[str, Any]:
    """Row of a sampler on a space, from its runs and their CPU times. [-], [s]"""
    box, ideal = front.box, front.costs[:, 0].min()
    whole = box.hypervolume(front.costs)
    shares = [box.hypervolume(problem.costs[~np.isnan(problem.costs[:, 0])]) / whole for problem, _ in problems]
    best = np.array([np.nanmin(problem.costs[:, 0], initial=np.inf) for problem, _ in problems])
    misses = best / ideal - 1
    return {
        "share": float(np.median(shares)),
        "worst": min(shares),
        "misses": float(np.median(misses)),
        "worst_miss": float(misses.max()),
        "best": f"{int((misses <= 1e-12).sum())}/{len(problems)}",
        "cpu_s": float(np.median([seconds for _, seconds in problems])),
        "evaluations": int(np.median([problem.evaluations for problem, _ in problems])),
    }


def rows(spaces: Sequence[str], samplers: Sequence[str], seeds: int, budget: int) -> Iterator[dict[str, Any]]:
    """A row for each sampler on each space; samplers whose library is missing are named once on stderr."""
    absent: set[str] = set()
    for space in spaces:
        front = load(space)
        for sampler in samplers:
            problems = []
            for seed in range(seeds) if sampler not in absent else ():
                start = process_time()
                try:
                    problem = run(sampler, space, seed, budget)
                except ImportError as error:
                    print(f"{sampler}: left out: {error}", file=sys.stderr)
                    absent.add(sampler)
                    break
                problems.append((problem, process_time() - start))
            if problems:
                yield {"space": space, "half": SPACES[space]["half"], "sampler": sampler, **scored(problems, front)}


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    return (
        f"{row['space']:32} {row['sampler']:13} {row['share']:7.4f} ({row['worst']:.4f}) "
        f"{row['misses']:9.2%} ({row['worst_miss']:.2%}) {row['best']:>6} {row['cpu_s']:7.1f} {row['evaluations']:9,}"
    )


def summary(table: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Means of each sampler over the spaces of each half."""
    for half in ("develop", "report"):
        for sampler in dict.fromkeys(row["sampler"] for row in table):
            of_half = [row for row in table if (row["half"], row["sampler"]) == (half, sampler)]
            if of_half:
                share, best = np.mean([row["share"] for row in of_half]), [row["best"].split("/") for row in of_half]
                hit = sum(int(count) for count, _ in best) / sum(int(runs) for _, runs in best)
                seconds = np.mean([row["cpu_s"] for row in of_half])
                yield f"{half:8} {sampler:13} {share:7.4f} of the hypervolume, the best in {hit:4.0%}, {seconds:.1f} s"


def draw(table: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Share of each sampler on each space, as points on a line a space."""
    import matplotlib.pyplot as plt

    spaces = [*dict.fromkeys(row["space"] for row in table)]
    figure, axes = plt.subplots(figsize=(9, 0.3 * len(spaces) + 1.5))
    for sampler in dict.fromkeys(row["sampler"] for row in table):
        own = [row for row in table if row["sampler"] == sampler]
        axes.plot([row["share"] for row in own], [spaces.index(row["space"]) for row in own], "o", label=sampler)
    axes.set_yticks(range(len(spaces)), spaces)
    axes.set(xlabel="share of the exact front's hypervolume, median of the seeds", xlim=(-0.02, 1.02))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower left")
    figure.tight_layout()
    figure.savefig(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or certify fronts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="*", metavar="SPACE", help="name in spaces.yaml (default: all)")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=["screening", "nsga2", "random"])
    parser.add_argument("--half", choices=("develop", "report"), help="spaces of one half")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=500)
    parser.add_argument("--certify", action="store_true", help="compute the fronts again and store them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="SVG or PNG of the shares")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.spaces if name not in SPACES]:
        parser.error(f"no such space: {', '.join(unknown)}; there are {', '.join(SPACES)}")
    spaces = [name for name in options.spaces or SPACES if options.half in (None, SPACES[name]["half"])]
    if options.certify:
        for name in spaces:
            front = certify(name)
            print(f"{name}: {front.legal:,.0f} legal designs, {len(front.costs)} points on the front, {front.proof}")
        return
    table = []
    for row in rows(spaces, options.samplers, options.seeds, options.budget):
        table.append(row)
        print(line(row), flush=True)
    print("\n".join(summary(table)))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    if options.picture:
        draw(table, options.picture)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(str(error))
