"""Finished trials that the database did not take, in files that wait for it to do so.

A file has three lines: what it is of, one batch as JSON, and a seal, which is an HMAC of both under a key
that the study keeps in its database. So a file is only believed if a process wrote it that could read the
database, wherever the file lies; one of another study is not, nor of one of the same name that was deleted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import file_bytes
from dse.storage.atomic_files import refuges, write_beside
from dse.storage.optuna_store import Store, StoredStudy

#: Study attribute: under which the files of a study are sealed.
KEY: Final = "dse:recovery_key"
FORMAT: Final = "dse-recovery/v1"
#: Largest file that is read. [B]
LARGEST: Final = 256 << 20
#: Most characters of a study's name in that of a file.
NAMED: Final = 60


@dataclass(frozen=True)
class Kept:
    """A batch in a file."""

    path: Path
    number: int  #: which batch of its study
    packed: Mapping[str, Any]  #: what it is, as one that is parked in the database

    @property
    def trials(self) -> int:
        """How many finished trials it has. [-]"""
        return len(self.packed["trials"])


class RecoveryFiles:
    """The files of a study.

    Parameters
    ----------
    store : Store
        The database, open for writing.
    stored : StoredStudy
        The study.
    """

    def __init__(self, store: Store, stored: StoredStudy) -> None:
        self._head = {"format": FORMAT, "study": stored.name, "storage": store.where}
        self._key = str(stored.user_attrs.get(KEY) or new_key(store, stored.study_id)).encode()
        self._beginning = (
            f"dse-recovery-{file_name(stored.name)}-{hashlib.sha256(self._key).hexdigest()[:12]}-"
        )

    def keep(self, number: int, packed: Mapping[str, Any]) -> Path | None:
        """Write a batch to the first folder that takes it; None where none does."""
        head = {**self._head, "batch": number, "trials": len(packed["trials"])}
        lines = b"".join(json.dumps(part).encode() + b"\n" for part in (head, packed))
        for folder in refuges():
            path = folder / f"{self._beginning}{number}.json"
            with suppress(OSError):  # the next folder may take it
                write_beside(path, [lines, self._seal(lines)], durable=True)
                return path
        return None

    def kept(self) -> Iterator[Kept | DseError]:
        """Each batch in a file, those of several in their order, or why a file is not believed."""
        folders = {folder.resolve() for folder in refuges()}
        found = [path for folder in folders for path in folder.glob(f"{self._beginning}*.json")]
        for path in sorted(found, key=lambda path: (len(path.name), path.name, path)):
            try:
                yield self._read(path)
            except DseError as error:
                if path.exists():  # and was not taken by another process meanwhile
                    yield error

    def _read(self, path: Path) -> Kept:
        """The batch in a file.

        Raises
        ------
        DseError
            If it cannot be read, or its seal is not that of its content.
        """
        content = file_bytes(path, LARGEST)
        lines, seal = content[:-64], content[-64:]
        if not hmac.compare_digest(seal, self._seal(lines)):
            raise DseError(f"{path}: damaged, or not of this study: not taken; remove it")
        head, packed = map(json.loads, lines.splitlines())
        return Kept(path, head["batch"], packed)

    def _seal(self, lines: bytes) -> bytes:
        """What follows from content and key: 64 hexadecimal digits."""
        return hmac.new(self._key, lines, hashlib.sha256).hexdigest().encode()


def file_name(study: str) -> str:
    """What the file of a study may be called: its name, without what leads into other folders.

    >>> file_name("gpt3 (2)"), file_name("../../.profile")
    ('gpt3_2_', '__.._.profile')
    """
    return re.sub(r"^\.+|[^\w.-]+", "_", study)[:NAMED]


def new_key(store: Store, study_id: int) -> str:
    """The key of a study that may have none yet: of several processes, all get that of the first."""
    with store.turn(study_id):
        key = store.user_attr(study_id, KEY)
        if key is None:
            key = secrets.token_hex(16)
            store.set_user_attrs(study_id, {KEY: key})
    return str(key)
