"""Tuning: which layout of a plan to run next on the real cluster, from the times and memory of runs so far.

Rooms in the order in which they are read; those on one line do not import each other:

    belief
    study_candidates, replay
"""
