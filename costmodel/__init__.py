"""Prices training designs: arrays in, arrays out.

Rooms in the order in which they are read; those on one line do not know each other:

    columns, errors, installation, references
    machine, solve
    training
    formats
    kernels
    steps
    lstm
    rules
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.errors import DseError
    from costmodel.formats.model_file import load_model, model_names
    from costmodel.formats.system_file import load_system, system_names
    from costmodel.lstm import LstmDesign, LstmShape, lstm_step
    from costmodel.machine import Chip, Host, LinkTier, MemoryLevel, Modules, Software, System
    from costmodel.steps.breakdown import Breakdown
    from costmodel.steps.pipeline.timed_pipelines import PipelineTimes, pipeline_times
    from costmodel.steps.transformer import resolve_sharding, resolve_tiling, step
    from costmodel.training.design import DesignPoints
    from costmodel.training.model import ModelShape

__all__ = [
    "Breakdown", "Chip", "DesignPoints", "DseError", "Host", "LinkTier", "LstmDesign", "LstmShape",
    "MemoryLevel", "ModelShape", "Modules", "PipelineTimes", "Software", "System", "load_model", "load_system",
    "lstm_step", "model_names", "pipeline_times", "resolve_sharding", "resolve_tiling", "step",
    "system_names",
]  # fmt: skip

#: Where the names above live: imported when first used, so that the command line starts at once.
_HOMES = {
    name: home
    for home, names in {
        "costmodel.errors": "DseError",
        "costmodel.formats.model_file": "load_model model_names",
        "costmodel.formats.system_file": "load_system system_names",
        "costmodel.machine": "Chip Host LinkTier MemoryLevel Modules Software System",
        "costmodel.lstm": "LstmDesign LstmShape lstm_step",
        "costmodel.steps.pipeline.timed_pipelines": "PipelineTimes pipeline_times",
        "costmodel.steps.breakdown": "Breakdown",
        "costmodel.steps.transformer": "resolve_sharding resolve_tiling step",
        "costmodel.training.design": "DesignPoints",
        "costmodel.training.model": "ModelShape",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'costmodel' has no attribute {name!r}")
