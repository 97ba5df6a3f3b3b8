"""One optimizer step of each design, from micro-batches through the pipeline to the update.

Rooms in the order in which they are read; those on one line do not know each other:

    result, micro_batch
    pipeline
    memory
    update, sharding
    transformer
    timeline
"""
