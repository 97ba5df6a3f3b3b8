"""One optimizer step of each design, from micro-batches through the pipeline to the update.

Rooms in the order in which they are read; those on one line do not import each other:

    breakdown, micro_batch
    pipeline, sharded_kernels
    parameter_states
    stage_memory, optimizer
    update, resolve_sharding
    transformer
    timeline
"""
