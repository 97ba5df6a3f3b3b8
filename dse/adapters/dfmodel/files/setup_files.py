"""DFModel's files, text and binary, of the generations whose blocks differ."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import file_bytes

#: A set-up: SetupGen1, SetupGen2 or SetupGen3. Classes are made of the schema as it is read, hence untyped.
Message = Any

[_FILE] = FileDescriptorSet.FromString(files(__package__).joinpath("schema.binpb").read_bytes()).file
#: Name -> descriptor of each message of the schema.
_MESSAGES: Final = descriptor_pool.Default().AddSerializedFile(_FILE.SerializeToString()).message_types_by_name

#: Generation of the cost model -> the root message of its files.
ROOTS: Final = {"gen1": "SetupGen1", "gen2a": "SetupGen2", "gen2b": "SetupGen3", "gen3": "SetupGen3"}

#: Marks of a text file.
_BLOCK = re.compile(r"^[^\S\n]*(dataflow_graph|system|cost|miscellany|execution|gurobi)\s*(?::\s*)?\{", re.MULTILINE)
_SCHEMA = re.compile(r"^[^\S\n]*schema\s*:", re.MULTILINE)  # of a YAML file, whose lists may open with a brace
_GEN3 = re.compile(r"^[^\S\n]*(overlap|separate_rs_ag_for_ar)\s*:", re.MULTILINE)

_AT = re.compile(r"^(\d+):(\d+) : (.*)$", re.DOTALL)
_UNKNOWN = re.compile(r'Message type "costmodel\.dfmodel\.(\w+)" has no field named "(\w+)"')


def is_setup(data: bytes) -> bool:
    """True if the content of a file looks like a set-up of DFModel, as text or binary."""
    text = _as_text(data)
    if text is None:
        return bool(data)
    return _BLOCK.search(text) is not None and _SCHEMA.search(text) is None


def profile_of(path: Path) -> str:
    """The profile of the generation that the content of a file asks for, the later of two."""
    generations = {root: generation for generation, root in ROOTS.items()}
    return f"dfmodel-{generations[type(load_setup(path)).__name__]}"


def load_setup(path: Path) -> Message:
    """The set-up in a text or binary file.

    A binary file of the first three generations says no more than that its number 16 is set: it is read
    as `miscellany`, unless it holds what only the third generation has.

    Raises `DseError` with line and column of a mistake in text, or the number of an unknown field in binary.
    """
    data = file_bytes(path)
    text = _as_text(data)
    return _from_bytes(data, str(path)) if text is None else _from_text(text, str(path))


def empty_setup(root: str) -> Message:
    """A set-up without content, of a root message of `ROOTS`."""
    return message_factory.GetMessageClass(_MESSAGES[root])()


def setup_text(message: Message) -> str:
    """A set-up as text; negative zeros keep their sign."""
    return str(text_format.MessageToString(message))


def setup_bytes(message: Message) -> bytes:
    """Binary file of a set-up."""
    return bytes(message.SerializeToString(deterministic=True))


def _as_text(data: bytes) -> str | None:
    """The content as text; None where it is binary."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[^\S\n\r\t ]|[\x00-\x08\x0e-\x1f]", text) else text


def _from_text(text: str, where: str) -> Message:
    root = "SetupGen1"
    if re.search(r"^[^\S\n]*execution\s*(?::\s*)?\{", text, re.MULTILINE):
        root = "SetupGen3" if _GEN3.search(text) else "SetupGen2"
    try:
        return text_format.Parse(text, empty_setup(root))
    except text_format.ParseError as error:
        raise DseError(f"{where}: {_explained(str(error))}") from error
    except ValueError as error:  # a number outside its type, which the parser does not place
        raise DseError(f"{where}: {error}; expected a code of the format") from error


def _explained(error: str) -> str:
    """The parser's message: where, what, and what would do."""
    match = _AT.match(error)
    line, column, what = match.groups() if match else ("", "", error)
    unknown = _UNKNOWN.search(what)
    if unknown:
        kind, name = unknown.groups()
        known = _MESSAGES[kind].fields_by_name
        what = f"{kind} has no field {name!r}{suggestion(name, known)}"
    else:
        what = " ".join(what.splitlines()).rstrip(".").replace("costmodel.dfmodel.", "")
    return f"line {line}, column {column}: {what}" if match else what


def _from_bytes(data: bytes, where: str) -> Message:
    try:
        message = empty_setup("SetupGen3").FromString(data)
        newer = message.execution.overlap > 1 or message.execution.separate_rs_ag_for_ar
        message = message if newer else empty_setup("SetupGen1").FromString(data)
    except DecodeError as error:
        raise DseError(f"{where}: neither text nor a whole binary set-up of DFModel") from error
    unknown = list(_unknown_fields(message, ""))
    if unknown:
        raise DseError(f"{where}: no such field: {', '.join(unknown)}")
    return message


def _unknown_fields(message: Message, where: str) -> list[str]:
    """Numbers of the fields that the schema lacks, with the way to them."""
    unknown = [f"{where}{field.field_number}" for field in UnknownFieldSet(message)]
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in value if descriptor.is_repeated else [value]:
                unknown += _unknown_fields(inner, f"{where}{descriptor.name}.")
    return list(dict.fromkeys(unknown))
