"""A space as commands and functions take it: by name, with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import ParameterError, suggestion
from costmodel.formats.quantity import count_value
from dse.spaces.space import Space

#: A space, the name of one that ships, or the path of a YAML file.
AnySpace = Space | str | Path
#: What `--set` says: name -> value, as a file writes it or as a number in SI units.
Pins = Mapping[str, Any] | None


def chosen_space(
    space: AnySpace, *, set: Pins = None, layout: str | None = None, objective: Sequence[str] = (),
    tokens: float | str | None = None,
) -> Space:  # fmt: skip
    """A space with what options of a command change in it.

    Raises `DseError` if it does not load, or cannot be changed so.

    Parameters
    ----------
    space : Space, str or Path
        A space, the name of one that ships, or a YAML file.
    set : mapping, optional
        Parameters to pin, and what else to hold fixed: a text as a file has it, or a number in SI units.
    layout : str, optional
        A layout of the space whose parameters are pinned, those of `set` aside.
    objective : sequence of str
        What to seek in place of the space's objectives, such as ``"maximize:tokens_per_second"``.
    tokens : float or str, optional
        Tokens of whole runs, such as ``"15T"``, which are then judged. [tokens]
    """
    space, pins = loaded_space(space), dict(set or {})
    if tokens:
        space = space.with_tokens(counted_tokens(tokens))
    if layout:
        if layout not in space.layouts:
            have = "; it has none" if not space.layouts else suggestion(layout, space.layouts)
            raise ParameterError(f"{{layout}} {layout}: no layout of space {space.name}{have}")
        pins = {**space.layouts[layout], **pins}
    if pins:
        space = space.pinned(pins)
    return space.with_objectives(objective) if objective else space


def loaded_space(space: AnySpace) -> Space:
    """A space itself, or the one of that name or in that file; a `DseError` if it does not load."""
    return space if isinstance(space, Space) else Space.load(space)


def counted_tokens(tokens: float | str) -> float:
    """A count of tokens, such as ``"15T"``; a `DseError` if it is none."""
    try:
        return count_value(tokens) if isinstance(tokens, str) else float(tokens)
    except ValueError as error:
        raise ParameterError(f"{{tokens}}: {error}") from None
