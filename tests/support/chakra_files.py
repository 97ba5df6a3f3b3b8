"""Execution traces of Chakra, read back byte by byte."""

import numpy as np

#: Types of nodes and of collectives in Chakra's et_def.proto.
METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
MESSAGE = ("comm_src", "comm_dst", "comm_tag", "comm_size")


def varint(data, place):
    """A number of the wire format, and where the next begins."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place


def fields(data):
    """Field -> its values of a message in protobuf's wire format: numbers, or bytes."""
    found, place = {}, 0
    while place < len(data):
        key, place = varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = varint(data, place)
        elif kind == 1:
            value, place = np.frombuffer(data[place : place + 8], "<f8")[0], place + 8
        else:
            length, place = varint(data, place)
            value, place = data[place : place + length], place + length
        found.setdefault(key >> 3, []).append(value)
    return found


def packed(values):
    """Numbers that stand one behind the other."""
    found = []
    for data in values:
        place = 0
        while place < len(data):
            number, place = varint(data, place)
            found.append(number)
    return found


def attributes(message, field):
    """Name -> value; a 0 that is chosen of several fields is written."""
    pairs = {}
    for data in message.get(field, []):
        own = fields(data)
        [name] = own.pop(1)
        [[value]] = own.values()
        pairs[name.decode()] = value.decode() if isinstance(value, bytes) else value
    return pairs


def decoded(content):
    """Metadata and nodes of a file, by the field numbers of Chakra's et_def.proto."""
    messages, place = [], 0
    while place < len(content):
        length, place = varint(content, place)
        messages.append(fields(content[place : place + length]))
        place += length
    nodes = [
        {
            "id": own.get(1, [0])[0],
            "name": own[2][0].decode(),
            "type": own[3][0],
            "after": [*packed(own.get(4, [])), *packed(own.get(5, []))],
            "control": packed(own.get(4, [])),
            "micros": own.get(7, [0])[0],
            "inputs": fields(own[8][0])[1][0].decode() if 8 in own else "",
            **attributes(own, 10),
        }
        for own in messages[1:]
    ]
    return attributes(messages[0], 2), nodes


def key(node):
    return tuple(node[name] for name in MESSAGE)


def of_type(nodes, kind, word=""):
    return [node for node in nodes if node["type"] == kind and word in node["name"]]
