"""Finds input files: by the name of one that ships, or by path."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import search_spaces
from costmodel.errors import DseError, suggestion
from costmodel.formats.strict_yaml import Section, parse, read_text

ROOT: Final = Path(search_spaces.__file__).parent


def names(kind: str) -> list[str]:
    """Names of the files of a kind ("spaces", "models", "systems" or "frameworks") that ship, in order."""
    return sorted(path.stem for path in (ROOT / kind).glob("*.yaml"))


def opened(name_or_path: str | Path, kind: str, base: Path | None = None) -> tuple[str, Path, Section]:
    """Name, path and content of a file; a relative path counts from `base`.

    Raises
    ------
    DseError
        If no such file ships or exists, or it holds no keys and values.
    """
    path = located(name_or_path, kind, base or Path())
    shown = path.name if path.parent == ROOT / kind else str(path)
    return path.stem, path, parse(read_text(path), shown)


def located(name_or_path: str | Path, kind: str, base: Path) -> Path:
    """Path of a file: a word is the name of one that ships, anything else a path."""
    text = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml"))
    if not is_path:
        if text in names(kind):
            return ROOT / kind / f"{text}.yaml"
        raise DseError(
            f"{text}: no {kind.removesuffix('s')} of this name ships{suggestion(text, names(kind))}; "
            f"a file of your own is named by its path, such as ./{text}.yaml"
        )
    return base / text
