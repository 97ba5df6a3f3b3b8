"""A file that a design becomes in the hands of another program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Artefact:
    """A file, and what its reader will stumble over."""

    content: bytes | None  #: None where the design has no such file; the notes say why
    notes: tuple[str, ...]
