"""Writes what ASTRA-sim's analytical back end runs: a trace for every rank, groups, network, and a start script.

Rooms in the order in which they are read; those on one line do not know each other:

    collectives
    placement
    program
    network
    export
"""

from dse.registry import Adapter

ADAPTER = Adapter(
    name="astra_sim",
    title="ASTRA-sim",
    exports={"astra-sim": ""},
    write="dse.adapters.astra_sim.export:astra_sim_files",
)
