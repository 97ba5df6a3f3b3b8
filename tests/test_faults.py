"""Faults while a batch is evaluated: it waits in a file, and the study becomes what it would have been."""

import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from costmodel.errors import DseError
from dse.cli import main
from dse.library.study import Study
from dse.searching.batches import history
from dse.searching.batches.claims import CLAIM, PARKED, alive
from dse.spaces.space import Space
from dse.storage import atomic_files as files
from dse.storage.database import patience
from dse.storage.deletion import delete_study
from dse.storage.optuna_store import Store
from dse.storage.recovery import LARGEST
from tests.processes import HEEDING, python_after
from tests.servers import Wire, temporary_server

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

        batches.clear()
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
        pytest.raises(DseError, match=r"locked by another program.*the last 20 trials") as said,
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
        with pytest.raises(DseError, match=r"disk is full or failing.*the last 20 trials"):
            study.run(BUDGET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_recovered(study, batches, undisturbed, tmp_path, caplog)


def test_a_database_that_is_moved_away_is_not_written_to(study, befall, undisturbed, tmp_path, caplog):
    file, elsewhere = tmp_path / "work" / "dse.db", tmp_path / "elsewhere"
    batches = befall(2, lambda: file.rename(elsewhere))
    with pytest.raises(DseError, match=r"the file is gone, or another is in its place.*the last 20 trials"):
        study.run(BUDGET)
    elsewhere.rename(file)
    check_recovered(study, batches, undisturbed, tmp_path, caplog)


# PostgreSQL.


@pytest.fixture(scope="module")
def server():
    with temporary_server() as server:
        if server is None:
            pytest.skip("needs psycopg and the PostgreSQL server programs")
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


def test_what_a_server_that_ends_its_connections_does_not_take(
    server, space, befall, undisturbed, tmp_path, caplog
):
    study = new_study(space, server.url, "terminated")
    batches = befall(2, lambda: terminate_all(server))
    with pytest.raises(DseError, match=r"the server has gone.*the last 20 trials"):
        study.run(BUDGET)
    check_recovered(study, batches, undisturbed, tmp_path, caplog)


def test_what_a_server_that_has_lost_its_power_does_not_take(
    server, space, befall, undisturbed, tmp_path, caplog
):
    study = new_study(space, server.url, "stopped")
    batches = befall(3, server.stop)
    with pytest.raises(DseError, match=r"the server has gone.*the last 20 trials"):
        study.run(BUDGET)
    with pytest.raises(DseError, match="no server answers there"):
        study.run(BUDGET)
    server.start()
    check_recovered(study, batches, undisturbed, tmp_path, caplog)


@pytest.mark.parametrize("answer", ["BEGIN", "INSERT", "DELETE 1"])
def test_a_wire_that_is_cut_within_a_transaction(answer, wire, space, befall, undisturbed, tmp_path, caplog):
    study = new_study(space, wire.url, f"cut at {answer}")
    batches = befall(2, lambda: setattr(wire, "cut_at", answer.encode()))
    with pytest.raises(DseError, match=r"the server has gone.*the last 20 trials"):
        study.run(BUDGET)
    check_recovered(study, batches, undisturbed, tmp_path, caplog)


def test_a_wire_that_is_cut_before_the_last_answer_has_stored_the_batch(
    wire, space, befall, undisturbed, tmp_path, caplog
):
    study = new_study(space, wire.url, "cut at COMMIT")
    befall(2, lambda: setattr(wire, "cut_at", b"COMMIT"))
    with pytest.raises(DseError, match=r"the server has gone.*the last 20 trials"):
        study.run(BUDGET)
    [path] = recovery_files(tmp_path)
    study.run(BUDGET)
    assert caplog.messages == [f"dse: {path}: its 20 trials are in the study already"]
    assert told(study) == undisturbed
    assert recovery_files(tmp_path) == []


SEARCH = """
import sys
from dse.library.study import Study
study = Study.load(sys.argv[1], storage=sys.argv[2])
print("ready", flush=True)
study.run(int(sys.argv[3]))
"""


def test_searches_that_are_killed_on_postgresql(server, space, undisturbed):
    """Whose connections the server finds closed within transactions; tests/stress has 200 of them."""
    study, moments = new_study(space, server.url, "killed"), random.Random(0)
    for _ in range(3):
        process = begun(HEEDING, "-c", SEARCH, study.name, study.storage, str(BUDGET))
        process.stdout.readline()
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.communicate()
        found = told(study)
        assert found == undisturbed[: len(found)]
    study.run(BUDGET)
    assert told(study) == undisturbed
    assert marks(study) == []


# The files.


@pytest.fixture
def kept(study, befall):
    """A study, and the file in which its second batch waits."""
    file, elsewhere = Path("dse.db"), Path("elsewhere")
    batches = befall(2, lambda: file.rename(elsewhere))
    with pytest.raises(DseError):
        study.run(BUDGET)
    elsewhere.rename(file)
    [path] = Path.cwd().glob("dse-recovery-*")
    return study, path, batches


def flipped(path):
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"values": [', b'"values": [-', 1))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1000])


def emptied(path):
    path.write_bytes(b"")


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def endless(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def enormous(path):
    with path.open("r+b") as file:
        file.truncate(LARGEST + 1)


@pytest.mark.parametrize("damage", [flipped, cut_short, emptied, a_pipe, endless, enormous])
def test_a_file_that_was_changed_is_left_alone(kept, damage, undisturbed, caplog):
    study, path, batches = kept
    damage(path)
    study.run(BUDGET)
    assert len(batches) == 2 + BUDGET / 20 - 1  # it was evaluated again
    assert told(study) == undisturbed
    assert os.path.lexists(path)
    [said] = caplog.messages
    assert said.startswith(f"dse: {path}: ")


def test_a_study_that_was_begun_anew_takes_no_file_of_the_old_one(kept, space, undisturbed, caplog):
    study, path, _ = kept
    with Store(study.storage, "write") as store:
        delete_study(store, store.study_id(study.name))
    new = new_study(space, study.storage)
    new.run(BUDGET)
    assert told(new) == undisturbed
    assert path.exists()
    assert caplog.messages == []


def test_two_who_go_on_at_once_take_a_file_once(kept, space, undisturbed, caplog):
    study, path, _ = kept
    both = [threading.Thread(target=Study.load(study.name, storage=study.storage).run) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert told(study) == undisturbed
    assert not path.exists()
    assert caplog.messages.count(f"dse: 20 trials of an earlier run taken from {path}") == 1


def test_where_one_folder_cannot_be_written_another_is_found(space, befall, tmp_path, monkeypatch):
    """One's own, then that of all; and where there is none at all, the message says so."""
    write, refused = files.write_beside, []

    def refusing(path, *args, **kwargs):
        if path.parent in refused:
            raise PermissionError
        write(path, *args, **kwargs)

    monkeypatch.setattr("dse.storage.recovery.write_beside", refusing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders, found = [Path.cwd(), tmp_path / "home/.local/state/dse", tmp_path], []
    for n, folder in enumerate(folders, start=1):
        refused.append(folder)
        study = new_study(space, f"sqlite:///{n}.db")
        befall(1, lambda n=n: Path(f"{n}.db").unlink())
        with pytest.raises(DseError) as said:
            study.run(BUDGET)
        found.append(str(said.value).partition("the last ")[2])
    first, second, last = found
    assert first.startswith(f"20 trials wait for the next run in {folders[1]}/dse-recovery-study-")
    assert second.startswith(f"20 trials wait for the next run in {folders[2]}/dse-recovery-study-")
    assert last == "20 trials could be kept nowhere; the next run evaluates them again"


# Signals.

#: Ends when it is told to twice.
STUBBORN = """
import time
from dse.cli.terminal import interruptible
with interruptible():
    try:
        print("at work", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("ending", flush=True)
        time.sleep(60)
"""


def begun(statement, *arguments):
    """A process of Python's with its output, after a statement."""
    return subprocess.Popen(
        python_after(statement, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_second_signal_ends_a_command_at_once():
    process = begun(HEEDING, "-c", STUBBORN)
    for word, number in (("at work", signal.SIGINT), ("ending", signal.SIGTERM)):
        assert process.stdout.readline() == f"{word}\n"
        process.send_signal(number)
    assert process.communicate(timeout=30)[1] == (
        "dse: interrupted twice, so at once; every stored trial is kept\n"
    )
    assert process.returncode == 130


def test_a_signal_that_is_ignored_from_outside_stays_ignored():
    process = begun("signal.signal(signal.SIGHUP, signal.SIG_IGN)", "-c", STUBBORN)
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "ending\n"
    process.kill()
    process.communicate()


def test_whoever_is_interrupted_while_he_waits_for_a_lock_keeps_his_batch(folder):
    """And does not wait for the lock again."""
    process = begun(HEEDING, "-m", "dse", "search", "--budget", "100000")
    while process.stderr.readline().startswith("0/"):  # until it has stored a batch, and taken the next
        pass
    other = sqlite3.connect("dse.db", isolation_level=None, timeout=30)
    other.execute("BEGIN IMMEDIATE")
    while "locked by another program; waiting" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    kept, last = process.communicate(timeout=30)[1].splitlines()
    other.close()
    [path] = recovery_files(folder)
    assert re.fullmatch(rf"dse: the last \d+ trials wait for the next run in {path}", kept)
    assert last.startswith("dse: interrupted; every stored trial is kept, go on with: dse resume")
    study = Study.load("gpt3_175b_1024_a100")
    study.run(len(study.trials()) + 1)
    assert recovery_files(folder) == []


def test_clocks_that_jump_change_no_trial(study, undisturbed, monkeypatch):
    """By days, to and fro, at every look: claims are judged by them, trials are not."""
    now, jumps = time.time, random.Random(0)
    monkeypatch.setattr(
        "dse.searching.batches.claims.time.time", lambda: now() + 86400 * jumps.uniform(-30, 30)
    )
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


def test_a_result_whose_folder_goes_is_written_elsewhere(small, folder, monkeypatch, capsys):
    there = folder / "there"
    there.mkdir()
    monkeypatch.setattr(
        "dse.cli.ask.enumerate.headway_lines", lambda stream: lambda _: there.exists() and there.rmdir()
    )
    monkeypatch.setattr("dse.searching.exact.exact_front.STEP", 10_000)
    assert main(["enumerate", "small.yaml", "-o", "there/front.csv"]) == 1
    [path] = results(folder)
    assert capsys.readouterr().err == (
        f"dse: there/front.csv: cannot be written (No such file or directory); the result is in {path}\n"
    )
    assert path.suffix == ".csv"
    assert main(["enumerate", "small.yaml", "-o", "front.csv"]) == 0
    assert Path("front.csv").read_bytes() == path.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_a_full_disk_does_not_take_of_stdout_is_written_elsewhere(small, folder):
    command = [sys.executable, "-m", "dse", "evaluate", "small.yaml", "--sweep", "tp", "--format", "csv"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    [path] = results(folder)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, f"dse: output: No space left on device; the result is in {path}")
    assert path.read_text().startswith("tp,")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("nosuch/front.csv", "-o nosuch/front.csv: no folder 'nosuch'; create it first"),
        ("there.csv", "-o there.csv: is a folder; name a file in it"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(small, folder, output, said, capsys):
    (folder / "there.csv").mkdir()
    assert main(["enumerate", "small.yaml", "-o", output]) == 1
    assert capsys.readouterr().err == f"dse: {said}\n"


# What the killed leave.

WRITER = """
import itertools, sys
from pathlib import Path
from dse.records.tables import write_file
print("ready", flush=True)
for letter in itertools.cycle(b"abcdefgh"):
    write_file(Path(sys.argv[1]), [bytes([letter]) * 100_000] * 20)
"""


def test_a_file_whose_writers_are_killed_is_whole_and_nothing_else_is_left(folder, monkeypatch):
    path, moments = folder / "front.csv", random.Random(0)
    for _ in range(5):
        process = begun(HEEDING, "-c", WRITER, str(path))
        process.stdout.readline()
        time.sleep(moments.uniform(0.05, 0.1))
        process.kill()
        process.communicate()
        content = path.read_bytes()
        assert content == content[:1] * 2_000_000
    monkeypatch.setattr(files, "LEFT", 0.0)
    with (folder / ".dse-of-one-who-lives.part").open("wb") as living:
        files._lock(living)
        files.clear_away.cache_clear()
        files.write_beside(path, [b"new"])
        assert sorted(own.name for own in folder.iterdir()) == [living.name.rpartition("/")[2], "front.csv"]


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
