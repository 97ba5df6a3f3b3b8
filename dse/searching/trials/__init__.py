"""Finished trials of the database, as tables and as records."""
