"""Exact solvers that know nothing of training: assignments on graphs, and groups of nodes."""
