"""Faults while a search runs: the next run makes the study what it would have been."""

import contextlib
import itertools
import os
import pkgutil
import random
import resource
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from costmodel.errors import DseError
from dse.api.study import Study
from dse.cli import main
from dse.searching.batches import history
from dse.searching.batches.loop import alive
from dse.spaces.space import Space
from dse.storage import atomic_files as files
from dse.storage.database import patience
from dse.storage.optuna_store import Store, create_file
from tests.support.cases import by_table, cases
from tests.support.commands import stderr_of
from tests.support.paths import TEST_DATA
from tests.support.processes import HEEDING, begun, signal_of
from tests.support.runs import marks, told
from tests.support.servers import Wire, temporary_server

SMALL = TEST_DATA / "small_space.yaml"
BUDGET, PLAN = 100, {"seed": 5, "sampler": "nsga2"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a home folder next to it."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return work


@pytest.fixture(scope="module")
def space():
    return Space.load(SMALL)


def new_study(space, url, name="study"):
    return Study.create(space, name, storage=url, **PLAN)


@pytest.fixture
def study(space, folder):
    return new_study(space, f"sqlite:///{folder}/dse.db")


@pytest.fixture(scope="module")
def undisturbed(searched, space):
    """The trials of a study that nothing befell."""
    return told(searched(space, BUDGET, "study", **PLAN))


@pytest.fixture
def befall(monkeypatch):
    """Lets something happen while a search evaluates its n-th batch."""
    evaluate, batches = history.evaluate, []

    def armed(n, happening):
        def disturbed(*args, **kwargs):
            batches.append(1)
            if len(batches) == n:
                happening()
            return evaluate(*args, **kwargs)

        monkeypatch.setattr(history, "evaluate", disturbed)

    return armed


def check_resumed(study, undisturbed):
    """Trials that were not stored are proposed again, and are the same."""
    assert len(told(study)) < BUDGET
    study.run(BUDGET)
    assert told(study) == undisturbed
    assert marks(study) == []


# SQLite.


def test_what_a_locked_database_does_not_take_is_proposed_again(study, befall, undisturbed, tmp_path):
    other = sqlite3.connect(tmp_path / "work" / "dse.db", isolation_level=None)
    befall(2, lambda: other.execute("BEGIN IMMEDIATE"))
    with patience(0.05), pytest.raises(DseError, match="locked by another program") as said:
        study.run(BUDGET)
    other.close()
    assert "\n" not in str(said.value)
    check_resumed(study, undisturbed)


def test_what_a_full_disk_does_not_take_is_proposed_again(study, befall, undisturbed, tmp_path):
    """The limit of a file's size stands for the disk; the database has reached it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full():
        size = (tmp_path / "work" / "dse.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    befall(3, full)
    try:
        with pytest.raises(DseError, match="disk is full or failing"):
            study.run(BUDGET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_resumed(study, undisturbed)


def test_a_database_that_is_moved_away_is_not_written_to(study, befall, undisturbed, tmp_path):
    file, elsewhere = tmp_path / "work" / "dse.db", tmp_path / "elsewhere"
    befall(2, lambda: file.rename(elsewhere))
    with pytest.raises(DseError, match="the file is gone, or another is in its place"):
        study.run(BUDGET)
    elsewhere.rename(file)
    check_resumed(study, undisturbed)


#: Where a search is killed at its third batch: between batches, and within the transaction that stores one.
MOMENTS = cases(__file__, "MOMENTS")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_search_that_is_killed_makes_the_same_trials(moment, study, undisturbed):
    owner, _, name = MOMENTS[moment].rpartition(".")
    owner, calls = pkgutil.resolve_name(owner), itertools.count(1)
    last = 3 if moment != "in the midst of a batch" else 2 * 5 + 3  # of five tables for each batch
    original = getattr(owner, name)

    def deadly(*args, **kwargs):
        if next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    def search():
        setattr(owner, name, deadly)
        study.run(BUDGET)

    assert signal_of(search) == signal.SIGKILL
    assert len(told(study)) in (40, 60)
    check_resumed(study, undisturbed)


def test_a_file_that_an_earlier_version_left_does_no_harm(study, undisturbed, folder):
    left = folder / f"dse-recovery-{study.name}-4905a053ddab-1.json"
    left.write_text('{"format": "dse-recovery/v1"}\n{}\n')
    with Store(study.storage, "write") as store:
        store.set_user_attrs(study._stored.study_id, {"dse:recovery_key": "4905a053ddab"})
    study.run(BUDGET)
    assert told(study) == undisturbed
    assert left.exists()


# PostgreSQL.


@pytest.fixture(scope="module")
def server():
    with temporary_server() as server:
        yield server


@pytest.fixture
def wire(server):
    wire = Wire(server)
    yield wire
    wire.close()


def terminate_all(server):
    """Have the server end every connection."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as administrator:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        administrator.execute(others)


@pytest.mark.slow
def test_what_a_server_that_ends_its_connections_does_not_take(server, space, befall, undisturbed):
    study = new_study(space, server.url, "terminated")
    befall(2, lambda: terminate_all(server))
    with pytest.raises(DseError, match=r"the server has gone"):
        study.run(BUDGET)
    check_resumed(study, undisturbed)


@pytest.mark.slow
def test_what_a_server_that_has_lost_its_power_does_not_take(server, space, befall, undisturbed):
    study = new_study(space, server.url, "stopped")
    befall(3, server.stop)
    with pytest.raises(DseError, match=r"the server has gone"):
        study.run(BUDGET)
    with pytest.raises(DseError, match="no server answers there"):
        study.run(BUDGET)
    server.start()
    check_resumed(study, undisturbed)


@pytest.mark.parametrize("answer", ["BEGIN", "INSERT", "DELETE 1", "COMMIT"])
def test_a_wire_that_is_cut_within_a_transaction(answer, wire, space, befall, undisturbed):
    """After the last answer the batch is stored."""
    study = new_study(space, wire.url, f"cut at {answer}")
    befall(2, lambda: setattr(wire, "cut_at", answer.encode()))
    with pytest.raises(DseError, match=r"the server has gone"):
        study.run(BUDGET)
    check_resumed(study, undisturbed)


# Signals.

#: Ends at the second signal.
STUBBORN = cases(__file__, "STUBBORN")


def test_a_second_signal_ends_a_command_at_once():
    process = begun(HEEDING, "-c", STUBBORN)
    for word, number in (("at work", signal.SIGINT), ("ending", signal.SIGTERM)):
        assert process.stdout.readline() == f"{word}\n"
        process.send_signal(number)
    assert process.communicate(timeout=30)[1] == "dse: interrupted twice, so at once; every stored trial is kept\n"
    assert process.returncode == 130


def test_a_signal_that_is_ignored_from_outside_stays_ignored():
    process = begun("signal.signal(signal.SIGHUP, signal.SIG_IGN)", "-c", STUBBORN)
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "ending\n"
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_whoever_is_interrupted_while_he_waits_for_a_lock_ends_at_once():
    process = begun(HEEDING, "-m", "dse", "search", "gpt_1t_codesign", "--budget", "100000")
    while process.stderr.readline().startswith("0/"):  # until it has stored a batch, and taken the next
        pass
    other = sqlite3.connect("dse.db", isolation_level=None, timeout=30)
    other.execute("BEGIN IMMEDIATE")
    while "locked by another program; waiting" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    [last] = process.communicate(timeout=30)[1].splitlines()
    other.close()
    assert last.startswith("dse: interrupted; every stored trial is kept. Continue: dse resume")
    study = Study.load("gpt_1t_codesign")
    study.run(len(study.trials()) + 1)


def test_clocks_that_jump_change_no_trial(study, undisturbed, monkeypatch):
    """By days, to and fro, at every look: claims are judged by them, trials are not."""
    now, jumps = time.time, random.Random(0)
    monkeypatch.setattr("dse.searching.batches.loop.time.time", lambda: now() + 86400 * jumps.uniform(-30, 30))
    both = [threading.Thread(target=study.run, args=(BUDGET,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert told(study) == undisturbed


# Results.


def results(folder):
    return [path for path in folder.iterdir() if path.name != "small.yaml"]


@pytest.fixture
def small(folder):
    (folder / "small.yaml").write_text(SMALL.read_text())


def test_a_result_whose_folder_goes_is_written_elsewhere(small, folder, monkeypatch):
    elsewhere = folder / "there"
    elsewhere.mkdir()
    monkeypatch.setattr(
        "dse.cli.commands.enumerate.headway_lines", lambda stream: lambda _: elsewhere.exists() and elsewhere.rmdir()
    )
    monkeypatch.setattr("dse.searching.exact.exact_front.STEP", 10_000)
    error = stderr_of("enumerate", "small.yaml", "-o", "there/front.csv")
    [path] = results(folder)
    why = "cannot be written (No such file or directory)"
    assert error == f"dse: there/front.csv: {why}; the result is in {path}\n"
    assert path.suffix == ".csv"
    assert main(["enumerate", "small.yaml", "-o", "front.csv"]) == 0
    assert Path("front.csv").read_bytes() == path.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_a_full_disk_does_not_take_of_stdout_is_written_elsewhere(small, folder, capsys):
    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full):
        assert main(["evaluate", "small.yaml", "--sweep", "tp", "--format", "csv"]) == 1
    [path] = results(folder)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"dse: output: No space left on device; the result is in {path}"
    assert path.read_text().startswith("tp,")


@by_table("output", "said")
def test_what_cannot_be_written_is_refused_before_the_work(small, folder, output, said):
    (folder / "there.csv").mkdir()
    assert stderr_of("enumerate", "small.yaml", "-o", output) == f"dse: {said}\n"


# Leftovers of killed processes.

WRITER = """
import itertools, sys
from pathlib import Path
from dse.output import write_file
print("ready", flush=True)
for letter in itertools.cycle(b"abcdefgh"):
    write_file(Path(sys.argv[1]), [bytes([letter]) * 100_000] * 20)
"""


@pytest.mark.slow
def test_a_file_whose_writers_are_killed_is_whole_and_nothing_else_is_left(folder, monkeypatch):
    path, moments = folder / "front.csv", random.Random(0)
    for _ in range(3):
        process = begun(HEEDING, "-c", WRITER, str(path))
        process.stdout.readline()
        time.sleep(moments.uniform(0.05, 0.1))
        process.kill()
        process.communicate()
        content = path.read_bytes()
        assert content == content[:1] * 2_000_000
    monkeypatch.setattr(files, "LEFT", 0.0)
    with (folder / ".dse-of-one-who-lives.part").open("wb") as living:
        files.locked(living)
        files.clear_away.cache_clear()
        files.write_beside(path, [b"new"])
        assert sorted(file.name for file in folder.iterdir()) == [living.name.rpartition("/")[2], "front.csv"]


def test_parts_of_a_database_whose_creator_was_killed_are_removed(folder):
    for ending in (".part", ".part-wal", ".part-shm"):
        part = folder / f".dse-{'0' * 16}{ending}"
        part.write_bytes(b"left")
        os.utime(part, (0, 0))
    files.clear_away.cache_clear()
    create_file(f"sqlite:///{folder}/dse.db")
    assert [path.name for path in folder.iterdir()] == ["dse.db"]


MASTER = """
import os, time
from dse.pricing.workers import Workers
print(*{worker for worker in Workers(2).map(lambda _: time.sleep(0.5) or os.getpid(), range(4))}, flush=True)
time.sleep(60)
"""


def test_workers_end_once_their_master_is_killed():
    master = begun(HEEDING, "-c", MASTER)
    workers = [int(word) for word in master.stdout.readline().split()]
    assert workers
    assert all(map(alive, workers))
    master.kill()
    master.communicate(timeout=60)  # which waits until all have let go of the output
