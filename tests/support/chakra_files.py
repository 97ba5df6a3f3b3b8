"""Execution traces of Chakra, read back byte by byte."""

from collections import Counter

import numpy as np
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

#: Types of nodes and of collectives in Chakra's et_def.proto.
METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
MESSAGE = ("comm_src", "comm_dst", "comm_tag", "comm_size")
#: Wire type of 64-bit numbers. [-]
DOUBLE = 1


def varint(data, at):
    """A number of the wire format, and where the next begins."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(data):
    """Field -> its values of a message in protobuf's wire format: numbers, or bytes."""
    values = {}
    for field in UnknownFieldSet(Empty.FromString(data)):
        value = float(np.uint64(field.data).view(np.float64)) if field.wire_type == DOUBLE else field.data
        values.setdefault(field.field_number, []).append(value)
    return values


def packed(values):
    """Numbers of lists that are written without a field number for each."""
    numbers = []
    for data in values:
        at = 0
        while at < len(data):
            number, at = varint(data, at)
            numbers.append(number)
    return numbers


def attributes(message, field):
    """Name -> value; a 0 that is chosen of several fields is written."""
    pairs = {}
    for data in message.get(field, []):
        entries = fields(data)
        [name] = entries.pop(1)
        [[value]] = entries.values()
        pairs[name.decode()] = value.decode() if isinstance(value, bytes) else value
    return pairs


def decoded(content):
    """Metadata and nodes of a file, by the field numbers of Chakra's et_def.proto."""
    messages, at = [], 0
    while at < len(content):
        length, at = varint(content, at)
        messages.append(fields(content[at : at + length]))
        at += length
    nodes = [
        {
            "id": message.get(1, [0])[0],
            "name": message[2][0].decode(),
            "type": message[3][0],
            "after": [*packed(message.get(4, [])), *packed(message.get(5, []))],
            "control": packed(message.get(4, [])),
            "micros": message.get(7, [0])[0],
            "inputs": fields(message[8][0])[1][0].decode() if 8 in message else "",
            **attributes(message, 10),
        }
        for message in messages[1:]
    ]
    return attributes(messages[0], 2), nodes


def key(node):
    return tuple(node[name] for name in MESSAGE)


def of_type(nodes, kind, word=""):
    return [node for node in nodes if node["type"] == kind and word in node["name"]]


def assert_messages_arrive(traces):
    """Every message of a rank, by rank and nodes, is sent once and received once."""
    sent, received = Counter(), Counter()
    for rank, nodes in traces.items():
        sent.update(key(node) for node in of_type(nodes, SEND))
        received.update(key(node) for node in of_type(nodes, RECEIVE))
        assert {node["comm_src"] for node in of_type(nodes, SEND)} <= {rank}
        assert {node["comm_dst"] for node in of_type(nodes, RECEIVE)} <= {rank}
    assert sent == received
    assert max(sent.values(), default=1) == 1


def run_in_order(traces, is_done):
    """Run the nodes of each rank in order, each once `is_done` says that it has not to wait for other ranks."""
    turns = dict.fromkeys(traces, 0)
    while any(turns[rank] < len(nodes) for rank, nodes in traces.items()):
        before = dict(turns)
        for rank, nodes in traces.items():
            while turns[rank] < len(nodes) and is_done(rank, nodes[turns[rank]]):
                turns[rank] += 1
        assert turns != before, "ranks wait for each other"
