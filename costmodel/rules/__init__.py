"""Rules that evaluate designs, found by the name of a profile and the kind of work.

Rooms in the order in which they are read; those on one line do not know each other:

    work
    rules
    native
    registry
"""
