"""Prices training designs: arrays in, arrays out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from costmodel.breakdown import Breakdown
from costmodel.design import DesignPoints, LstmDesign
from costmodel.errors import DseError
from costmodel.lstm_step import lstm_step
from costmodel.model import LstmShape, ModelShape
from costmodel.step import settled_sharding, step
from costmodel.system import Chip, Host, LinkTier, MemoryLevel, System

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
