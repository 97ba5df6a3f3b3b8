"""Several processes share the batches of a study, and its trials are those of one process."""

import os
import random
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dse.api.study import Study
from dse.searching.batches.history import History
from dse.searching.batches.loop import CLAIM, PARKED, BatchClaims, machine_name
from dse.searching.samplers.archive import DesignShare, base_of
from dse.searching.samplers.samplers import SAMPLERS
from dse.searching.study_attributes import CONCURRENCY
from dse.spaces.space import Space
from dse.storage.optuna_store import Store
from tests.support.processes import exit_codes, searching
from tests.support.runs import interrupting, marks, told

NAMES = ("nsga2", "random")  # of the small space, screening prices all designs in its first batch
BUDGET = 150


@pytest.fixture(scope="module", autouse=True)
def two_at_once():
    """Genetic samplers take turns, for their generations; here two batches are under way, as a study may."""
    with pytest.MonkeyPatch.context() as patch:
        shared = replace(SAMPLERS["nsga2"], concurrency=2)
        patch.setattr("dse.searching.samplers.samplers.SAMPLERS", {**SAMPLERS, "nsga2": shared})
        yield


def workers(url, n, budget=BUDGET):
    """Processes on one study, all about to begin."""
    return [searching(url, budget) for _ in range(n)]


@pytest.fixture(scope="module", params=NAMES)
def alone(request, searched, space):
    """A study that one process made, and its trials."""
    study = searched(space, BUDGET, "shared", seed=5, sampler=request.param)
    return study, told(study)


@pytest.fixture
def study(space, url, alone):
    """A new study that becomes the same."""
    return Study.create(space, "shared", storage=url, seed=5, sampler=alone[0].plan.sampler)


# Real processes.


def test_three_at_once_make_the_trials_of_one(study, url, alone):
    assert exit_codes(workers(url, 3)) == [0, 0, 0]
    assert told(study) == alone[1]
    assert marks(study) == []


def test_killed_and_joined_by_others_they_make_the_same(study, url, alone):
    moments, running = random.Random(0), workers(url, 2)
    for _ in range(2):
        time.sleep(moments.uniform(0, 0.2))
        running[0].kill()
        exit_codes(running[:1])
        running = [*running[1:], *workers(url, 1)]
        actual = told(study)
        assert actual == alone[1][: len(actual)]
    assert exit_codes(running) == [0, 0]
    assert told(study) == alone[1]
    assert marks(study) == []


def test_screening_is_shared_as_well(tmp_path):
    """Results of all shares are merged; the space is too large to evaluate all of its designs."""
    space = Space.load("gpt_1t_power_split")
    studies = []
    for name, processes in (("one", 1), ("two", 2)):
        url = f"sqlite:///{tmp_path}/{name}.db"
        studies.append(Study.create(space, "shared", storage=url, seed=5))
        assert exit_codes(workers(url, processes, 200)) == [0] * processes
    one, two = studies
    assert told(one) == told(two)
    assert one.designs_priced == two.designs_priced == sum(t[-1]["designs_priced"] for t in told(one))
    assert len({space.legal.key(params) for _, _, params, *_ in told(one)}) == 200


# Who does what, step by step.


class Worker:
    """One of several that work on a study, here in one process."""

    def __init__(self, study, number, budget=BUDGET):
        self.store = Store(study.storage, "write")
        stored = self.store.study(study.name)
        self.history = History(study.space, study.plan, self.store, stored)
        self.claims = BatchClaims(self.store, stored.study_id, self.history, budget)
        self.claims._me = {"host": f"machine {number}", "process": number}
        self.budget = budget

    def work(self):
        """Take a batch and evaluate it."""
        number = self.claims.take()
        batch = self.claims.parked(number)
        if batch is None:
            batch = self.history.proposed(number, self.budget)
            self.history.evaluate(batch)
        return batch

    def step(self):
        """A batch from its claim to its trials; how many there are."""
        return self.claims.settle(self.work())


@pytest.fixture
def two(study):
    """Two workers on a study whose first batch is stored."""
    study.run(study.plan.batch_size)
    both = [Worker(study, 1), Worker(study, 2)]
    yield study, *both
    for worker in both:
        worker.store.close()


def test_a_batch_before_its_turn_is_parked_and_stored_by_another(two, alone):
    study, one, other = two
    first, second = one.work(), other.work()
    assert (first.number, second.number) == (1, 2)
    assert other.claims.settle(second) == 0
    assert f"{PARKED}2" in marks(study)
    assert one.claims.settle(first) == study.plan.batch_size
    assert one.step() == study.plan.batch_size  # what the other has found
    assert f"{PARKED}2" not in marks(study)
    assert told(study) == alone[1][: 3 * study.plan.batch_size]


