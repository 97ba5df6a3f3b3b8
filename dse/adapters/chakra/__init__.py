"""Chakra: a training step as execution traces, one for each rank of a pipeline.

Rooms in the order in which they are read; those on one line do not import each other:

    trace, pass_work
    step
"""
