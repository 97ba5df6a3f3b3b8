"""Optuna's tables, set up where a database has none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import optuna
from optuna.exceptions import StorageInternalError

from dse.storage.database import Database, optuna_url

#: Revision of Optuna's tables that dse reads and writes; unchanged from Optuna 3.2 to 5.
REVISION: Final = "v3.2.0.a"
TABLES: Final = Path(__file__).with_name("optuna_tables.sql")


def set_up(database: Database, url: str) -> None:
    """Create Optuna's tables where they are missing.

    Optuna's own set-up of an SQLite file takes 70 to 80 fsyncs and an import of SQLAlchemy and alembic;
    this is one transaction. On PostgreSQL it is Optuna's.
    """
    if database.is_sqlite:
        with database.transaction(writes=True):
            if database.has_table("studies"):
                return
            for statement in TABLES.read_text(encoding="utf-8").split(";\n"):
                database.change(statement)
            version = {"version_info_id": 1, "schema_version": 12, "library_version": optuna.__version__}
            database.insert("version_info", [version])
            database.insert("alembic_version", [{"version_num": REVISION}])
        return
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    with database.transaction(writes=True):
        database.rows("SELECT pg_advisory_xact_lock(20190402)")  # any number; Optuna's set-up has no lock
        if not database.has_table("alembic_version"):
            try:
                optuna.storages.RDBStorage(optuna_url(url), engine_kwargs={"poolclass": NullPool})
            except (SQLAlchemyError, StorageInternalError) as error:
                raise database.failure(error.__cause__ or error) from error
