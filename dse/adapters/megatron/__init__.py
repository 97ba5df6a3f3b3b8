"""Megatron-LM: launch scripts, and the arguments that it prints in its log.

Rooms in the order in which they are read; those on one line do not import each other:

    model, primus, shell
    design
    launch
"""
