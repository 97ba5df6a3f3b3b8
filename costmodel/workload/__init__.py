"""Kernel tables: what a rank of each design runs in a micro-batch and in the update."""
