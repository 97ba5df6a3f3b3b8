"""Adapters of other programs: one folder for each, found by `dse.registry`, and named by no module of the core.

The `ADAPTER` of a folder says which files it recognizes, what reads and writes them, what is lost, which cost rules
they bring, and how a result is reported.

Rooms in the order in which they are read; those on one line do not know each other:

    deepflow, hugging_face, chakra, megatron, maxtext, simai
    dfmodel, astra_sim, megatron_bridge, torchtitan
    xla
"""
