"""torchtitan: configurations in Python.

Rooms in the order in which they are read; those on one line do not know each other:

    design
    launch
"""
