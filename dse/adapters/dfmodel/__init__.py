"""DFModel: a transformer layer as a dataflow graph, sharded, tiled and fused on chips [Ko2024]_.

A profile over the shared solver. Where a rule of the reference is odd, the profile keeps it and notes it.

Rooms in the order in which they are read; those on one line do not import each other:

    graph, setup
    layer, network, cores
    workloads
    evaluation
    mapping, files
    design
    report
    export, command
"""