@pytest.fixture(scope="module")
def gone():
    """Number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_claim_of_a_dead_process_is_taken_over(two, alone, gone):
    study, one, other = two
    one.claims._me = {"host": machine_name(), "process": gone}
    other.claims._me = {"host": machine_name(), "process": os.getpid()}
    assert (one.claims.take(), other.claims.take()) == (1, 1)
    study.run(BUDGET)
    assert told(study) == alone[1]


def test_containers_with_one_hostname_are_two_machines(two, monkeypatch, gone):
    """A process number of another container says nothing of the processes here."""
    _, one, other = two
    here = machine_name()
    with monkeypatch.context() as container:
        container.setattr("dse.searching.batches.loop.Path.readlink", lambda path: Path("pid:[1]"))
        assert machine_name() != here
        one.claims._me = {"host": machine_name(), "process": gone}
    other.claims._me = {"host": here, "process": os.getpid()}
    assert (one.claims.take(), other.claims.take()) == (1, 2)


def test_a_claim_of_another_machine_is_taken_over_when_it_is_old(two, monkeypatch):
    _, one, other = two
    assert one.claims.take() == 1
    monkeypatch.setattr("dse.searching.batches.loop.PATIENCE", 0.0)
    assert other.claims.take() == 1


def test_an_interrupted_run_gives_its_batch_back(two):
    study, *_ = two
    with pytest.raises(KeyboardInterrupt):
        study.run(BUDGET, progress=interrupting(study.plan.batch_size + 1))
    assert marks(study) == []


def test_two_that_work_on_one_batch_store_it_once(two, alone):
    study, one, other = two
    first = one.work()
    with Store(study.storage, "write") as store:
        store.drop_user_attrs(study._stored.study_id, [f"{CLAIM}1"])
    again = other.work()
    assert first.number == again.number == 1
    assert (one.claims.settle(first), other.claims.settle(again)) == (study.plan.batch_size, 0)
    actual = told(study)
    assert actual == alone[1][: len(actual)]


# What shares leave open.


@pytest.mark.parametrize("sampler", NAMES)
def test_a_space_of_few_designs_is_searched_to_its_end_by_two(space, url, sampler):
    few = space.pinned({"tp": 8})
    study = Study.create(few, "shared", storage=url, sampler=sampler)
    assert exit_codes(workers(url, 2, 10_000)) == [0, 0]
    trials = told(study)
    assert len({few.legal.key(params) for _, _, params, *_ in trials}) == len(trials) == few.legal.count
    assert marks(study) == []


def test_designs_to_start_from_are_in_the_next_batch(space, url):
    study = Study.create(space, "shared", storage=url, sampler="nsga2")
    study.run(40)
    before = [params for _, _, params, *_ in told(study)]
    start = next(design for design in space.decode(next(space.legal.enumerate())) if design not in before)
    study.steer(None, {"mine": start})
    study.run(60)
    assert start in [params for _, _, params, *_ in told(study)[40:]]


def test_a_study_from_before_batches_were_concurrent_has_one_at_a_time(study, space, url, alone):
    with Store(url, "write") as store:
        store.drop_user_attrs(study._stored.study_id, [CONCURRENCY])
    old = Study.load("shared", storage=url)
    assert old.plan.concurrency == 1
    assert exit_codes(workers(url, 2)) == [0, 0]
    actual = told(old)
    assert len({space.legal.key(params) for _, _, params, *_ in actual}) == len(actual) == BUDGET
    assert actual[: old.plan.batch_size] == alone[1][: old.plan.batch_size]


# The arithmetic.


def test_a_batch_knows_the_first_and_those_of_whole_rounds_before():
    assert [base_of(number, 1) for number in range(4)] == [-1, 0, 1, 2]
    assert [base_of(number, 3) for number in range(7)] == [-1, 0, 0, 0, 1, 2, 3]


def test_every_design_is_in_one_share_and_shares_are_about_equal(space):
    [columns] = space.legal.enumerate(10_000)
    shares = [DesignShare(number, 3, space.parameters) for number in range(3)]
    inside = [share.has(columns) for share in shares]
    assert (sum(members.astype(int) for members in inside) == 1).all()
    assert min(members.mean() for members in inside) > 0.25
    for row, params in enumerate(space.decode(columns)[:20]):
        assert [share.has_key(space.legal.key(params)) for share in shares] == [members[row] for members in inside]
