"""Data that ships with the package: search spaces, models and systems, as YAML."""
