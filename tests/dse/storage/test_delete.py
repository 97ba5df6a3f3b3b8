"""`dse delete` takes a study out of its database."""

import io
import shutil
import sqlite3

import optuna
import pytest

from dse.api.study import Study
from dse.cli import main
from dse.spaces.space import Space
from tests.support.commands import stderr_of, stdout_of


@pytest.fixture(scope="module")
def two_studies(tmp_path_factory, small_space):
    """A folder with a space, and two studies of it in one database."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "small.yaml").write_text(small_space)
    for name in ("one", "two"):
        Study.create(Space.load(folder / "small.yaml"), name, storage=f"sqlite:///{folder}/dse.db").run(4)
    return folder


@pytest.fixture
def copied(two_studies, tmp_path):
    """A copy of this folder."""
    return shutil.copytree(two_studies, tmp_path, dirs_exist_ok=True)


def names():
    return optuna.get_all_study_names("sqlite:///dse.db")


def test_a_study_is_deleted_with_all_of_its_trials(copied):
    assert stdout_of("delete", "one", "--yes") == "deleted study 'one': 4 trials of space small\n"
    assert names() == ["two"]
    with sqlite3.connect(copied / "dse.db") as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            of = next((name for name in ("study_id", "trial_id") if name in columns), None)
            if of:  # nothing is left of the first study: all rows are of the second and its trials
                of_second = "(2)" if of == "study_id" else "(SELECT trial_id FROM trials WHERE study_id = 2)"
                query = f"SELECT count(*) FROM {table} WHERE {of} NOT IN {of_second}"
                assert database.execute(query).fetchone() == (0,), table
    database.close()
    assert len(Study.load("two").table) == 4
    assert main(["search", "small.yaml", "--budget", "4", "--study", "one"]) == 0  # the name is free again


def test_a_study_that_cannot_be_read_can_be_deleted(copied):
    with sqlite3.connect(copied / "dse.db") as database:
        database.execute("UPDATE study_user_attributes SET value_json = '{[' WHERE study_id = 1")
        database.execute("UPDATE study_directions SET direction = 'SIDEWAYS' WHERE study_id = 1")
        database.execute("UPDATE trials SET number = 'first', state = 'odd' WHERE study_id = 1")
    database.close()
    assert main(["pareto", "one"]) == 1
    assert "study 'one': 4 trials, in " in stderr_of("delete", "one")
    assert stdout_of("delete", "one", "--yes") == "deleted study 'one': 4 trials\n"
    assert names() == ["two"]


def test_where_nobody_can_be_asked_nothing_is_deleted(copied):
    assert "4 trials of space small, in " in (said := stderr_of("delete", "one"))
    assert "add --yes to delete it" in said
    assert names() == ["one", "two"]


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_on_a_terminal_it_asks(copied, monkeypatch, answer, deleted):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert "[y/N]" in stderr_of("delete", "one", code=0 if deleted else 1)
    assert names() == (["two"] if deleted else ["one", "two"])


def test_a_study_that_is_not_there_is_not_deleted(copied):
    assert "no study 'on'" in stderr_of("delete", "on", "--yes")
