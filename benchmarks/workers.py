"""Designs per second of an enumeration by its workers, or trials of a study: `python benchmarks/workers.py`.

Lists GPT-3 175B on 4,096 A100s with its switches open, millions of legal layouts, or a part of them, by one
process, by several, and by a Dask cluster of this machine where Dask is installed. A run before each starts
the workers; what it takes does not count.

`python benchmarks/workers.py --study gpt_1t_codesign` has one study searched by so many processes at once.
Printed are trials per second of wall clock, from when all are ready to when the last has ended, and the CPU
time of all of them together.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dse.api.study import Study
from dse.pricing.workers import Pricer, Workers
from dse.searching.exact.enumeration import CHUNK, unit_tally
from dse.searching.samplers.samplers import DEFAULT_SAMPLER
from dse.spaces.space import Space

SWITCH: list[object] = [False, True]
#: What the shipped space of 1,024 A100s is widened by.
OPEN: dict[str, list[object]] = {
    "micro_batch_size": [1, 2, 4, 8, 16, 32, 64],
    "vpp": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48],
    "schedule": ["gpipe", "1f1b", "breadth_first", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v"],
    "zero": [0, 1, 2, 3],
    "attention": ["unfused", "fused", "flash_attention_2"],
    **dict.fromkeys(("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "overlap_tp"), SWITCH),
    **dict.fromkeys(("reshard_after_forward", "count_embedding", "count_loss"), SWITCH),
    **dict.fromkeys(("recompute_core_attn", "recompute_layernorm", "recompute_mlp"), SWITCH),
}


def switches() -> Space:
    """GPT-3 175B on 4,096 A100s, every switch open."""
    data = dict(Space.load("gpt3_175b_1024_a100").data)
    parameters = {**data["parameters"], **OPEN}
    del parameters["distributed_optimizer"]  # ZeRO 1 by another name
    given = {name: value for name, value in data["given"].items() if name not in parameters}
    rules = {name: text for name, text in data["constraints"].items() if name != "sharded_optimizer_needs_dp"}
    rules["zero_needs_dp"] = "dp > 1 or zero == 0"
    more = {"world_size": 4096, "global_batch_size": 6144}
    return Space.from_text(
        json.dumps({**data, "parameters": parameters, "given": {**given, **more}, "constraints": rules})
    )


#: What each process of a study does; the tables of its space are made before the clock runs.
SEARCH = """
import sys, time
from dse.api.study import Study
study = Study.load("shared", storage=sys.argv[1])
study.space.legal.count
print("ready", flush=True)
sys.stdin.readline()
start = time.process_time()
study.run(int(sys.argv[2]))
print(time.process_time() - start)
"""


@contextmanager
def cluster(workers: int) -> Iterator[Workers]:
    """A Dask cluster of this machine."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as own:
        yield Workers(workers, "dask", own.scheduler_address)


def rate(space: Space, workers: Workers, designs: int) -> float:
    """Designs a second. [1/s]"""
    function = partial(unit_tally, Pricer.of(space), (0.0,) * len(space.objectives))
    list(workers.map(function, ranges(64 * workers.jobs, 64), ordered=False))
    start = time.perf_counter()
    list(workers.map(function, ranges(designs, CHUNK), ordered=False))
    return designs / (time.perf_counter() - start)


def ranges(count: int, step: int) -> list[tuple[int, tuple[int, int]]]:
    """Ranges of numbers below a count, each behind its own number."""
    return [*enumerate((low, min(low + step, count)) for low in range(0, count, step))]


def study_rate(space: str, sampler: str, trials: int, processes: int) -> tuple[float, float]:
    """Trials a second of processes that share a study, and the CPU time that they take. [1/s], [s]"""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/dse.db"
        Study.create(Space.load(space), "shared", storage=url, sampler=sampler)
        command = [sys.executable, "-c", SEARCH, url, str(trials)]
        pipe = subprocess.PIPE
        started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)]
        for process in started:
            assert process.stdout
            process.stdout.readline()
        start = time.perf_counter()
        for process in started:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        seconds = [float(process.communicate()[0]) for process in started]
        return trials / (time.perf_counter() - start), sum(seconds)


def studies(args: argparse.Namespace) -> None:
    """Measure how processes share a study, and print it."""
    print(f"{args.study}, {args.sampler}: {args.trials} trials, {os.cpu_count()} cores")
    for workers in args.workers:
        rate, seconds = study_rate(args.study, args.sampler, args.trials, workers)
        print(f"{workers} processes {rate:10.1f} trials/s {seconds:8.2f} s of CPU", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--designs", type=int, default=4_000_000, help="designs to list (default 4,000,000)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    parser.add_argument("--study", metavar="SPACE", help="search a study of this space instead")
    parser.add_argument("--sampler", default=DEFAULT_SAMPLER, help=f"of the study (default {DEFAULT_SAMPLER})")
    parser.add_argument("--trials", type=int, default=1000, help="of the study (default 1000)")
    args = parser.parse_args()
    if args.study:
        studies(args)
        return
    space = switches()
    designs = min(args.designs, int(space.legal.count))
    print(f"{designs:,} of {space.legal.count:,.0f} legal designs, {os.cpu_count()} cores")
    for workers in args.workers:
        print(f"{workers} processes {rate(space, Workers(workers), designs):14,.0f} designs/s", flush=True)
    try:
        import distributed  # noqa: F401
    except ImportError:
        print("dask is not installed")
        return
    for workers in args.workers:
        with cluster(workers) as own:
            print(f"{workers} of a cluster {rate(space, own, designs):12,.0f} designs/s", flush=True)


if __name__ == "__main__":
    main()
