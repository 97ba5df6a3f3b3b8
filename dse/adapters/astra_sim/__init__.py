"""Writes files for ASTRA-sim's analytical back end: a trace for every rank, groups, network, and a start script.

Rooms in the order in which they are read; those on one line do not import each other:

    program
    export
"""
