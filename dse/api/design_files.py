"""Recognition of a word: the name or file of a space, a launch file, or a workload file, which `cost` evaluates.

Files are recognized by their content, never by their names. A file of another kind gets a line with its command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from costmodel.errors import DseError, ParameterError
from costmodel.formats import shipped
from costmodel.formats.input_files import content
from costmodel.rules.registry import profile_named
from dse.registry import HEAD, FileKind, WorkloadKind, file_kinds, load, recognized, workload_kinds

#: The kind of a search space.
SPACE: Final = "space"
#: A search space.
_SPACE: Final = re.compile(rb"^[{ \t]*['\"]?schema['\"]?\s*:\s*['\"]?search_space/", re.MULTILINE)
_LIKE_A_SPACE: Final = re.compile(rb"^(model|system|parameters|layouts|objectives)[ \t]*:", re.MULTILINE)
#: A system file.
_SYSTEM: Final = re.compile(rb"^(schema\s*:\s*['\"]?system/|base\s*:)", re.MULTILINE)
_PLAN: Final = "use `dse plan {} --gpus N --system S`"
#: Files that are not designs: content -> advice to the user.
_OTHERS: Final = (
    (re.compile(rb"^schema\s*:\s*['\"]?model/", re.MULTILINE), f"is a model file; {_PLAN}"),
    (_SYSTEM, "is a system file; use it as --system {}"),
    (re.compile(rb'"(architectures|model_type)"\s*:'), f"is a model configuration; {_PLAN}"),
    (
        re.compile(rb"(?m)^[ \t]*(base_model|(pretrained_)?model_name_or_path|model_config|_target_|_component_)\s*:"),
        "is of a trainer that dse does not read; use `dse plan MODEL --gpus N --system S`, for adapters with --lora 16",
    ),
)


def title_of(kind: str) -> str:
    """The name of a kind of design in messages."""
    return "a space" if kind == SPACE else file_kinds()[kind].title if kind in file_kinds() else f"{kind!r}"


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
    head = content(path, HEAD) if path.exists() else b""
    if _SPACE.search(head):
        return SPACE
    kind = recognized(path, head) if path.exists() else None
    if form := launch_form(text, kind):
        return form
    if not path.exists():
        none = f"no built-in space and no file of this name{shipped.unknown_name(text, 'spaces')}"
        more = "(`dse list spaces` shows all; `dse explain` reads studies)"
        raise DseError(f"{text}: no such file" if re.search(r"[/.]", text) else f"{text}: {none} {more}")
    for pattern, advice in _OTHERS:
        if pattern.search(head):
            raise DseError(f"{path}: {advice.format(path)}")
    if kind is None and _LIKE_A_SPACE.search(head) and not profile:
        return SPACE  # which names the missing part
    return _evaluated_by(kind, path, profile).name


def _file(text: str) -> Path:
    """The file of a word: of ``FILE.py:FUNCTION`` too."""
    return Path(re.sub(r"(\.py):\w+$", r"\1", text))


def launch_form(text: str, kind: FileKind | None = None) -> str:
    """The form of a launch file, or of the call of a launch script, such as ``"TP=8 train.sh 7b"``; "" of others.

    `kind` is the kind of the file if known.
    """
    path = _file(text)
    if not path.is_file():
        with suppress(ValueError):  # of quotes without an end
            words = shlex.split(text)
            return "megatron" if len(words) > 1 and any(Path(word).is_file() for word in words) else ""
        return ""
    kind = kind or recognized(path)
    if kind is None:
        return next((name for name, known in file_kinds().items() if path.suffix in known.usual_endings), "")
    return "" if isinstance(kind, WorkloadKind) else kind.name


def _evaluated_by(kind: FileKind | None, path: Path, profile: str | None) -> WorkloadKind:
    kinds, asked = workload_kinds(), profile_named(profile).file if profile else None
    if not isinstance(kind, WorkloadKind):
        if asked is None:
            what = "empty" if not content(path, 1) else "unrecognized content"
            titles = ", ".join(kind.title for kind in file_kinds().values())
            raise ParameterError(f"{path}: {what}; give a space, {titles}, or name its kind with {{profile}}")
        return kinds[asked]
    if asked not in (None, kind.name):
        raise ParameterError(f"{path}: is {kind.title}; leave out {{profile}} {profile}, which does not evaluate it")
    return kind


def cost(
    file: str | Path, *, profile: str | None = None, note: Callable[[str], None] = lambda text: None,
    system: str | None = None, barriers: Literal["barrier", "element"] | None = None, large: bool | None = None,
    resolve: bool | None = None, prefer: str | None = None, most_groups: int | None = None,
    tile_size: int | None = None, gpus: int | None = None, gpus_per_server: int | None = None,
    busbw: str | Path | None = None, gpu_type: str | None = None, nvlink_bandwidth: float | None = None,
    nics_per_server: int | None = None, nic_type: str | None = None, nic_bandwidth: float | None = None,
    dp_overlap: float | None = None, tp_overlap: float | None = None, ep_overlap: float | None = None,
    pp_overlap: float | None = None, strict_compat: bool | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Evaluate an HLO module, or a file of a reference model: the JSON of `dse evaluate FILE`.

    Raises `DseError` if the file is of no known kind, or not of the kind of its profile or of an option.

    Parameters
    ----------
    file : str or Path
        The file; its kind follows from its content.
    profile : str, optional
        Rules that evaluate it; by default those of its kind.
    note : callable
        Called with each line on an assumption.
    system, barriers, large
        Of an HLO module; as for `load_module`.
    resolve, prefer, most_groups, tile_size
        Of a DFModel set-up.
    gpus, gpus_per_server, busbw, gpu_type, nvlink_bandwidth, nics_per_server, nic_type, nic_bandwidth
        Of an AICB workload, as its overlaps and `strict_compat`: those of `simai_cost` and `network_of`. [-], [B/s]
    """
    given = {name: value for name, value in locals().items() if value is not None}
    path = Path(given.pop("file"))
    given = {"groups" if name == "most_groups" else name: given[name] for name in given.keys() - {"profile", "note"}}
    kind = _evaluated_by(recognized(path), path, profile)
    for name in given.keys() - kind.defaults:
        raise ParameterError(f"{{{name}}}: not an option of {kind.title}, which {path} is")
    return dict(load(kind.record)(path, profile or kind.profile_of(path), profile is not None, given, note))
