"""Backups of a database of studies, and logs that belong to another file."""

import os
import shutil
import signal
import sqlite3

import pytest

from dse import DseError, Space, Study
from dse.storage.database import DEFAULT_URL, back_up, restore
from tests.support.cases import by_table
from tests.support.commands import stderr_of, stdout_of
from tests.support.processes import signal_of


@pytest.fixture
def url(small_space):
    """The database of the folder, with a study of 10 trials."""
    Study.create(Space.from_text(small_space), "small", sampler="random").run(10)
    return DEFAULT_URL


def grown(url: str, trials: int) -> None:
    """More trials, by a process that is killed and leaves its log."""

    def killed() -> None:
        held = sqlite3.connect("dse.db")
        held.execute("SELECT count(*) FROM studies").fetchall()  # so that no other connection clears the log away
        Study.load("small", storage=url).run(trials)
        os.kill(os.getpid(), signal.SIGKILL)

    assert signal_of(killed) == signal.SIGKILL


def count(url: str) -> int:
    return len(Study.load("small", storage=url).trials())


def test_a_backup_holds_what_a_killed_writer_stored(url, tmp_path):
    grown(url, 30)
    assert (tmp_path / "dse.db-wal").stat().st_size
    back_up(url, tmp_path / "copy.db")
    assert count(f"sqlite:///{tmp_path / 'copy.db'}") == 30
    assert count(url) == 30
    assert not [*tmp_path.glob("*.foreign-*")]  # a log in use stays


def test_a_restored_backup_replaces_the_database_and_its_log(url, tmp_path, monkeypatch):
    assert stdout_of("studies", "--backup", "copy.db").startswith("copy.db: ")
    grown(url, 40)
    with monkeypatch.context() as disk:  # which does not take the copy: the database stays in its place
        disk.setattr(os, "fsync", lambda _: os.stat("full"))
        assert "--restore copy.db: full: No such file" in stderr_of("studies", "--restore", "copy.db")
    old = tmp_path / stdout_of("studies", "--restore", "copy.db").rpartition("the database before is ")[2].strip()
    assert count(url) == 10
    assert count(f"sqlite:///{old}") == 40
    Study.load("small", storage=url).run(15)
    assert count(url) == 15


@pytest.mark.parametrize("survived", range(4))
def test_a_restore_that_is_killed_leaves_the_old_or_the_new_database(url, tmp_path, monkeypatch, survived):
    back_up(url, tmp_path / "copy.db")
    grown(url, 40)
    survives, dies = iter([True] * survived), lambda: os.kill(os.getpid(), signal.SIGKILL)
    with monkeypatch.context() as system:
        for name in ("link", "replace", "rename"):  # it dies at one of these
            usual = getattr(os, name)
            system.setattr(os, name, lambda *at, of=usual, **more: of(*at, **more) if next(survives, 0) else dies())
        assert signal_of(lambda: restore(url, tmp_path / "copy.db")) == signal.SIGKILL
    assert count(url) == (40 if survived < 2 else 10)


def test_a_backup_that_is_copied_by_hand_survives_the_log_of_a_killed_writer(url, tmp_path, caplog):
    """Without help SQLite replays the log into the copy."""
    back_up(url, tmp_path / "copy.db")
    grown(url, 40)
    log = (tmp_path / "dse.db-wal").read_bytes()
    shutil.copy(tmp_path / "copy.db", tmp_path / "dse.db")
    assert count(url) == 10
    assert "dse.db-wal belongs to another file; it is dse.db-wal.foreign-" in caplog.text
    assert [aside.read_bytes() for aside in tmp_path.glob("dse.db-wal.foreign-*")] == [log]
    assert sqlite3.connect(tmp_path / "dse.db").execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@by_table("content", "message")
def test_what_is_no_backup_is_refused_and_nothing_changes(url, tmp_path, content, message):
    (tmp_path / "copy.db").write_text(content)
    with pytest.raises(DseError, match=message):
        restore(url, tmp_path / "copy.db")
    assert count(url) == 10


@by_table("words", "message")
def test_mistakes_are_one_line(url, words, message):
    [line] = stderr_of("studies", *words).splitlines()
    assert message in line
