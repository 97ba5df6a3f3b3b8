"""Folders and databases of the long tests."""

import pytest

from tests.support.servers import postgresql_server


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    """Commands run in an empty folder, and store their studies in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A database of each kind; a temporary server where PostgreSQL is installed."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/dse.db"
        return
    with postgresql_server() as url:
        yield url
