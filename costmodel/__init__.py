"""Prices training designs: arrays in, arrays out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from costmodel.errors import DseError
from costmodel.machine.system import Chip, Host, LinkTier, MemoryLevel, System
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.lstm import lstm_step
from costmodel.steps.transformer import settled_sharding, step
from costmodel.training.design import DesignPoints, LstmDesign
from costmodel.training.model import LstmShape, ModelShape

if TYPE_CHECKING:
    from costmodel.formats.model_file import load_model, model_names
    from costmodel.formats.system_file import load_system, system_names

__all__ = [
    "Breakdown",
    "Chip",
    "DesignPoints",
    "DseError",
    "Host",
    "LinkTier",
    "LstmDesign",
    "LstmShape",
    "MemoryLevel",
    "ModelShape",
    "System",
    "load_model",
    "load_system",
    "lstm_step",
    "model_names",
    "settled_sharding",
    "step",
    "system_names",
]

#: Names that read files, which pricing does without: imported when first used.
_READERS = {
    "load_model": "costmodel.formats.model_file",
    "model_names": "costmodel.formats.model_file",
    "load_system": "costmodel.formats.system_file",
    "system_names": "costmodel.formats.system_file",
}


def __getattr__(name: str) -> Any:
    if name in _READERS:
        return getattr(import_module(_READERS[name]), name)
    raise AttributeError(f"module 'costmodel' has no attribute {name!r}")
