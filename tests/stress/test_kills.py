"""Processes that are killed at random moments: the study becomes what it would have been, files are whole.

`DSE_KILLS=20 pytest tests/stress/test_kills.py` is a short run; by default it is 200 kills on each
database, and 50 of each command that writes files.
"""

import os
import random
import time

import pandas as pd
import pytest

from dse.api.study import Study
from dse.spaces.space import Space
from tests.stress.workers import command, kill, left_over, search, started, told
from tests.support.paths import TEST_DATA
from tests.support.runs import marks

SMALL = TEST_DATA / "small_space.yaml"
KILLS = int(os.environ.get("DSE_KILLS", "200"))
BUDGET = 300


@pytest.mark.parametrize("sampler", ["screening", "nsga2"])
def test_searches_that_are_killed(url, sampler, tmp_path):
    """Two at a time, of which one is killed; each study is one that nothing befell, to the last bit."""
    space, moments, kills, seed = Space.load("gpt3_175b_1024_a100"), random.Random(sampler), 0, 0
    while kills < KILLS / 2:
        seed += 1
        alone, disturbed = f"alone {seed}", f"disturbed {seed}"
        for name in (alone, disturbed):
            Study.create(space, name, storage=url, seed=seed, sampler=sampler)
        start = time.monotonic()
        search(url, alone, BUDGET)
        longest = (time.monotonic() - start) / 2
        running = [started(search, url, disturbed, BUDGET)]
        while running[0].is_alive():
            running += [started(search, url, disturbed, BUDGET) for _ in range(2 - len(running))]
            running[0].join(moments.uniform(0, longest))
            kills += running[0].is_alive()
            kill(running.pop(0))
            longest *= 1.03  # in the end they come to it, however busy the machine
        for process in running:
            process.join()
        search(url, disturbed, BUDGET)
        assert told(url, disturbed) == told(url, alone)
        assert len(told(url, disturbed)[0]) == BUDGET
        assert marks(Study.load(disturbed, storage=url)) == []
    assert left_over(tmp_path) == []
    print(f"{kills} kills in {seed} studies", end=" ")


def reference(folder, arguments):
    """Files that a command writes where nothing befalls it, and how long it takes."""
    folder.mkdir()
    start = time.monotonic()
    process = started(command, folder, *arguments)
    process.join()
    assert process.exitcode == 0
    return contents(folder), time.monotonic() - start


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(("dse.db", "."))
    }


def measured(tmp_path):
    """A table of measurements."""
    import tests.dse.calibration.test_calibration as calibration

    path = tmp_path / "mine.csv"
    calibration.write(path, calibration.timed(calibration.PRODUCTS))
    return path, calibration.SYSTEM


@pytest.mark.parametrize("what", ["enumerate", "calibrate", "evaluate"])
def test_commands_that_write_a_file_are_killed(what, tmp_path):
    """It is there as a whole, or as before."""
    table, system = measured(tmp_path)
    arguments = {
        "enumerate": ["enumerate", str(SMALL), "-o", "front.parquet"],
        "calibrate": ["calibrate", str(table), "--system", system, "-o", "mine.yaml"],
        "evaluate": ["evaluate", str(SMALL), "--sweep", "tp", "--sweep", "pp", "-o", "sweep.json"],
    }[what]
    whole, seconds = reference(tmp_path / "reference", arguments)
    folder, moments = tmp_path / "killed", random.Random(what)
    folder.mkdir()
    [name] = whole
    for _ in range(KILLS // 4):
        before = random.Random().choice([None, b"as before"])
        (folder / name).unlink(missing_ok=True)
        if before:
            (folder / name).write_bytes(before)
        process = started(command, folder, *arguments)
        process.join(moments.uniform(0, seconds))
        kill(process)
        assert contents(folder).get(name) in (before, whole[name])
    assert set(contents(folder)) <= {name}


def test_searches_that_write_their_results_are_killed(tmp_path):
    """Each table is whole; the last run writes what one does that nothing befell, times of day aside."""
    arguments = ["search", str(SMALL), "--sampler", "nsga2", "--budget", "120", "--out", "results"]
    whole, seconds = reference(tmp_path / "reference", arguments)
    folder, moments = tmp_path / "killed", random.Random(0)
    folder.mkdir()
    for _ in range(KILLS // 4):
        process = started(command, folder, *arguments)
        process.join(moments.uniform(0, seconds))
        kill(process)
        for path in folder.glob("results/*"):
            if path.suffix == ".csv":
                assert set(pd.read_csv(path)) >= {"trial"}
            elif path.suffix == ".parquet":
                pd.read_parquet(path)
    process = started(command, folder, *arguments)
    process.join()
    for name in whole:
        if name.endswith(".parquet"):
            ours, theirs = (pd.read_parquet(tmp_path / kind / name) for kind in ("killed", "reference"))
            assert ours.drop(columns="completed").equals(theirs.drop(columns="completed"))
