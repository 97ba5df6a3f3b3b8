"""Where the tests of the program run."""

from functools import partial

import pytest

from dse import Space, Study
from tests.support.browser import opened, started


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    """Commands run in an empty folder, and store their studies in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """The browser of all tests."""
    with started(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def browser(chromium):
    """A function of a page, a width and a colour scheme that returns the browser with the page."""
    return partial(opened, chromium)


@pytest.fixture
def url(tmp_path) -> str:
    """A database of the test."""
    return f"sqlite:///{tmp_path}/dse.db"


@pytest.fixture
def stored(monkeypatch, storage):
    """Commands find the database by the environment."""
    monkeypatch.setenv("DSE_STORAGE", storage)


@pytest.fixture(scope="session")
def searched(tmp_path_factory):
    """A function that searches a space in a new database, and returns the study."""

    def searched(space, budget, name=None, **plan):
        storage = f"sqlite:///{tmp_path_factory.mktemp('searched')}/dse.db"
        study = Study.create(space, name, storage=storage, **plan)
        study.run(budget)
        return study

    return searched


@pytest.fixture(scope="module")
def storage(searched, small_space):
    """A database with a study of 30 trials of a space of 144 legal designs."""
    return searched(Space.from_text(small_space), 30, "small").storage
