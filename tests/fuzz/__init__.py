"""Hostile input for every reader: what is read, from what it is grown, and a coverage-guided run over it."""
