"""Designs per second and seconds per search: `python benchmarks/speed.py`.

Prices random layouts of GPT-3 175B in one process pinned to one thread: with the hardware fixed, with the
best split of the kernels found for each design, with six hardware quantities that differ in every row, with
both, and every layout on every machine of some chips, networks and sizes of memory. Says what a call takes of
few designs. Prices legal designs of shipped spaces, widened so that all rows of a batch differ: a dense
model, one with shared sequences, and mixtures of experts. Then runs `dse --help` and `dse search` on a fresh
SQLite database as whole processes, start-up included, and says where a search spends its time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from costmodel import DesignPoints, ModelShape, System, load_model, load_system, step
from costmodel.training.design import SOLVE

SHARED_SEQUENCES: dict[str, list[object]] = {"cp": [1, 2, 4, 8], "cp_communication": ["p2p", "all_gather", "a2a"]}
STATES: dict[str, list[object]] = {
    "micro_batch_size": [1, 2, 4],
    "zero": [1, 2, 3],
    "overlap_grad_reduce": [False, True],
}
#: Space that ships -> parameters that it is widened by.
WIDENED: dict[str, dict[str, list[object]]] = {
    "llama3_70b_512_h100": {"micro_batch_size": [1, 2, 4, 8, 16, 32], "zero": [0, 2, 3]},
    "llama3_405b_16384_h100_131k": {
        "tp": [1, 2, 4, 8, 16],
        "cp": [1, 2, 4, 8, 16, 32, 64],
        "pp": [1, 2, 4, 8, 16, 32, 64],
        "micro_batch_size": [1, 2, 4, 8],
    },
    "mixtral_8x22b_128_h100": {**SHARED_SEQUENCES, **STATES},
    "qwen3_235b_256_gb200": {**SHARED_SEQUENCES, **STATES, "etp": [1, 2]},
    "deepseek_v3_2048_h800": {**SHARED_SEQUENCES, **STATES, "etp": [1, 2]},
}
#: Rules of those that have neither context parallelism nor `etp` without them.
RULES = {
    "experts_fill_a_stage": "tp * cp * dp % (ep * etp) == 0",
    "a2a_cuts_heads": "cp_communication != a2a or (num_attention_heads / tp % cp == 0"
    " and num_query_groups / tp % cp == 0)",
}

#: Layouts, chips, and networks with memories of a product of all with all.
PRODUCT = (200, 25, 40)
#: Designs of small calls, as searches make them.
SMALL = (20, 500)
#: Space of whole searches.
SEARCHED = "gpt3_175b_1024_a100"

OPENED = ("cores", "clock", "dram_bandwidth", "sram_capacity", "l2_capacity", "node_bandwidth")


def random_designs(points: int, rng: np.random.Generator) -> DesignPoints:
    """Layouts drawn column by column; pricing does not ask whether they divide."""
    return DesignPoints.of(
        tp=rng.choice([1, 2, 4, 8], points),
        pp=rng.choice([1, 2, 4, 8, 16, 32], points),
        vpp=rng.choice([1, 2, 3, 6], points),
        dp=rng.choice([4, 8, 16, 32], points),
        micro_batch_size=rng.choice([1, 2, 4, 8], points),
        gradient_accumulation_steps=rng.choice([8, 16, 32, 96], points),
        sequence_parallel=rng.integers(0, 2, points),
        recompute=rng.integers(0, 3, points),
        distributed_optimizer=rng.integers(0, 2, points),
    )


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call, after one that does not count. [s]"""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def pricing(points: int, repeats: int) -> None:
    """Print designs per second of the cost model."""
    rng = np.random.default_rng(0)
    model, system = load_model("gpt3_175b"), load_system("a100_80g_dgx")
    assert isinstance(model, ModelShape)
    designs = random_designs(points, rng)
    opened = {name: system.quantities()[name] * rng.uniform(0.5, 2.0, points) for name in OPENED}
    solved = replace(designs, sharding=designs.sharding * 0 + SOLVE)
    open_system, few = system.with_quantities(opened), slice(0, max(points // 20, 1))
    for what, machine, layouts in (
        ("fixed hardware", system, designs),
        ("sharding solved for each design", system, solved),
        ("hardware varying in every row", open_system, designs),
        ("sharding solved, hardware varying", open_system.take(few), solved.take(few)),
        ("layouts x chips x networks", *product(system, rng)),
    ):
        seconds = median_seconds(partial(step, model, machine, layouts), repeats)
        print(f"{what:36s} {layouts.num_points / seconds:12,.0f} designs/s")
    for count in SMALL:
        rows = slice(0, count)
        call = partial(step, model, open_system.take(rows), designs.take(rows))
        print(f"{f'a call of {count} designs':36s} {1e3 * median_seconds(call, repeats):12.1f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'peak memory of this process':36s} {peak:12,.0f} MiB for {points:,} designs")


def product(system: System, rng: np.random.Generator) -> tuple[System, DesignPoints]:
    """Every layout on every machine: some chips, and some networks with a size of memory."""
    sizes = PRODUCT
    layout, chip, network = (axis.ravel() for axis in np.indices(sizes))
    known = system.quantities()
    of_chips = [name for name in OPENED if name != "node_bandwidth"]
    drawn = {name: (known[name] * rng.uniform(0.5, 2.0, sizes[1]))[chip] for name in of_chips}
    for name in ("node_bandwidth", "fabric_bandwidth", "dram_capacity"):
        drawn[name] = (known[name] * rng.uniform(0.5, 2.0, sizes[2]))[network]
    return system.with_quantities(drawn), random_designs(sizes[0], rng).take(layout)


def legal_designs(name: str, points: int) -> tuple[ModelShape, System, DesignPoints]:
    """Random legal designs of a widened space, each different."""
    from dse import Space

    data = dict(Space.load(name).data)
    more = WIDENED[name]
    data["parameters"] = {**data["parameters"], **more}
    data["given"] = {key: value for key, value in data["given"].items() if key not in more}
    if "zero" in more:  # `distributed_optimizer` is zero: 1 by another name
        data["parameters"].pop("distributed_optimizer", None)
        data["constraints"] = {
            name: rule for name, rule in data["constraints"].items() if name != "sharded_optimizer_needs_dp"
        }
    if "ep" in data["parameters"]:
        data["derived"] = {**data["derived"], "dp": "world_size / (tp * cp * pp)"}
        data["constraints"] = {**data["constraints"], **RULES}
    space = Space.from_text(json.dumps(data))
    assert isinstance(space.model, ModelShape)
    drawn = space.legal.random(2 * points, np.random.default_rng(0))
    rows = np.sort(np.unique(np.stack([*drawn.values()]), axis=1, return_index=True)[1])[:points]
    values = space.known_values({key: column[rows] for key, column in drawn.items()})
    known = DesignPoints.domains(space.model.blocks)
    own = {key: value for key, value in values.items() if key in known}
    return space.model, space.system, DesignPoints.of(blocks=space.model.blocks, **own)


def spaces(points: int, repeats: int) -> None:
    """Print designs per second of widened spaces, on fixed hardware."""
    for name in WIDENED:
        model, system, designs = legal_designs(name, points)
        seconds = median_seconds(partial(step, model, system, designs), repeats)
        count = designs.num_points
        print(f"{name:32s} {count / seconds:12,.0f} designs/s, {count:,} that differ")


def commands(repeats: int) -> float:
    """Print seconds of whole processes; those of a search are returned. [s]"""
    dse = [sys.executable, "-m", "dse"]
    print(f"{'dse --help':32s} {median_seconds(lambda: run([*dse, '--help']), repeats):12.2f} s")

    def fresh_search() -> None:
        with tempfile.TemporaryDirectory() as folder:
            run([*dse, "search", SEARCHED, "--budget", "500"], folder)

    seconds = median_seconds(fresh_search, repeats)
    print(f"{'dse search ' + SEARCHED:32s} {seconds:12.2f} s for 500 trials")
    return seconds


def run(command: Sequence[str], folder: str | Path | None = None) -> None:
    """Run a command quietly."""
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def search_parts(process_seconds: float) -> None:
    """Print how a search in this process divides its time, and what of a whole process that leaves."""
    from dse import Space, Study

    with tempfile.TemporaryDirectory() as folder:
        study = Study.open(Space.load(SEARCHED), storage=f"sqlite:///{folder}/dse.db")
        seconds = study.run(500).seconds
    rest = {"start-up and report": process_seconds - sum(seconds.values())}
    print("of which " + ", ".join(f"{name} {value:.2f} s" for name, value in {**seconds, **rest}.items()))
    outside = 1 - (seconds["sampling"] + seconds["evaluation"]) / process_seconds
    print(f"{'outside sampling and evaluation':32s} {outside:12.0%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=200_000, help="designs to price (default 200,000)")
    parser.add_argument("--repeats", type=int, default=5, help="timed repetitions, of which the median counts")
    args = parser.parse_args()
    pricing(args.points, args.repeats)
    spaces(args.points, args.repeats)
    search_parts(commands(args.repeats))


if __name__ == "__main__":
    main()
