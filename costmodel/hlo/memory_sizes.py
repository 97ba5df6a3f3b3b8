"""What an array takes in a device's memory: its tiles filled up."""

from __future__ import annotations

import re
from math import ceil, prod
from typing import Final

from costmodel.hlo.module import BITS, Shape

_TILE: Final = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE: Final = re.compile(r"S\((\d+)\)")


def memory_bytes(shape: Shape) -> int:
    """Memory of one array; none where it lies in another memory than the device's main one. [B]

    >>> memory_bytes(Shape("f32", (5, 100), layout="{1,0:T(8,128)}"))
    4096
    """
    layout = shape.layout
    space = _SPACE.search(layout)
    if space and space[1] != "0":
        return 0
    tile = _TILE.search(layout)
    if tile is None:
        return shape.bytes
    sizes = [max(int(size), 1) for size in re.findall(r"\d+", tile[1].partition(")")[0])]
    order = [int(place) for place in re.findall(r"\d+", layout.partition(":")[0])]
    if sorted(order) != list(range(len(shape.dims))):
        return shape.bytes
    dims = [*([1] * (len(sizes) - len(order))), *(shape.dims[place] for place in reversed(order))]
    inner = [ceil(dim / size) * size for dim, size in zip(dims[-len(sizes) :], sizes, strict=True)]
    return ceil(prod(dims[: -len(sizes)]) * prod(inner) * BITS[shape.dtype] / 8)
