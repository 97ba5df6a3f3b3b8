"""Execution traces in the format of MLCommons Chakra."""
