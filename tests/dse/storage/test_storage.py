"""Studies in Optuna's tables: Optuna reads the studies of dse, and dse those of Optuna."""

import itertools
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from costmodel.errors import DseError
from dse.api.study import Study
from dse.spaces.space import Space
from dse.storage.database import optuna_url
from dse.storage.optuna_store import BEATS, OLD, REVISION, Store, delete_study
from dse.storage.trial_columns import utc_text
from tests.support.cases import by_table
from tests.support.commands import stderr_of
from tests.support.paths import TEST_DATA
from tests.support.servers import postgresql_server

DISTRIBUTIONS = {
    "tp": CategoricalDistribution((1, 2, 4)),
    "recompute": CategoricalDistribution(("none", "full")),
    "sequence_parallel": CategoricalDistribution((False, True)),
    "cores": IntDistribution(1, 128, step=1),
    "dram_bandwidth": FloatDistribution(1e12, 8e12, log=True),
}


def finished(step_time=0.1, tp=4):
    return optuna.trial.create_trial(
        values=[step_time, 1e10 / 3],
        params={"tp": tp, "recompute": "full", "sequence_parallel": True, "cores": 108, "dram_bandwidth": 2.039e12},
        distributions=DISTRIBUTIONS,
        constraints={"fits_in_memory_bytes": -0.125, "power_w": 0.5},
        user_attrs={"breakdown": {"forward_time_s": 1 / 3}},
        system_attrs={"NSGAIISampler:generation": 2},
    )


@contextmanager
def a_study(url, trials=(), name="gpt3"):
    with Store(url, "create") as store:
        study = store.create_study(name, ["minimize", "maximize"], user_attrs={"a": [1, 2]}, metric_names=["t", "m"])
        assert store.append(study.study_id, list(trials), after=0)
        yield store, study


def plain_optuna(url):
    """A storage that Optuna opens by itself; it holds no connection between calls."""
    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})


@pytest.fixture(scope="module")
def postgresql():
    """URL of a temporary server's database."""
    with postgresql_server() as url:
        yield url


@pytest.fixture(params=["url", "postgresql"])
def either(request):
    """A database of each kind."""
    return request.getfixturevalue(request.param)


