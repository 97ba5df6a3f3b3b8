"""Where the tests of the program run."""

import pytest

from dse import Space, Study


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    """Commands run in an empty folder, and store their studies in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stored(monkeypatch, storage):
    """Commands find the database by the environment."""
    monkeypatch.setenv("DSE_STORAGE", storage)


@pytest.fixture(scope="module")
def storage(tmp_path_factory, small_space):
    """A database with a study of 30 trials of a space of 144 legal designs."""
    storage = f"sqlite:///{tmp_path_factory.mktemp('storage') / 'dse.db'}"
    Study.create(Space.from_text(small_space), "small", storage=storage).run(30)
    return storage
