"""Results for other programs: JSON records, and files of tables."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.columns import short_repr
from costmodel.errors import DseError
from dse.pricing.evaluated import RECORD_KEYS
from dse.pricing.records import with_kernels
from dse.storage.atomic_files import write_beside

if TYPE_CHECKING:
    import pandas as pd

    from dse.searching.exact.exact_front import ExactFront
    from dse.searching.study import BaseStudy
    from dse.searching.trials.trial_table import Selection, TrialTable


@dataclass(frozen=True)
class Artefact:
    """A file, and what its reader will stumble over."""

    __repr__ = short_repr

    #: Of a file, or of several by name; None where the design has no such file, and the notes say why.
    content: bytes | Mapping[str, bytes] | None
    notes: tuple[str, ...]


#: Keys of one design in JSON, in order: of a trial, and of a design that was evaluated for itself.
DESIGN_KEYS = (
    *("trial", "winner", "params", "layouts", "values", "margins", "run", "breakdown"),
    *("before", "designs_priced", *RECORD_KEYS),
)
EVALUATION_KEYS = (
    *("feasible", "given", "params", "derived", "layouts", "values", "margins", "run", "breakdown"),
    *RECORD_KEYS,
)

#: Column of a study's tables that is of the run and not of the design.
COMPLETED: Final = "completed"


def study_record(study: BaseStudy, part: Selection = "front") -> dict[str, Any]:
    """A study as one JSON object: what it is, how far it is, and its front or its trials."""
    shown = study.table.front() if part == "front" else study.table
    return {
        **study_summary(study),
        part: [design_record(record) for record in with_kernels(study.space, shown.records())],
    }


def study_summary(study: BaseStudy) -> dict[str, Any]:
    """Summary of a study, with its progress."""
    table = study.table
    return {
        "study": study.name,
        "space": study.space.name,
        "directions": {objective.key: objective.direction for objective in study.space.objectives},
        "n_complete": len(table),
        "n_infeasible": int((~table.feasible).sum()),
        "n_designs_priced": study.designs_priced,
        "hypervolume": study.hypervolume,
        **({"runs": [run.to_json() for run in runs]} if (runs := study.told_runs()) else {}),
    }


def exact_record(exact: ExactFront) -> dict[str, Any]:
    """The exact front of a space as one JSON object."""
    return {
        "space": exact.space.name,
        "directions": {objective.key: objective.direction for objective in exact.space.objectives},
        "n_legal": exact.legal,
        "n_priced": exact.priced,
        **({"partial": True} if exact.is_partial else {}),
        "n_infeasible": exact.infeasible,
        "broken": exact.broken,
        "best": exact.best,
        "front": [design_record(record) for record in with_kernels(exact.space, exact.records())],
    }


def encoded_front(exact: ExactFront, form: str) -> Iterator[bytes]:
    """The exact front as a "csv" or "parquet" file, piece by piece."""
    pieces = csv_pieces if form == "csv" else parquet_pieces
    return pieces([exact.to_frame()])


def design_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Record of a design, with the keys of the JSON contract alone."""
    return {key: record[key] for key in DESIGN_KEYS if key in record}


def json_text(value: Any) -> str:
    """JSON that every reader accepts: a number that is not finite becomes null."""
    return json.dumps(only_finite(value), indent=2, allow_nan=False)


