"""A rank's execution trace as Chakra has them: nodes one behind the other, and the bytes of its file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.proto import serialize_length_prefixed

from costmodel.formats.input_files import data_beside

#: A message of `schema.proto`. Classes are made of the schema as it is read, hence untyped.
Message = Any
[_FILE] = FileDescriptorSet.FromString(files(__package__).joinpath("schema.binpb").read_bytes()).file
_SCHEMA: Final = descriptor_pool.Default().AddSerializedFile(_FILE.SerializeToString())
_CLASSES: Final = {n: message_factory.GetMessageClass(m) for n, m in _SCHEMA.message_types_by_name.items()}
#: Type of a collective -> its number.
COLLECTIVES: Final = {row.name: row.number for row in _SCHEMA.enum_types_by_name["CollectiveCommType"].values}
#: Version of the format that is named in a file.
VERSION: Final = "1.0.0"
#: Attribute -> the field of its value, as Chakra's feeder reads it.
FIELDS: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["fields"]
#: Value of an attribute.
Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of a rank; its dependencies have smaller numbers."""

    id: int
    name: str
    type: str  #: of `schema.proto`
    start: int  #: [us]
    duration: int  #: [us]
    order: Sequence[int]  #: nodes that it follows because of the schedule
    data: Sequence[int]  #: nodes whose results it takes
    attributes: Mapping[str, Value]
    inputs: str = ""
    about: object = None  #: its part of the step, such as a pass or an exchange; no file has it


@dataclass(slots=True)
class RankTrace:
    """The trace of one rank."""

    rank: int
    metadata: Mapping[str, Value]
    nodes: list[Node] = field(default_factory=list)

    def add(
        self,
        name: str,
        kind: str,
        times: tuple[int, int],
        attributes: Mapping[str, Value] | None = None,
        *,
        order: Iterable[int] = (),
        data: Iterable[int] = (),
        about: object = None,
    ) -> int:
        """Append a node, with its start and end, and return its number. [us]"""
        start, end = times
        number = len(self.nodes)
        attributes_here = {"is_cpu_op": False, **(attributes or {})}
        self.nodes.append(Node(number, name, kind, start, end - start, [*order], [*data], attributes_here, about=about))
        return number

    def encoded(self) -> bytes:
        """The file: metadata, then nodes, each message behind its length as a varint."""
        stream = io.BytesIO()
        metadata = _CLASSES["GlobalMetadata"](version=VERSION, attr=_attributes(self.metadata))
        serialize_length_prefixed(metadata, stream)
        for node in self.nodes:
            serialize_length_prefixed(_message(node), stream)
        return stream.getvalue()


def process_groups(groups: Mapping[str, tuple[str, Sequence[int]]]) -> str:
    """Groups of ranks as PyTorch's traces list them: name -> purpose and ranks; an empty list means all."""
    rows = [{"pg_name": name, "pg_desc": of, "ranks": [*ranks]} for name, (of, ranks) in groups.items()]
    return f"['{json.dumps(rows)}']"


def _message(node: Node) -> Message:
    """A node as a message."""
    return _CLASSES["Node"](
        id=node.id,
        name=node.name,
        type=node.type,
        ctrl_deps=node.order,
        data_deps=node.data,
        start_time_micros=node.start,
        duration_micros=node.duration,
        inputs=_CLASSES["IOInfo"](values=node.inputs) if node.inputs else None,
        attr=_attributes(node.attributes),
    )


def _attributes(values: Mapping[str, Value]) -> list[Message]:
    """Attributes, each in the field that readers expect."""
    return [_CLASSES["AttributeProto"](name=name, **{FIELDS[name]: value}) for name, value in values.items()]
