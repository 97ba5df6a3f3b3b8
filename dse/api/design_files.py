"""Recognizes what a word names: a space, a launch file, or a workload file of another program."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats import shipped
from costmodel.formats.input_files import content
from costmodel.rules.registry import profile_named
from dse.registry import HEAD, FileKind, WorkloadKind, file_kinds, launch_forms, recognized, workload_kinds

#: The kind of a search space.
SPACE: Final = "space"
#: A search space.
_SPACE: Final = re.compile(rb"^[{ \t]*['\"]?schema['\"]?\s*:\s*['\"]?search_space/", re.MULTILINE)
#: A system file.
_SYSTEM: Final = re.compile(rb"^(schema\s*:\s*['\"]?system/|base\s*:)", re.MULTILINE)
#: Files that are no designs: what they have in them -> what to do with them.
_OTHERS: Final = (
    (
        re.compile(rb"^schema\s*:\s*['\"]?model/", re.MULTILINE),
        "is a model file; use `dse plan {} --gpus N --system S`",
    ),
    (_SYSTEM, "is a system file; use it as --system {}"),
    (
        re.compile(rb'"(architectures|model_type)"\s*:'),
        "is a model configuration; use `dse plan {} --gpus N --system S`",
    ),
)


def title_of(kind: str) -> str:
    """The name of a kind of design in messages."""
    return "a space" if kind == SPACE else file_kinds()[kind].title


def kind_of_design(text: str, profile: str | None = None) -> str:
    """The kind of design that a word names: `SPACE`, or the name of a kind of file.

    Raises `DseError` if it names nothing, or a file of no kind of design.

    Parameters
    ----------
    text : str
        Name of a built-in space, path of a file, ``FILE.py:FUNCTION`` of torchtitan, or the call of a shell
        script with variables and arguments, such as ``"TP=8 train.sh 7b"``.
    profile : str, optional
        A cost model that the user named; it decides the kind of a file whose content does not.
    """
    if text in shipped.names("spaces"):
        return SPACE
    path = _file(text)
    if not path.exists():
        return _absent(text)
    head = content(path, HEAD)
    if _SPACE.search(head):
        return SPACE
    kind = recognized(path, head)
    if kind and not isinstance(kind, WorkloadKind):
        return kind.name
    for pattern, advice in _OTHERS:
        if pattern.search(head):
            raise DseError(f"{path}: {advice.format(path)}")
    if kind is None:
        usual = next((name for name, own in file_kinds().items() if path.suffix in own.usual_endings), "")
        if usual:
            return usual
        if path.suffix in (".yaml", ".yml") and not profile:
            return SPACE  # which says what is missing
    return _evaluated_by(kind, path, profile).name


def _file(text: str) -> Path:
    """The file of a word: of ``FILE.py:FUNCTION`` too."""
    return Path(re.sub(r"(\.py):\w+$", r"\1", text))


def is_launch(text: str) -> bool:
    """True for a launch file, and for the call of a launch script, such as ``"TP=8 train.sh 7b"``."""
    path = _file(text)
    is_file = path.is_file() and not _SYSTEM.search(content(path, HEAD))
    return is_call(text) or (is_file and kind_of_design(text) in launch_forms())


def is_call(text: str) -> bool:
    """True for the call of a script with variables or arguments."""
    try:
        words = [] if Path(text).is_file() else shlex.split(text)
    except ValueError:
        words = []
    return len(words) > 1 and any(Path(word).is_file() for word in words)


def _absent(text: str) -> str:
    """The kind of a word that is no file: the call of a script."""
    if is_call(text):
        return "megatron"
    known = shipped.names("spaces")
    if "/" in text or "." in text:
        raise DseError(f"{text}: no such file")
    raise DseError(f"{text}: no built-in space and no file of this name{suggestion(text, known)} "
                   "(`dse list spaces` shows all; `dse explain` reads studies)")  # fmt: skip


def checked_kind(path: Path, profile: str | None) -> WorkloadKind:
    """The kind of a file that a profile evaluates; a `DseError` if it is none, or not the one of `profile`."""
    return _evaluated_by(recognized(path), path, profile)


def _evaluated_by(kind: FileKind | None, path: Path, profile: str | None) -> WorkloadKind:
    kinds, asked = workload_kinds(), profile_named(profile).file if profile else None
    if not isinstance(kind, WorkloadKind):
        if asked is None:
            what = "empty" if not content(path, 1) else "unrecognized content"
            titles = ", ".join(kind.title for kind in kinds.values())
            raise ParameterError(f"{path}: {what}; give {titles}, or name its kind with {{profile}}")
        return kinds[asked]
    if asked not in (None, kind.name):
        raise ParameterError(f"{path}: is {kind.title}; leave out {{profile}} {profile}, which does not evaluate it")
    return kind
