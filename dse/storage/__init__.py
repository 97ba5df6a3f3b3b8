"""Optuna's tables in SQLite and PostgreSQL: batches of trials, read and written in bulk."""