def only_finite(value: Any) -> Any:
    """Nested value with None for what JSON cannot say."""
    if isinstance(value, Mapping):
        return {key: only_finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [only_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encoded(study: BaseStudy, shown: TrialTable, part: Selection, form: str) -> Iterator[bytes]:
    """The front or the trials as a "csv", "json" or "parquet" file, piece by piece."""
    if form == "json":
        return json_pieces(study, shown, part)
    pieces = csv_pieces if form == "csv" else parquet_pieces
    return pieces(timeless(shown.frames()))


def timeless(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Tables without the moments at which trials were finished: the same search writes the same bytes."""
    return (frame.drop(columns=COMPLETED) for frame in frames)


def json_pieces(study: BaseStudy, shown: TrialTable, part: Selection) -> Iterator[bytes]:
    """`study_record` as text, in pieces."""
    head, _, end = json_text({**study_summary(study), part: []}).rpartition("[]")
    yield f"{head}[".encode()
    separator = ""
    for text in design_texts(study, shown):
        yield f"{separator}\n    {text}".encode()
        separator = ","
    last = "\n  " if separator else ""
    yield f"{last}]{end}\n".encode()


def design_texts(study: BaseStudy, shown: TrialTable) -> Iterator[str]:
    """Designs as JSON, one by one, indented as in an object of the study."""
    if shown.as_stored and not study.space.solved:
        for stored in shown.stored_blocks():
            yield from stored.json_texts()
        return
    for block in shown.blocks():
        for record in with_kernels(study.space, block.records()):
            yield json_text(design_record(record)).replace("\n", "\n    ")


def csv_pieces(frames: Iterable[pd.DataFrame]) -> Iterator[bytes]:
    """A table, in pieces of the same columns, as CSV: numbers in full, true and false, times in UTC."""
    import pyarrow as pa
    from pyarrow import compute, csv

    for place, frame in enumerate(frames):
        if place == 0:
            yield f"{','.join(map(str, frame.columns))}\n".encode()
        table = pa.Table.from_pandas(frame, preserve_index=False)
        words = [own for own in table.columns if str(own.type) in ("string", "large_string")]
        special = any(compute.any(compute.match_substring_regex(own, '[",\r\n]')).as_py() for own in words)
        buffer = pa.BufferOutputStream()
        options = csv.WriteOptions(include_header=False, quoting_style="needed" if special else "none")
        csv.write_csv(table, buffer, options)
        yield buffer.getvalue().to_pybytes()


def parquet_pieces(frames: Iterable[pd.DataFrame]) -> Iterator[bytes]:
    """A table, in pieces of the same columns, as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    schema, writer, waiting = None, None, Waiting()
    for frame in frames:
        table = pa.Table.from_pandas(frame, preserve_index=False, schema=schema)
        if writer is None:
            schema = table.schema
            writer = parquet.ParquetWriter(pa.PythonFile(waiting, mode="w"), schema)
        writer.write_table(table)
        yield waiting.taken()
    if writer is not None:
        writer.close()
        yield waiting.taken()


class Waiting(io.RawIOBase):
    """Bytes that were written and not yet taken; positions count from the first byte ever written."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._total = 0

    def writable(self) -> bool:
        """True: tables are written into the file that keeps their bytes."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes to what is kept."""
        self._pieces.append(bytes(data))
        self._total += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        """Bytes written so far. [B]"""
        return self._total

    def taken(self) -> bytes:
        """The bytes written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def write_study(study: BaseStudy, directory: Path) -> None:
    """Write front, trials and hypervolume history of a study, and its summary.

    Raises `DseError` if a file cannot be written; no half-written file stays behind.
    """
    writable_directory(directory)
    for name, table in (("pareto", study.table.front()), ("trials", study.table)):
        write_file(directory / f"{name}.csv", csv_pieces(timeless(table.frames())))
        write_file(directory / f"{name}.parquet", parquet_pieces(timeless(table.frames())))
    write_file(directory / "hypervolume.csv", csv_pieces([study.hypervolume_history()]))
    write_file(directory / "study.json", encoded(study, study.table.front(), "front", "json"))


def writable_directory(directory: Path) -> None:
    """Create a folder, and make sure that files can be written there.

    Raises `DseError` if they cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DseError(f"{directory}: cannot be created ({error.strerror}); name another folder") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DseError(f"{directory}: cannot be written; change its permissions, or name another folder")


class NotWritten(DseError):
    """A file cannot be written: `failure` says which, and why."""

    def __init__(self, failure: str) -> None:
        super().__init__(f"{failure}; studies are not affected, name another place")
        self.failure = failure


def write_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, in one piece or several, whole or not at all.

    It is written under a name that no other process has, and then takes its place: of several who write
    one file the last wins, and a link in its place is replaced, not followed.

    Raises `NotWritten` if it cannot be written.
    """
    special = path.exists() and not path.is_file()  # such as /dev/stdout
    pieces = [content] if isinstance(content, bytes) else content
    try:
        if special:
            with path.open("wb") as file:
                file.writelines(pieces)
        else:
            write_beside(path, pieces, durable=True)
    except BrokenPipeError:  # the reader has seen enough
        raise
    except OSError as error:
        raise NotWritten(f"{path}: cannot be written ({error.strerror})") from None
