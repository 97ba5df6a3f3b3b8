"""Finished trials: what the database holds of them, as tables and as records."""
