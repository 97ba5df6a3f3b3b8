"""Adapters of other programs: one folder for each, found by `dse.registry`, and named by no module of the core.

The `adapter.yaml` of a folder lists the files that the adapter recognizes, the functions that read and write them, its
cost rules, and its options of `dse evaluate`.

Rooms in the order in which they are read; those on one line do not import each other:

    aiconfigurator, deepflow, hugging_face, chakra, kineto, megatron, nccl_tests, simai, training_logs
    dfmodel, astra_sim, maxtext, megatron_bridge, torchtitan
    xla
"""
