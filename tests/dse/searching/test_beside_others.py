"""Readers and foreign programs beside a search: each goes on as if it were alone."""

from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from dse.api.study import Study
from dse.output import write_file
from dse.searching.study import studies
from dse.spaces.space import Space
from dse.storage.database import optuna_url
from tests.support.paths import TEST_DATA
from tests.support.processes import exit_codes, searching

SMALL = TEST_DATA / "small_space.yaml"
BUDGET = 100


@pytest.fixture
def study(url):
    return Study.create(Space.load(SMALL), "shared", storage=url, seed=3, sampler="random")


def running(processes):
    """True if some processes are not done."""
    return any(process.is_alive() for process in processes)


@pytest.mark.slow
def test_whoever_reads_beside_a_search_sees_it_at_one_moment(study):
    both, seen = [searching(study.storage, BUDGET) for _ in range(2)], [0]
    while running(both):
        read = Study.load("shared", storage=study.storage)
        trials, front = read.trials(), read.pareto_front()
        assert trials["trial"].tolist() == list(range(len(trials)))
        assert len(trials) % study.plan.batch_size == 0
        assert set(front["trial"]) <= set(range(BUDGET))
        [summary] = studies(study.storage)
        seen += [len(trials), summary.complete]
    assert seen == sorted(seen)
    assert exit_codes(both) == [0, 0]


@pytest.mark.slow
def test_a_foreign_loop_beside_a_search_keeps_its_trials_and_we_ours(study):
    storage = optuna.storages.RDBStorage(optuna_url(study.storage), engine_kwargs={"poolclass": NullPool})
    foreign = optuna.load_study(study_name="shared", storage=storage)
    ours, theirs = [searching(study.storage, BUDGET)], []
    while running(ours):
        trial = foreign.ask()
        theirs.append(foreign.tell(trial, [1.0, 1.0]).number)
    assert exit_codes(ours) == [0]
    left = foreign.ask()  # and is at work on it
    study.run(BUDGET + 10)
    trials = foreign.trials
    assert len(study.trials()) == BUDGET + 10
    assert trials[left.number].state == TrialState.RUNNING
    assert all(trials[number].state == TrialState.COMPLETE for number in theirs)
    assert [trial.number for trial in trials] == list(range(len(trials)))


# Files.


def test_several_who_write_one_file_leave_a_whole_one(tmp_path):
    """The last of them wins; none writes into what another has begun."""
    path, contents = tmp_path / "front.csv", [bytes([letter]) * 100_000 for letter in b"abcdefgh"]
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda content: write_file(path, [content[:9], content[9:]]), contents * 4):
            pass
    assert path.read_bytes() in contents
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    precious, path = tmp_path / "precious", tmp_path / "front.csv"
    precious.write_bytes(b"mine")
    for name in ("front.csv", "front.csv.part"):
        (tmp_path / name).symlink_to(precious)
    write_file(path, b"tp\n8\n")
    assert (precious.read_bytes(), path.read_bytes()) == (b"mine", b"tp\n8\n")
    assert not path.is_symlink()


def test_a_table_that_fails_halfway_leaves_the_file_as_it_was(tmp_path):
    def pieces():
        yield b"tp\n"
        raise KeyboardInterrupt

    path = tmp_path / "front.csv"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        write_file(path, pieces())
    assert path.read_bytes() == b"before"
    assert [*tmp_path.iterdir()] == [path]
