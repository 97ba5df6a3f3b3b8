"""torchtitan: configurations in Python.

Rooms in the order in which they are read; those on one line do not import each other:

    design
    launch
"""
