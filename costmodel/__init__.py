"""Prices training designs: arrays in, arrays out."""

from costmodel.breakdown import Breakdown
from costmodel.design import DesignPoints
from costmodel.errors import DseError
from costmodel.model import ModelShape
from costmodel.system import Chip, Host, LinkTier, MemoryLevel, System

__all__ = [
    "Breakdown",
    "Chip",
    "DesignPoints",
    "DseError",
    "Host",
    "LinkTier",
    "MemoryLevel",
    "ModelShape",
    "System",
]
