"""Faults while a batch is evaluated: it waits in a file, and the study becomes what it would have been."""

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from costmodel.errors import DseError
from dse.cli import main
from dse.search import history
from dse.search.study import Study
from dse.search.turns import CLAIM, PARKED
from dse.spaces.space import Space
from dse.storage.database import patience
from dse.storage.optuna_store import Store
from dse.storage.recovery import LARGEST
from tests.servers import postgresql_server

SMALL = Path(__file__).parent / "data" / "small_space.yaml"
BUDGET = 160


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where one works, with a home of one's own."""
    home = tmp_path / "home"
    home.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return work


@pytest.fixture(scope="module")
def space():
    return Space.load(SMALL)


def new_study(space, url, name="study"):
    return Study.create(space, name, storage=url, seed=5, sampler="nsga2")


@pytest.fixture
def study(space, folder):
    return new_study(space, f"sqlite:///{folder}/dse.db")


def told(study):
    """What a study knows of its trials, times of day aside."""
    with Store(study.storage, "read") as store:
        trials = store.trials(store.study(study.name).study_id)
    return [(t.number, t.state, t.params, t.values, t.constraints, t.user_attrs) for t in trials]


@pytest.fixture(scope="module")
def undisturbed(space, tmp_path_factory):
    """The trials of a study that nothing befell."""
    study = new_study(space, f"sqlite:///{tmp_path_factory.mktemp('undisturbed')}/dse.db")
    study.run(BUDGET)
    return told(study)


@pytest.fixture
def befall(monkeypatch):
    """Lets something happen while a search evaluates its n-th batch; the list says how many it evaluated."""
    evaluate, batches = history.evaluate, []

    def armed(n, happening):
        def disturbed(*args, **kwargs):
            batches.append(1)
            if len(batches) == n:
                happening()
            return evaluate(*args, **kwargs)

        monkeypatch.setattr(history, "evaluate", disturbed)
        return batches

    return armed


def recovery_files(*folders):
    return [path for folder in folders for path in folder.rglob("dse-recovery-*")]


def marks(study):
    """Claims and parked batches that the database holds."""
    attributes = Study.load(study.name, storage=study.storage).attributes
    return [name for name in attributes if name.startswith((CLAIM, PARKED))]


def check_recovered(study, batches, undisturbed, tmp_path, caplog):
    """A batch waits in a file, which the next run takes: it evaluates no batch twice."""
    [path] = recovery_files(tmp_path)
    evaluated, stored = len(batches), len(told(study))
    assert stored < BUDGET
    study.run(BUDGET)
    size = study.plan.batch_size
    assert len(batches) - evaluated == (BUDGET - stored) / size - 1
    assert caplog.messages == [f"dse: {size} trials of an earlier run taken from {path}"]
    assert told(study) == undisturbed
    assert marks(study) == []
    assert recovery_files(tmp_path) == []


# SQLite.


def test_what_a_locked_database_does_not_take_waits_in_a_file(study, befall, undisturbed, tmp_path, caplog):
    other = sqlite3.connect(tmp_path / "work" / "dse.db", isolation_level=None)
    batches = befall(2, lambda: other.execute("BEGIN IMMEDIATE"))
    with (
        patience(0.05),
        pytest.raises(DseError, match="locked by another program.*the last 20 trials") as said,
    ):
        study.run(BUDGET)
    other.close()
    assert str(recovery_files(tmp_path)[0]) in str(said.value)
    assert "\n" not in str(said.value)
    check_recovered(study, batches, undisturbed, tmp_path, caplog)


def test_what_a_full_disk_does_not_take_waits_in_a_file(study, befall, undisturbed, tmp_path, caplog):
    """The limit of a file's size stands for the disk; the database has reached it, the new file has not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full():
        size = (tmp_path / "work" / "dse.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    batches = befall(3, full)
    try:
        with pytest.raises(DseError, match="disk is full or failing.*the last 20 trials"):
            study.run(BUDGET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_recovered(study, batches, undisturbed, tmp_path, caplog)


def test_a_database_that_is_moved_away_is_not_written_to(study, befall, undisturbed, tmp_path, caplog):
    file, elsewhere = tmp_path / "work" / "dse.db", tmp_path / "elsewhere"
    batches = befall(2, lambda: file.rename(elsewhere))
    with pytest.raises(DseError, match="the file is gone, or another is in its place.*the last 20 trials"):
        study.run(BUDGET)
    elsewhere.rename(file)
    check_recovered(study, batches, undisturbed, tmp_path, caplog)
