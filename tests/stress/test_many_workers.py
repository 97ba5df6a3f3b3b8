"""Many processes on one study: they join, leave and are killed, beside readers and programs of others."""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from dse.api.study import Study
from dse.spaces.space import Space
from tests.stress.workers import foreign, kill, look, read, search, started, told
from tests.support.runs import marks

BUDGET = int(os.environ.get("DSE_TRIALS", "2000"))
WORKERS = {"sqlite": 8, "postgresql": 16}


@pytest.fixture(params=["random", "nsga2"])
def studies(request, url):
    """A study, and another of the same space and seed, which one process has made alone."""
    space = Space.load("gpt3_175b_1024_a100")
    for name in ("shared", "alone"):
        Study.create(space, name, storage=url, seed=7, sampler=request.param)
    search(url, "alone", BUDGET)
    return url, WORKERS[url.partition(":")[0]], told(url, "alone")[0]


def shared(url, workers, beside, seconds):
    """Run the shared study with others beside it; workers come and go for a while, then work to the end."""
    beside = [started(*task) for task in beside]
    try:
        coming_and_going(url, workers, time.monotonic() + seconds)
        assert all(process.is_alive() for process in beside), "some of those beside have failed"
    finally:
        for process in beside:
            kill(process)


def coming_and_going(url, workers, until):
    """Workers, some of whom leave and are replaced until some moment; then all work to the end."""
    moments, running, ends = random.Random(0), [], {"killed": 0, "interrupted": 0}
    while time.monotonic() < until:
        while len(running) < workers:
            running.append(started(search, url, "shared", BUDGET))
        time.sleep(moments.uniform(0, 0.5))
        leaving = running.pop(moments.randrange(len(running)))
        if moments.random() < 0.5:
            ends["killed"] += leaving.is_alive()
            kill(leaving)
        else:
            ends["interrupted"] += leaving.is_alive()
            with suppress(ProcessLookupError):  # it is done
                os.kill(leaving.pid, signal.SIGINT)
            leaving.join()
            assert leaving.exitcode in (0, 130, -signal.SIGINT)
    running.append(started(search, url, "shared", BUDGET))
    for process in running:
        process.join()
        assert process.exitcode == 0
    print(ends, end=" ")


def test_they_come_and_go_beside_readers(studies):
    """None reads half a batch, and the trials are those of one process."""
    url, workers, alone = studies
    shared(url, workers, [(read, url, "shared"), (read, url, "shared"), (look, url)], 40)
    ours, theirs = told(url, "shared")
    assert ours == alone
    assert theirs == []
    assert marks(Study.load("shared", storage=url)) == []


def test_loops_of_optuna_are_beside_them(studies):
    """Theirs are stored, but for the one that each works on when it is killed, and ours as without them."""
    url, workers, alone = studies
    values = [1.0] * len(Study.load("shared", storage=url).space.objectives)
    task = (foreign, url, "shared", values)
    shared(url, workers, [task, task, (look, url), (read, url, "shared")], 20)
    ours, theirs = told(url, "shared")
    assert ours == alone
    assert theirs.count("COMPLETE") >= max(len(theirs) - 2, 1)
    assert set(theirs) <= {"COMPLETE", "RUNNING"}
    assert marks(Study.load("shared", storage=url)) == []
    print(f"{len(theirs)} trials of others", end=" ")
