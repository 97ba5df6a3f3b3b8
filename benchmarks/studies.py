"""What large studies cost: ``python benchmarks/studies.py [--trials 100000] [--search nsga2]``.

A study of random legal designs is written, then each command reads it in a process of its own. Printed is
the CPU time of the process and the most memory that it held. With ``--search`` a study is searched by that
sampler instead; printed is the CPU time of a trial, evaluation and storage included, as the study grows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from time import process_time

import numpy as np
from optuna.trial import FrozenTrial, TrialState, create_trial

from dse.api.study import Study
from dse.pricing.evaluation import evaluate
from dse.searching.batches.loop import Progress
from dse.searching.samplers.samplers import SAMPLERS
from dse.searching.trials.trial_table import finite, trial_attributes
from dse.spaces.space import Space
from dse.storage.optuna_store import Store

#: Trials that are written in one transaction.
BLOCK = 1000

#: What reads the study, as arguments of ``dse``; DSE_STORAGE says where it is.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("studies",),
    ("show", "large"),
    ("show", "large", "--format", "json"),
    ("show", "large", "--trials", "--format", "csv"),
    ("show", "large", "--trials", "--format", "parquet", "-o", "trials.parquet"),
    ("show", "large", "--trials", "--format", "json"),
    ("show", "large", "--trials"),
    ("resume", "large", "--budget"),
)


def random_trials(space: Space, count: int) -> Iterator[list[FrozenTrial]]:
    """Finished trials of random legal designs, by blocks."""
    rng = np.random.default_rng(0)
    distributions = {parameter.name: parameter.distribution for parameter in space.parameters}
    minimize = np.array([objective.direction == "minimize" for objective in space.objectives])
    for first in range(0, count, BLOCK):
        columns = space.legal.random(min(BLOCK, count - first), rng)
        evaluation = evaluate(space, columns)
        values, violations = finite(evaluation, minimize)
        rows = zip(
            space.decode(columns),
            values.tolist(),
            violations.tolist(),
            trial_attributes(space, evaluation),
            strict=True,
        )
        yield [
            create_trial(
                params=params,
                distributions=distributions,
                values=row,
                user_attrs=dict(attributes),
                constraints={limit.key: v for limit, v in zip(space.limits, violation, strict=True)},
            )
            for params, row, violation, attributes in rows
        ]


def written(space: Space, count: int, storage: str) -> None:
    """Write a study of random designs."""
    Study.create(space, "large", storage=storage, sampler="random")
    with Store(storage, "write") as store:
        study_id = store.study("large").study_id
        for place, trials in enumerate(random_trials(space, count)):
            assert store.append(study_id, trials, after=place * BLOCK)
            assert all(trial.state == TrialState.COMPLETE for trial in trials)


def measured(arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """CPU time [s] and peak memory [MiB] of one command."""
    environment = {**os.environ, "DSE_STORAGE": f"sqlite:///{folder}/dse.db"}
    command = [sys.executable, "-m", "dse", *arguments]
    process = Popen(command, cwd=folder, env=environment, stdout=DEVNULL, stderr=DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def search(space: Space, sampler: str, count: int, storage: str) -> None:
    """Print the CPU time of a trial in each tenth of a search."""
    start, before = process_time(), 0

    def report(progress: Progress) -> None:
        nonlocal start, before
        if progress.complete - before >= count / 10:
            share = (process_time() - start) / (progress.complete - before)
            print(f"{sampler:12}{progress.complete:>10,} trials {share * 1e3:10.2f} ms a trial", flush=True)
            start, before = process_time(), progress.complete

    Study.create(space, sampler, storage=storage, sampler=sampler).run(count, progress=report)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per command, or per tenth of a search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="gpt_1t_codesign", help="shipped name or YAML file")
    parser.add_argument("--trials", type=int, default=50_000)
    parser.add_argument("--search", choices=SAMPLERS, help="search with this sampler instead")
    options = parser.parse_args(arguments)
    space = Space.load(options.space)
    with tempfile.TemporaryDirectory() as name:
        storage = f"sqlite:///{name}/dse.db"
        if options.search:
            search(space, options.search, options.trials, storage)
            return
        start = process_time()
        written(space, options.trials, storage)
        size = Path(name, "dse.db").stat().st_size / 2**20
        print(f"{options.trials:,} trials of {space.name}, {size:.0f} MiB, written in "
              f"{process_time() - start:.1f} s of CPU")  # fmt: skip
        for command in COMMANDS:
            more = [str(options.trials + 100)] if command[-1] == "--budget" else []
            seconds, peak = measured([*command, *more], Path(name))
            print(f"dse {' '.join([*command, *more]):45} {seconds:8.1f} s {peak:8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
