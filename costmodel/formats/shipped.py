"""Finds input files: by the name of a built-in file, by the names that people type for it, or by path."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import search_spaces
from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import Section, parse, read_text

ROOT: Final = Path(search_spaces.__file__).parent
#: Key of a system file: the system whose constants it changes.
BASE: Final = "base"
#: Beginnings and endings of names on the Hugging Face Hub that leave the architecture as it is.
_BEGINNING: Final = re.compile(r"^(nvidia|meta)[-_]", re.I)
_ENDINGS: Final = re.compile(
    r"[-_](instruct|chat|base|hf|it|pt|thinking|original|v0\.[1-3]|[0-2]\d{3}|fp8|bf16|nvfp4|mxfp4)$", re.I
)


@cache
def names(kind: str) -> list[str]:
    """Sorted names of the built-in "spaces", "models", "systems" or "frameworks"."""
    return sorted(path.stem for path in (ROOT / kind).glob("*.yaml"))


def current_name(text: str, kind: str) -> str:
    """The built-in name that a usual name stands for, such as ``h100`` or a name on the Hub; else `text`.

    >>> current_name("h100", "systems"), current_name("meta-llama/Llama-3.1-70B-Instruct", "models")
    ('h100_80g_dgx', 'llama3_70b')
    """
    return text if text in names(kind) else _usual_names(kind).get(_plain(text), text)


@cache
def _usual_names(kind: str) -> dict[str, str]:
    """Usual name, without case and separators -> name of the built-in file."""
    plain_names = {_plain(name): name for name in names(kind)}
    return {_plain(usual): name for usual, name in spellings(kind).items()} | plain_names


@cache
def spellings(section: str) -> dict[str, str]:
    """Spelling that people type -> its meaning, of a section of ``names.yaml``."""
    table = parse(read_text(ROOT / "names.yaml"), "names.yaml").data.get(section, {})
    return {usual: name for name, usuals in table.items() for usual in usuals}


def _plain(text: str) -> str:
    """A name without its owner, its usual beginning and endings, its case and its separators."""
    name = _BEGINNING.sub("", text.strip("/").rpartition("/")[2])
    while match := _ENDINGS.search(name):
        name = name[: match.start()]
    return re.sub(r"[-_. ]", "", name).lower()


def opened(name_or_path: str | Path, kind: str, base: Path | None = None) -> tuple[str, Path, Section]:
    """Name, path and content of a file; a relative path counts from `base`.

    Raises `DseError` if there is no built-in or other file of that name, or it holds no keys and values.
    """
    path = located(name_or_path, kind, base or Path())
    shown = path.name if path.parent == ROOT / kind else str(path)
    section = parse(read_text(path), shown)
    return path.stem, path, changed_base(section, kind, path) if BASE in section else section


def changed_base(section: Section, kind: str, path: Path) -> Section:
    """The file that `base` names, with the changes of this one.

    A changed constant without a kind is assumed, and its source names both files.

    Raises `DseError` if there is no such file, or it is not of `kind`, or it is made of this one.
    """
    changes = {key: value for key, value in section.data.items() if key != BASE}
    if kind != "systems":
        section.mistake(BASE, "only system files have a base")
    word = section.text(BASE)
    section.source.finish()
    known = located(word, kind, path.parent)
    if known.resolve() == path.resolve():
        raise DseError(f"{path}: base: names the file itself")
    content = parse(read_text(known), known.name)
    if BASE in content:
        raise DseError(f"{path}: base: {word} has a base itself; name that one, or write its changes here")
    content.data.pop("name", None)
    source = f"changed from {known.stem} by {path.name}"
    data = {**_changed(section, content.data, changes, source), "schema": content.data.get("schema")}
    section.source.finish()
    about: dict[str, Any] = {key: changes[key] for key in ("schema", "name", "description") if key in changes}
    return Section(section.source, section.at, {"description": source, **data, **about})


def _changed(
    section: Section, base: dict[str, Any], changes: dict[str, Any], source: str, at: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Parts of a file with changed constants, each with its kind and source; notes changes that name no part."""
    changed = dict(base)
    for key, value in changes.items():
        before, is_part = base.get(key), isinstance(value, dict) and "value" not in value
        if isinstance(before, dict) and "value" not in before and not is_part:
            section.source.mistake((*at, key), "expected quantities, such as {clock: 1.6 GHz}")
        elif is_part and at and not isinstance(before, dict):
            section.source.mistake((*at, key), f"the base has no such part{suggestion(key, base)}")
        elif is_part:
            part = dict(before or {})
            if "capacity" in value:  # the size that is sold is that of the old capacity
                part.pop("nominal", None)
            changed[key] = _changed(section, part, value, source, (*at, key))
        elif at:
            constant = value if isinstance(value, dict) else {"value": value}
            changed[key] = {"kind": "assumed", "source": source, **constant}
        else:
            changed[key] = value
    return changed


def located(name_or_path: str | Path, kind: str, base: Path) -> Path:
    """Path of a file: of a built-in one by its name or a usual name, else as a path from `base`."""
    text = str(name_or_path)
    has_ending = re.search(r"\.[a-z]+$", text)
    is_path = isinstance(name_or_path, Path) or "/" in text or has_ending
    if not (is_path and (base / text).exists()) and (known := current_name(text, kind)) in names(kind):
        return ROOT / kind / f"{known}.yaml"
    on_hub = kind == "models" and re.fullmatch(r"[\w-]+/[\w.-]+", text) and not has_ending
    if is_path and (not on_hub or (base / text).exists()):
        return base / text
    hint = unknown_name(text, kind)
    others = "Others on the Hub: name their config.json" if on_hub else f"Files need a path, such as ./{text}.yaml"
    raise DseError(
        f"unknown {kind.removesuffix('s')} {text!r}{hint}{' ' if hint.endswith('?') else '; '}"
        f"`dse list {kind}` shows all. {others}"
    )


def unknown_name(text: str, kind: str) -> str:
    """The way on from a name that no built-in file of a kind has: similar names, or the kind of file that has it.

    >>> unknown_name("llama3_70b", "spaces"), unknown_name("h100", "models")
    ('; it is a model: `dse plan llama3_70b --gpus N --system S`', '; it is a system')
    """
    for other, command in {"models": f": `dse plan {text} --gpus N --system S`", "systems": "", "spaces": ""}.items():
        if other != kind and current_name(text, other) in names(other):
            return f"; it is a {other.removesuffix('s')}{command}"
    return suggestion(text, names(kind))
