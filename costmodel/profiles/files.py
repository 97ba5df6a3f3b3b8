"""Kinds of files that profiles evaluate, each known by its content."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from costmodel.formats.input_files import content
from costmodel.hlo.text.parser import other_text

#: As much of a file as tells its kind. [B]
HEAD: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that a profile evaluates, and how its content is known."""

    name: str
    title: str  #: with its article
    begins: Callable[[bytes], bool]  #: whether a file that begins so is one
    profile: Callable[[Path], str]  #: the rules that evaluate a file where none are named


def _is_hlo(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"HloModule")


def _is_aicb(head: bytes) -> bool:
    """The first line is a training loop and tokens, and the second a number of rows."""
    words, _, rest = head.partition(b"\n")
    return b"model_parallel_NPU_group" in words or (
        words.split()[:1] == [b"HYBRID_TRANSFORMER_FWD_IN_BCKWD"] and rest.split()[:1] != []
    )


def _is_deepflow(head: bytes) -> bool:
    return re.search(rb"^\s*schema\s*:\s*['\"]?deepflow", head, re.MULTILINE) is not None


def _is_dfmodel(head: bytes) -> bool:
    from costmodel.profiles.dfmodel.files import is_setup

    return is_setup(head)


def _dfmodel_profile(path: Path) -> str:
    """The generation that a file's content asks for, the later of two."""
    from costmodel.profiles.dfmodel.files import load_setup
    from costmodel.profiles.dfmodel.files.setup_files import ROOTS

    generations = {root: generation for generation, root in ROOTS.items()}
    return f"dfmodel-{generations[type(load_setup(path)).__name__]}"


#: All kinds, in the order in which they are tried.
FILES: Final = (
    FileKind("hlo", "an HLO module", _is_hlo, lambda path: "native"),
    FileKind("aicb", "an AICB workload", _is_aicb, lambda path: "simai"),
    FileKind("deepflow", "a DeepFlow configuration", _is_deepflow, lambda path: "deepflow"),
    FileKind("dfmodel", "a DFModel set-up", _is_dfmodel, _dfmodel_profile),
)
_BY_NAME: Final = {kind.name: kind for kind in FILES}

#: What is printed of runs, and holds no work: how it begins, what it is, what would do.
_LOGS: Final = (
    (
        re.compile(rb"^(inflection_point|comp_int): ", re.MULTILINE),
        "is a log that DeepFlow printed; give its run's configuration, a YAML file of schema deepflow/v1 "
        "(docs/deepflow.md)",
    ),
)


def kind_named(name: str) -> FileKind:
    """A kind of file by its name."""
    return _BY_NAME[name]


def kind_of(path: Path) -> FileKind | None:
    """The kind of a file by its content, packed by gzip or not; None where it is of none.

    Raises `DseError` if it cannot be read, or is what a compiler or a run prints besides.
    """
    head = content(path, HEAD)
    if len(head) == HEAD:
        head = head.rpartition(b"\n")[0] or head  # not in the middle of a character
    other = other_text(head)
    if other:
        raise DseError(f"{path}: {other}")
    for kind in FILES:
        if kind.begins(head):
            return kind
    for pattern, advice in _LOGS:
        if pattern.search(head):
            raise DseError(f"{path}: {advice}")
    return None