def test_optuna_opens_a_study_as_its_own(either):
    with a_study(either, [finished(0.1), finished(0.1 + 0.2)], "opened") as (store, study):
        ours = store.trials(study.study_id)
        assert not store.append(study.study_id, [finished()], after=0)  # the study has grown
        with pytest.raises(DseError, match="did you mean 'opened'"):
            store.study("open")
    plain = optuna.load_study(study_name="opened", storage=plain_optuna(optuna_url(either)))
    assert plain.get_trials() == ours
    assert plain.trials[1].values == [0.1 + 0.2, 1e10 / 3]
    assert plain.trials[1].params == finished().params
    assert plain.trials[1].constraints == {"fits_in_memory_bytes": -0.125, "power_w": 0.5}
    assert [direction.name for direction in plain.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert (plain.user_attrs, plain.metric_names) == ({"a": [1, 2]}, ["t", "m"])


def test_a_study_that_optuna_wrote_reads_the_same(url):
    plain = optuna.create_study(study_name="plain", directions=["minimize", "maximize"], storage=plain_optuna(url))
    plain.add_trials([finished(0.1), finished(0.2)])
    with Store(url, "read") as store:
        stored = store.study("plain")
        assert store.trials(stored.study_id) == plain.get_trials()
        assert stored.directions == ("minimize", "maximize")


def broken(**constraints):
    return optuna.trial.create_trial(values=[float("inf"), 1.0], constraints=constraints)


def test_columns_hold_the_values_of_all_kinds_of_trials(either):
    trials = [finished(0.1 + 0.2), broken(memory=1e-9, power=-1.0), finished(0.5, tp=2), broken(memory=0.0)]
    trials.append(optuna.trial.create_trial(values=[-float("inf"), 2.0], system_attrs={"constraints": [0, 3]}))
    with a_study(either, trials, "columns") as (store, study):
        plain_study = optuna.load_study(study_name="columns", storage=plain_optuna(optuna_url(either)))
        plain_study.ask()  # and left there
        plain_study.add_trial(finished(0.75))
        complete = [trial for trial in store.trials(study.study_id) if trial.state == TrialState.COMPLETE]
        columns = store.columns(study)
        assert columns.numbers.tolist() == [0, 1, 2, 3, 4, 6]
        assert columns.objectives.tolist() == [trial.values for trial in complete]
        assert columns.feasible.tolist() == [False, False, False, True, False, False]
        assert columns.feasible.tolist() == [max(t.constraints.values()) <= 0 for t in complete]
        assert store.some_trials(study.study_id, columns.ids[::-1]) == complete
        whole = store.moment(study, attribute="breakdown", first=1)
        assert (whole.rows, whole.trials.numbers.tolist()) == (7, [2, 6])
        assert whole.params == {name: [complete[2].params[name], value] for name, value in finished().params.items()}
        assert whole.user_attrs == study.user_attrs


@pytest.mark.parametrize("violation", [float("nan"), "none", None, True, [], [float("nan")], [[1]]])
def test_a_constraint_that_is_no_number_is_neither_kept_nor_violated(url, violation):
    key = "constraints" if isinstance(violation, list) and violation else "constraints:fits"
    odd = optuna.trial.create_trial(values=[1.0, 1.0], system_attrs={key: violation})
    with a_study(url, [finished(), odd]) as (store, study):
        for read in (lambda: store.columns(study), lambda: store.trials(study.study_id)):
            with pytest.raises(DseError, match=r"study 'gpt3' of .* cannot be read: trial_system_attributes: "):
                read()


def schema(url):
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        tables = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        version = database.execute("SELECT * FROM version_info, alembic_version").fetchall()
    return sorted((name, sql.split()) for name, sql in tables), version


def test_tables_are_those_that_optuna_sets_up(url, tmp_path):
    Store(url, "create").close()
    stock = f"sqlite:///{tmp_path}/stock.db"
    assert plain_optuna(stock).get_head_version() == REVISION
    assert schema(url) == schema(stock)


def test_numbers_go_on_where_optuna_stopped(url):
    with a_study(url, [finished()]) as (store, study):
        plain = optuna.load_study(study_name="gpt3", storage=plain_optuna(url))
        plain.add_trial(finished())
        assert store.append(study.study_id, [finished()], after=2)
        assert [trial.number for trial in store.trials(study.study_id)] == [0, 1, 2]
        assert plain.ask().number == 3


def test_a_batch_that_fails_halfway_leaves_nothing(url):
    broken = finished()
    broken.user_attrs = {"breakdown": object()}  # JSON does not know it
    with a_study(url) as (store, study):
        with pytest.raises(TypeError):
            store.append(study.study_id, [finished(), broken], after=0)
        assert store.trials(study.study_id) == []


def test_trials_that_were_given_up_are_marked_as_failed(either):
    """Running trials without heartbeats that began long ago, and those whose heartbeats have ended."""
    with a_study(either, name="abandoned") as (store, study):
        storage = plain_optuna(optuna_url(either))
        plain = optuna.load_study(study_name="abandoned", storage=storage)
        running = [plain.ask() for _ in range(4)]
        plain.enqueue_trial({"x": 1})
        for trial in running[1:3]:
            storage.record_heartbeat(trial._trial_id)
        assert store.fail_running(study.study_id) == 0
        with store.database.transaction(writes=True):
            long_ago = "UPDATE trials SET datetime_start = :then WHERE number IN (0, 1)"
            store.database.change(long_ago, then=utc_text(datetime.now() - OLD))
            missed = "UPDATE trial_heartbeats SET heartbeat = :then WHERE trial_id = :id"
            then = datetime.now(UTC).replace(tzinfo=None) - BEATS - timedelta(seconds=1)
            store.database.change(missed, then=str(then), id=running[2]._trial_id)
        assert store.fail_running(study.study_id) == 2
        states = [trial.state.name for trial in store.trials(study.study_id)]
        assert states == ["FAIL", "RUNNING", "FAIL", "RUNNING", "WAITING"]


def test_options_that_are_equal_in_python_keep_their_kind(url):
    """0 and 1 are equal to false and true, in parameters and in the distributions of Optuna."""
    kinds = {"zero": (0, 1), "overlap": (False, True), "share": (0.0, 1.0)}
    distributions = {name: CategoricalDistribution(choices) for name, choices in kinds.items()}
    params = {name: choices[1] for name, choices in kinds.items()}
    trial = optuna.trial.create_trial(params=params, distributions=distributions, values=[1.0, 2.0])
    with a_study(url, [trial]) as (store, study):
        [stored] = store.trials(study.study_id)
    assert [type(stored.params[name]) for name in kinds] == [int, bool, float]


# Failures, in one line each.


def test_reading_creates_nothing_and_leaves_no_files_behind(url, tmp_path):
    with pytest.raises(DseError, match=r"no database there; `dse search` starts one"):
        Store(url, "read")
    assert list(tmp_path.iterdir()) == []
    with a_study(url):
        pass
    with Store(url, "read") as store:
        assert store.names() == ["gpt3"]
    assert [path.name for path in tmp_path.iterdir()] == ["dse.db"]


@by_table("url", "message")
def test_a_wrong_url_says_what_would_do(url, message):
    with pytest.raises(DseError, match=message):
        Store(url, "create")


def test_a_locked_database(url):
    with a_study(url) as (_, study):
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Store(url + "?timeout=0.05", "write") as store:
        assert store.trials(study.study_id) == []  # readers do not wait
        with pytest.raises(DseError, match="locked by another program"):
            store.append(study.study_id, [finished()], after=0)
    other.close()


def test_a_lock_is_waited_for_with_a_word(url, caplog, monkeypatch):
    monkeypatch.setattr("dse.storage.database.IN_SILENCE", 0.0)
    with a_study(url) as (store, study):
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        later = threading.Timer(0.3, other.close)
        later.start()
        assert store.append(study.study_id, [finished()], after=0)
        later.join()
    assert caplog.messages == [f"dse: storage {url}: locked by another program; waiting up to 60 s for it (--wait)"]


def test_many_who_open_a_new_database_together(tmp_path):
    """Each sets its journal and its tables up, which SQLite's own waiting does not cover."""
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(4) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda url: Store(url, "create").close(), urls)] == [None] * len(urls)


