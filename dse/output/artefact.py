"""A file that a design becomes in the hands of another program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.columns import short_repr


@dataclass(frozen=True)
class Artefact:
    """A file, and what its reader will stumble over."""

    __repr__ = short_repr

    #: Of a file, or of several by name; None where the design has no such file, and the notes say why.
    content: bytes | Mapping[str, bytes] | None
    notes: tuple[str, ...]
