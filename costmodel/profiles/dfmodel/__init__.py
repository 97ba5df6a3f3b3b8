"""DFModel: a transformer layer as a dataflow graph, sharded, tiled and fused on chips [Ko2024]_.

A profile over the shared solver. Where a rule of the reference is odd, the profile keeps it and says so.

Rooms in the order in which they are read; those on one line do not know each other:

    graph, setup
    layer, network, cores
    design, evaluation, assigned, hlo_graph
    mapping, files
    rules
"""

from costmodel.profiles.dfmodel.design import DataflowDesign, design_setup
from costmodel.profiles.dfmodel.evaluation import DfmodelEvaluation, evaluate
from costmodel.profiles.dfmodel.graph import PUBLISHED, DfmodelGraph, Sharding, least_moving
from costmodel.profiles.dfmodel.layer import layer_graph, model_graph
from costmodel.profiles.dfmodel.mapping import Mapping, fastest_mapping, fused_ways
from costmodel.profiles.dfmodel.rules import dataflow_step, reasons
from costmodel.profiles.dfmodel.setup import Setup

__all__ = [
    "PUBLISHED",
    "DataflowDesign",
    "DfmodelEvaluation",
    "DfmodelGraph",
    "Mapping",
    "Setup",
    "Sharding",
    "dataflow_step",
    "design_setup",
    "evaluate",
    "fastest_mapping",
    "fused_ways",
    "layer_graph",
    "least_moving",
    "model_graph",
    "reasons",
]