def test_a_study_that_is_deleted_meanwhile_takes_no_trials(url):
    with a_study(url) as (store, study):
        delete_study(store, study.study_id)
        with pytest.raises(DseError, match="has deleted this study"):
            store.append(study.study_id, [finished()], after=0)


@pytest.mark.parametrize("damage", ["another file", "cut short", "overwritten"])
def test_a_corrupt_database(url, tmp_path, damage):
    with a_study(url, [finished()] * 50):
        pass
    content = (tmp_path / "dse.db").read_bytes()
    third = len(content) // 3
    damaged = {
        "another file": b"seed: 1\n" * 1000,
        "cut short": content[:third],
        "overwritten": content[:4096] + bytes(range(256)) * (third // 256) + content[4096 + third :],
    }
    (tmp_path / "dse.db").write_bytes(damaged[damage])
    with pytest.raises(DseError, match="not an SQLite database, or a damaged one"), Store(url, "read") as store:
        store.trials(store.study("gpt3").study_id)


@by_table("statement", "message")
def test_tables_of_another_optuna_and_tables_that_run_queries(url, statement, message):
    with a_study(url), sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        database.executescript(statement)
    with pytest.raises(DseError, match=message):
        Store(url, "read")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 KiB, where this machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_keeps_what_was_stored(small_disk):
    url = f"sqlite:///{small_disk}/dse.db"
    accepted = []

    def fill(store, study):
        for after in itertools.count(step=20):
            store.append(study.study_id, [finished()] * 20, after=after)
            accepted.append(20)

    with a_study(url) as (store, study), pytest.raises(DseError, match="the disk is full or failing"):
        fill(store, study)
    with Store(url, "read") as store:
        assert len(store.trials(study.study_id)) == sum(accepted) > 0


def test_a_read_only_folder_can_be_read(small_disk):
    url = f"sqlite:///{small_disk}/dse.db"
    with a_study(url, [finished()] * 3) as (_, study):
        pass
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with Store(url, "read") as store:
        assert len(store.trials(study.study_id)) == 3
    for mode, path in (("write", "dse.db"), ("create", "new.db")):
        with pytest.raises(DseError, match=r"cannot be (written|opened)"):
            Store(f"sqlite:///{small_disk}/{path}", mode)


def test_a_server_that_does_not_answer_is_not_waited_for_without_end():
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/dse?connect_timeout=2"
        with pytest.raises(DseError, match="does not answer in time"):
            Store(url, "read")


# The same on PostgreSQL, where its programs are installed.


def test_a_search_on_postgresql_finds_what_it_finds_on_sqlite(postgresql, url):
    space = Space.load(TEST_DATA / "small_space.yaml")
    tables = []
    for storage in (postgresql, url):
        study = Study.create(space, "search", storage=storage)
        for budget in (30, 70):
            study.run(budget)
        tables.append(study.trials().drop(columns="completed"))
    on_postgresql, on_sqlite = tables
    assert on_postgresql.equals(on_sqlite)


@pytest.mark.slow
def test_processes_share_a_study_on_postgresql(postgresql):
    space = Space.load(TEST_DATA / "small_space.yaml")
    alone, shared = (Study.create(space, name, storage=postgresql, sampler="random") for name in ("alone", "shared"))
    alone.run(110)
    code = f"from dse.api.study import Study; Study.load('shared', storage={postgresql!r}).run(110)"
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    tables = [study.trials().drop(columns="completed") for study in (alone, shared)]
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    "table", ["trial_user_attributes", "trial_system_attributes", "study_user_attributes", "trial_params"]
)
def test_a_long_value_on_postgresql_is_neither_read_nor_written(postgresql, table):
    import psycopg

    study = Study.create(Space.load(TEST_DATA / "small_space.yaml"), table, storage=postgresql, sampler="random")
    study.run(3)
    column = "distribution_json" if table == "trial_params" else "value_json"
    key = "study_id" if table.startswith("study") else "trial_id"
    rows = f"SELECT {key} FROM trials JOIN studies USING (study_id) WHERE study_name = '{table}'"
    with psycopg.connect(postgresql) as connection:
        connection.execute(f"UPDATE {table} SET {column} = repeat('x', 9000000) WHERE {key} IN ({rows})")
    for line in (f"trials {table}", f"pareto {table}", f"resume {table} --budget 8"):
        [error] = stderr_of(*line.split(), "--storage", postgresql).splitlines()[-1:]
        assert re.search(f"cannot be read: {table}: row [0-9]+: a value of more than 8,388,608 bytes;", error)
    with Store(postgresql, "write") as store, pytest.raises(DseError, match="dse stores and reads none"):
        store.set_user_attrs(1, {"long": "x" * 9_000_000})


