"""Which devices talk to each other: the spellings of `replica_groups` as explicit lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from costmodel.errors import DseError
from dse.adapters.xla.text.module import Instruction

Groups = tuple[tuple[int, ...], ...]

_LISTS: Final = re.compile(r"\{((?:\{[\d,\s]*\}[,\s]*)*)\}$")
_IOTA: Final = re.compile(r"\[([\d,\s]+)\](?:\s*<=\s*\[([\d,\s]+)\])?(?:\s*T\(([\d,\s]+)\))?$")
_MESH: Final = re.compile(
    r"@?mesh[\w.]*\s*\[(.*?)\]\s*(?:,\s*device_ids\s*=\s*\((\[[^()]*(?:\([^()]*\))?)\)\s*)?\{(.*)\}$", re.DOTALL
)
_AXIS: Final = re.compile(r"['\"]([^'\"]+)['\"]\s*=\s*(\d+)")
_AXIS_USED: Final = re.compile(r"['\"]([^'\"]+)['\"](?:\s*:\s*\((\d+)\)(\d+))?")


#: Most devices of a program, far more than any cluster has. [-]
MOST_DEVICES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """Position of device groups in the numbering of all devices, which fills one node after the other."""

    groups: int
    size: int  #: devices of a group
    stride: float  #: mean distance between neighbours of the widest group


def groups_of(instruction: Instruction, devices: int) -> Groups:
    """The groups of devices that a collective runs in; all devices of the program where the text names none. [-]

    Raises `DseError` if the text names groups in an unknown way.
    """
    pairs = instruction.attributes.get("source_target_pairs")
    if pairs is not None:
        return tuple(pair for pair in _lists(pairs) if len(pair) == 2)
    written = instruction.attributes.get("replica_groups", "{}")
    try:
        groups = normalised(written)
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise DseError(f"{instruction.name}: replica_groups={written[:80]}: no known way to name groups") from error
    return groups or (tuple(range(devices)),)


def normalised(written: str) -> Groups:
    """Explicit lists from any spelling; no lists where all devices are meant.

    Raises `ValueError` or `IndexError` if it is no known spelling.

    >>> normalised("{{0,2},{1,3}}")
    ((0, 2), (1, 3))
    >>> normalised("[2,2]<=[2,2]T(1,0)")
    ((0, 2), (1, 3))
    >>> normalised("mesh['data'=2,'model'=2] {'data'}")
    ((0, 2), (1, 3))
    """
    if _LISTS.match(written):
        return tuple(group for group in _lists(written) if group)
    iota = _IOTA.match(written)
    if iota:
        shape = _numbers(iota[1])
        return _rows(_iota(written).reshape(-1, prod(shape[1:])))
    mesh = _MESH.match(written)
    if mesh:
        return _mesh(*mesh.groups())
    raise ValueError(written)


_SHARDED: Final = re.compile(r"\{devices=\[([\d,]+)\]\s*(<=\s*[^\s}]+|[\d,]+)([^}]*)")


def pieces(sharding: str) -> dict[int, tuple[int, ...]]:
    """Device -> place of its piece of an array along each dimension; none where all have the whole.

    >>> pieces("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}")
    {0: (0, 0), 2: (0, 0), 1: (1, 0), 3: (1, 0)}
    """
    found = _SHARDED.match(sharding)
    if found is None:
        return {}
    tiles, rest = _numbers(found[1]), found[3].partition("last_tile_dims=")
    try:
        order = _iota(f"[{prod(tiles)}]{found[2]}") if found[2][0] == "<" else np.array(_numbers(found[2]))
    except ValueError:
        return {}  # no known way to name devices
    last = len(tiles) - (rest[2].count(",") + 1 if rest[2] else "last_tile_dim_replicate" in rest[0])
    places = zip(order.ravel().tolist(), np.ndindex(*tiles), strict=False)
    return {device: place[:last] for device, place in places}


def _lists(written: str) -> Groups:
    return tuple(tuple(_numbers(group)) for group in re.findall(r"\{([\d,\s]*)\}", written))


def _numbers(written: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", written)]


def _iota(written: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """``[4,2]<=[2,4]T(1,0)``: the numbers from 0 on in one shape, transposed, in another; or one alone."""
    found = _IOTA.match(written)
    if found is None:
        raise ValueError(written)
    shape = _numbers(found[1])
    source = _numbers(found[2]) if found[2] else shape
    if prod(source) > MOST_DEVICES:
        raise ValueError(written)
    order = _numbers(found[3]) if found[3] else list(range(len(source)))
    ids = np.arange(prod(source)).reshape(source).transpose(order)
    return ids.reshape(shape) if found[2] else ids


def _mesh(axes: str, device_ids: str | None, used: str) -> Groups:
    """Groups along some axes of a mesh; an axis may be used in part, as ``'x':(2)4``."""
    names: list[tuple[str, int]] = []  # of axes, with their parts as axes of their own
    dims: list[int] = []
    wanted = {name: (before, size) for name, before, size in _AXIS_USED.findall(used)}
    for name, size in _AXIS.findall(axes):
        before, part = wanted.get(name, ("", ""))
        cut = [int(before), int(part), int(size) // (int(before) * int(part))] if part else [1, int(size), 1]
        names += [(name, place) for place in range(3)]
        dims += cut
    if set(wanted) - {name for name, _ in names}:
        raise ValueError(used)
    if prod(dims) > MOST_DEVICES:
        raise ValueError(axes)
    ids = np.arange(prod(dims)) if device_ids is None else _iota(device_ids)
    along = [place for place, (name, part) in enumerate(names) if name in wanted and part == 1]
    across = [place for place in range(len(names)) if place not in along]
    size = prod(dims[place] for place in along)
    return _rows(ids.reshape(dims).transpose([*across, *along]).reshape(-1, size))


def _rows(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in array)


def placement(groups: Groups) -> GroupPlacement:
    """Where the largest groups lie.

    >>> placement(((0, 8), (1, 9)))
    GroupPlacement(groups=2, size=2, stride=8.0)
    """
    size = max(map(len, groups))
    widest = max(max(group) - min(group) for group in groups)
    return GroupPlacement(len(groups), size, widest / (size - 1) if size > 1 else 1.0)


def connected(groups: Iterable[Sequence[int]]) -> list[frozenset[int]]:
    """Devices that some groups connect, in one step or in more.

    >>> connected([(0, 1), (2, 3), (1, 3), (4, 5)])
    [frozenset({0, 1, 2, 3}), frozenset({4, 5})]
    """
    found: list[frozenset[int]] = []
    for group in groups:
        joined = frozenset(group).union(*(each for each in found if not each.isdisjoint(group)))
        found = [each for each in found if each.isdisjoint(group)] + [joined]
    return found
