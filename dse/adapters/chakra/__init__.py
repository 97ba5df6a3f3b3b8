"""Chakra: a training step as execution traces, one for each rank of a pipeline.

Rooms in the order in which they are read; those on one line do not know each other:

    trace, pass_order, pass_work
    stage
    step
"""

from dse.registry import Adapter

ADAPTER = Adapter(name="chakra", title="Chakra", exports={"chakra": ""}, write="dse.adapters.chakra.step:chakra_traces")
