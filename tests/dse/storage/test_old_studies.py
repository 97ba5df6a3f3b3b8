"""Studies that earlier commits wrote: every command works on them, or refuses them with one line.

`tests/data/old_studies/COMMIT.sql.xz` is the database of some small studies that this commit wrote, as SQL. Their
trials were evaluated by the cost model of that commit.
"""

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.browser import data_of
from tests.support.cases import cases
from tests.support.commands import outputs_of, stdout_of
from tests.support.paths import TEST_DATA

DATABASES = TEST_DATA / "old_studies"
COMMITS = ("5877065", "d5b01b9", "87c8d83")
#: Commands on a study, with the exit code of a study that the cost model evaluates differently now.
COMMANDS = cases(__file__, "COMMANDS")


def restored(commit: str) -> list[str]:
    """Writes the database of a commit to dse.db; returns the names of its studies."""
    text = lzma.decompress((DATABASES / f"{commit}.sql.xz").read_bytes()).decode()
    with closing(sqlite3.connect("dse.db")) as database:
        database.executescript(text)
        return [name for (name,) in database.execute("SELECT study_name FROM studies")]


@pytest.mark.parametrize("commit", [pytest.param(COMMITS[0], marks=pytest.mark.slow), COMMITS[2]])
def test_every_command_works_on_an_old_study(commit):
    restored(commit)
    for command, code in COMMANDS.items():
        out, err = outputs_of(*command.replace("STUDY", "layouts").split(), code=code)
        if code and "--check" not in command:
            assert err.count("\n") == 1, (command, err)
            assert "dse search ... --study NEW --warm-start layouts" in err, (command, err)
        assert out or command.startswith(("show STUDY --trials", "export", "tune", "resume")), command


@pytest.mark.parametrize("commit", COMMITS)
def test_every_old_study_is_shown_or_refused_in_one_line(commit):
    """Studies of sampled tiles have other parameters now; a line names the first of these, and what to do."""
    for name in restored(commit):
        refused = name in ("kernels", "tiles")
        out, err = outputs_of("show", name, "--trials", code=int(refused))
        if refused:
            assert (out, err.count("\n")) == ("", 1)
            assert "no 'qkv_activation_gradient_tile_m', a parameter of its space in this version" in err
            assert "read a study of an earlier dse with that dse, or search again: `dse search ... --study NEW`" in err
        else:
            assert err == "", name
            assert "trial" in out


def test_the_explanation_and_the_page_of_an_old_study_name_its_stored_step_time():
    restored("5877065")
    assert "Stored as 18.4 s a step, by another version of the cost model" in stdout_of("explain", "layouts")
    stdout_of("report", "layouts", "-o", "page.html")
    page = str(data_of(Path("page.html")))
    assert "Numbers are of the cost model that searched, parts of the present one" in page
    assert "18.43 s stored" in page