def test_a_missing_database_on_a_postgresql_server(postgresql):
    with pytest.raises(DseError, match="no such database on the server"):
        Store(postgresql.replace("/postgres", "/nowhere"), "create")


@pytest.mark.parametrize("line_break", ["\n", "\r", "\v", "\u2028"])
def test_names_and_urls_have_no_line_breaks(url, tmp_path, line_break):
    wrong_name = "a name is text without control characters and line breaks"
    with Store(url, "create") as store, pytest.raises(DseError, match=wrong_name):
        store.find(f"a{line_break}dse: forged")
    with pytest.raises(DseError, match="a URL has no line breaks") as refused:
        Store(f"sqlite:///{tmp_path}/a{line_break}dse: forged.db", "create")
    assert len(str(refused.value).splitlines()) == 1


def test_a_new_database_appears_with_its_tables_or_not_at_all(url, tmp_path, monkeypatch):
    """A process that ends within the creation leaves no file of the name."""

    def killed(database, url):
        database.change("CREATE TABLE studies (study_id INTEGER)")
        raise SystemExit

    with monkeypatch.context() as dying:
        dying.setattr("dse.storage.optuna_store.set_up", killed)
        with pytest.raises(SystemExit):
            Store(url, "create")
    assert not any(tmp_path.iterdir())

    def refused(*_: object) -> None:
        raise OSError("no hard links here")

    with monkeypatch.context() as without_links:
        without_links.setattr("dse.storage.optuna_store.os.link", refused)
        Store(url, "create").close()
    Store(url, "read").close()
    assert [path.name for path in tmp_path.iterdir()] == ["dse.db"]
