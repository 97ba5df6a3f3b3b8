"""Samples of measured kernels: shapes and times of libraries, drawn from tables that an adapter reads.

Shapes whose SHA-1 begins with 8 to f are kept apart: fits do not see them. The text that is hashed has the shape's
columns in the order of `kernel_tables.yaml`, as decimal numbers with commas between them, such as ``4096,8192,1024``
for m, n, k.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from costmodel.columns import BoolArray
from costmodel.formats.input_files import data_beside

#: Kind of kernels -> its shape, classes of sizes, and constants, in the words of the file.
KINDS: Final[Mapping[str, Mapping[str, Any]]] = data_beside(__file__, "kernel_tables.yaml")
#: Classes of sizes of all kinds, ascending.
CLASSES: Final = [*dict.fromkeys(name for about in KINDS.values() for name in about["classes"].values())]


@dataclass(frozen=True, slots=True)
class KernelSample:
    """Rows drawn from the tables of one system and kind.

    Columns: those of the shape, `format` (a precision or collective), `size` (its class), `library`, `release`,
    `kernel`, `current` (of the library's newest complete release), `kept_apart`, and `measured`. [s]
    """

    folder: str
    kind: str
    system: str  #: name or file of the system that evaluates it
    rows: pd.DataFrame
    read: int  #: rows in its tables
    left_out: Mapping[str, int]  #: reason -> rows that were set aside


def is_kept_apart(shapes: pd.DataFrame) -> BoolArray:
    """True for shapes that no fit may use: the SHA-1 of their numbers, joined by commas, begins with 8 to f."""
    texts = (",".join(str(int(value)) for value in shape) for shape in shapes.to_numpy())
    return np.array([hashlib.sha1(text.encode()).digest()[0] >= 128 for text in texts], dtype=bool)
