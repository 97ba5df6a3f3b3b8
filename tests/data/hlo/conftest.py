"""The script here needs jax, and is not a test."""

collect_ignore = ["make_modules.py"]
