"""Files that may be packed by gzip."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Final

from costmodel.errors import DseError

_GZIP: Final = b"\x1f\x8b"


def content(path: Path, most: int = -1) -> bytes:
    """The first bytes of a file, or all, unpacked if it is packed.

    Raises
    ------
    DseError
        If it cannot be read.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as opened:
            return opened.read(most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DseError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DseError(f"{path}: {(error.strerror or str(error)).lower()}") from None
