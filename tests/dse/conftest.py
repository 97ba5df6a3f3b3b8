"""Where the tests of the program run."""

import pytest


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    """Commands run in an empty folder, and store their studies in it."""
    monkeypatch.chdir(tmp_path)
