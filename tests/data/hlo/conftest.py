"""The script here needs jax, and is no test."""

collect_ignore = ["make_modules.py"]
