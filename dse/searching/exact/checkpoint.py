"""Checkpoints of an enumeration: finished parts of a space with their fronts, in a file that survives any death.

An enumeration is cut into units: ranges of numbered designs, or sets of boxes of a search by bounds. Unit u belongs to
part u mod N of N. The first line of a file names the enumeration; each other line holds a finished unit, with its
designs that no earlier line beats. The front of all lines of all files is the front of the space, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from dse.fronts import as_items, non_dominated
from dse.pricing.evaluated import rules_for
from dse.pricing.identity import program_digest
from dse.pricing.workers import Pricer
from dse.spaces.space import Space
from dse.storage.atomic_files import LineLog, lines_of

SCHEMA: Final = "enumeration/v1"
#: Units of each part, at least.
UNITS: Final = 16
#: Keys of the first line, and the words for a difference.
DIFFERENCES: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["differences"]


@dataclass(frozen=True)
class Finished:
    """Units that are finished, and the designs of them that none beats."""

    units: dict[int, tuple[int, ...]]  #: unit -> counts of designs, whose meaning depends on the method
    rows: FloatArray  #: (front, columns) number of each design, or its encoded parameters
    costs: FloatArray  #: (front, objectives) [the unit of each]

    @property
    def counts(self) -> list[int]:
        """Counts of all units together; empty if none is finished."""
        return [sum(column) for column in zip(*self.units.values(), strict=True)]

    def __add__(self, other: Finished) -> Finished:
        """Units of both together; a unit that both have counts once."""
        rows, costs = (np.concatenate([getattr(tally, name) for tally in (self, other)]) for name in ("rows", "costs"))
        _, first = np.unique(rows, axis=0, return_index=True)
        kept = first[non_dominated(costs[first])]
        return Finished(other.units | self.units, rows[kept], costs[kept])


class Checkpoint:
    """The finished units of one part of an enumeration, in a file or in memory."""

    def __init__(
        self, path: Path | None, pricer: Pricer, method: str, best: Sequence[float] | None, part: tuple[int, int]
    ) -> None:
        """Open a file, and create it if there is none. Raises `DseError` if it holds another enumeration."""
        self.log, self.finished = None, nothing(pricer.space, method)
        if path:
            header = header_of(pricer, method, best, part)
            self.log = LineLog(path, json.dumps(header).encode())
            try:
                self.finished = total_of(path, header, pricer.space, self.log.lines)
            except DseError:
                self.close()
                raise

    def close(self) -> None:
        """Let other processes write to the file."""
        if self.log:
            self.log.file.close()

    def add(self, unit: int, counts: Iterable[int], rows: FloatArray, costs: FloatArray) -> None:
        """Store a unit, with its designs that no stored one beats."""
        numbers = tuple(map(int, counts))
        self.finished += Finished({unit: numbers}, rows, costs)
        if self.log:
            kept = np.isin(as_items(rows), as_items(self.finished.rows))
            line = {"unit": unit, "counts": numbers, "rows": rows[kept].tolist(), "costs": costs[kept].tolist()}
            self.log.append(json.dumps(line).encode())


def nothing(space: Space, method: str) -> Finished:
    """No units."""
    columns = 1 if method == "list" else len(space.parameters)
    return Finished({}, np.empty((0, columns)), np.empty((0, len(space.objectives))))


def header_of(pricer: Pricer, method: str, best: Sequence[float] | None, part: tuple[int, int]) -> dict[str, Any]:
    """The first line of a checkpoint: all that decides its content."""
    return {
        "schema": SCHEMA,
        "program": program_digest(),
        "results": pricer.digest,
        "profile": pricer.rules.profile,
        "method": method,
        "best": None if best is None else list(best),
        "of": part[1],
        "part": part[0],
        "space": pricer.space.text,
    }


def total_of(path: Path, header: dict[str, Any], space: Space, lines: Sequence[bytes]) -> Finished:
    """All units of the lines of a file. Raises `DseError` if its first line differs from a header."""
    total = nothing(space, header["method"])
    units, rows, costs = dict[int, tuple[int, ...]](), [total.rows], [total.costs]
    try:
        stored = json.loads(lines[0])
        for name, words in DIFFERENCES.items():
            if stored.get(name) != header.get(name, stored.get(name)):
                raise DseError(f"{path}: was made with {words}; name another file")
        for line in map(json.loads, lines[1:]):
            units[index(line["unit"])] = tuple(map(index, line["counts"]))
            rows.append(np.array(line["rows"], dtype=np.float64).reshape(-1, total.rows.shape[1]))
            costs.append(np.array(line["costs"], dtype=np.float64).reshape(len(rows[-1]), total.costs.shape[1]))
        if len({*map(len, units.values())}) > 1 or not all(np.isfinite(array).all() for array in rows + costs):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise DseError(f"{path}: not a checkpoint of `dse enumerate`") from None
    return total + Finished(units, np.concatenate(rows), np.concatenate(costs))


def merged(paths: Sequence[Path]) -> tuple[Pricer, dict[str, Any], Finished]:
    """The units of all files together, with the pricer of their space and their first line.

    Raises `DseError` if files differ in more than the part, or were made by another program.
    """
    try:
        first = json.loads(next(lines_of(paths[0]), b""))
        space = Space.from_text(first["space"])
        pricer = Pricer(space, rules_for(space, first["profile"]))
        header = header_of(pricer, first["method"], first["best"], (1, first["of"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DseError(f"{paths[0]}: not a checkpoint of `dse enumerate`") from None
    header.pop("part")
    totals = (total_of(path, header, space, [*lines_of(path)]) for path in paths)
    return pricer, header, sum(totals, nothing(space, header["method"]))
