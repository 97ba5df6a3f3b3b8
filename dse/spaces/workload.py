"""One of the workloads of a space of machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

OwnSpace = TypeVar("OwnSpace")


@dataclass(frozen=True)
class SpaceWorkload(Generic[OwnSpace]):
    """A model, and how it may be laid out on each machine."""

    name: str
    weight: float  #: of its step among those of all [-]
    space: OwnSpace  #: of it alone, with its layouts exact, judged by what its layout is chosen by
