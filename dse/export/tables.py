"""Results for other programs: JSON records, and files of tables."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.errors import DseError
from dse.pricing.intervals import RECORD_KEYS
from dse.pricing.splits import with_splits

if TYPE_CHECKING:
    import pandas as pd

    from dse.search.exact import ExactFront
    from dse.search.study import Study
    from dse.search.trial_table import Selection

#: Rows of a CSV file that are written at once.
CSV_ROWS = 1000

#: Keys of one design in JSON, in order: of a trial, and of a design that was evaluated for itself.
DESIGN_KEYS = (
    *(
        "trial",
        "winner",
        "params",
        "layouts",
        "splits",
        "values",
        "margins",
        "run",
        "breakdown",
        "designs_priced",
    ),
    *RECORD_KEYS,
)
EVALUATION_KEYS = (
    "feasible",
    "params",
    "layouts",
    "splits",
    "values",
    "margins",
    "run",
    "breakdown",
    *RECORD_KEYS,
)


def study_record(study: Study, part: Selection = "front") -> dict[str, Any]:
    """A study as one JSON object: what it is, how far it is, and its front or its trials."""
    shown = study.table.front() if part == "front" else study.table
    return {
        **study_summary(study),
        part: [design_record(record) for record in with_splits(study.space, shown.records())],
    }


def study_summary(study: Study) -> dict[str, Any]:
    """What a study is, and how far it is."""
    table = study.table
    return {
        "study": study.name,
        "space": study.space.name,
        "directions": {objective.key: objective.direction for objective in study.space.objectives},
        "n_complete": len(table),
        "n_infeasible": int((~table.feasible).sum()),
        "n_designs_priced": study.designs_priced,
        "hypervolume": study.hypervolume,
    }


def exact_record(exact: ExactFront) -> dict[str, Any]:
    """The exact front of a space as one JSON object."""
    return {
        "space": exact.space.name,
        "directions": {objective.key: objective.direction for objective in exact.space.objectives},
        "n_legal": exact.legal,
        "n_priced": exact.priced,
        "n_infeasible": exact.infeasible,
        "broken": exact.broken,
        "best": exact.best,
        "front": [design_record(record) for record in with_splits(exact.space, exact.records())],
    }


def encoded_front(exact: ExactFront, form: str) -> Iterator[bytes]:
    """The exact front as a "csv" or "parquet" file, piece by piece."""
    return csv_pieces(exact.to_frame()) if form == "csv" else parquet_pieces(exact.to_frame())


def design_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """One design, with the keys of the JSON contract alone."""
    return {key: record[key] for key in DESIGN_KEYS if key in record}


def json_text(value: Any) -> str:
    """JSON that every reader accepts: a number that is not finite becomes null."""
    return json.dumps(only_finite(value), indent=2, allow_nan=False)


def only_finite(value: Any) -> Any:
    """The same nested value with None for what JSON cannot say."""
    if isinstance(value, Mapping):
        return {key: only_finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [only_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encoded(study: Study, part: Selection, form: str) -> Iterator[bytes]:
    """The front or the trials as a "csv", "json" or "parquet" file, piece by piece."""
    if form == "json":
        return json_pieces(study, part)
    frame = study.pareto_front() if part == "front" else study.trials()
    return csv_pieces(frame) if form == "csv" else parquet_pieces(frame)


def json_pieces(study: Study, part: Selection) -> Iterator[bytes]:
    """What `study_record` says, as text, without holding it all."""
    shown = study.table.front() if part == "front" else study.table
    head, _, end = json_text({**study_summary(study), part: []}).rpartition("[]")
    yield f"{head}[".encode()
    separator = ""
    for block in shown.blocks():
        for record in with_splits(study.space, block.records()):
            indented = json_text(design_record(record)).replace("\n", "\n    ")
            yield f"{separator}\n    {indented}".encode()
            separator = ","
    last = "\n  " if separator else ""
    yield f"{last}]{end}\n".encode()


def csv_pieces(frame: pd.DataFrame) -> Iterator[bytes]:
    """A table as CSV."""
    for first in range(0, max(1, len(frame)), CSV_ROWS):
        rows = frame.iloc[first : first + CSV_ROWS]
        yield str(rows.to_csv(index=False, header=first == 0)).encode()


def parquet_pieces(frame: pd.DataFrame) -> Iterator[bytes]:
    """A table as Parquet."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    yield buffer.getvalue()


def write_study(study: Study, directory: Path) -> None:
    """Write front, trials and hypervolume history of a study, and its summary.

    Raises
    ------
    DseError
        If a file cannot be written; no half-written file stays behind.
    """
    writable_directory(directory)
    for name, frame in (("pareto", study.pareto_front()), ("trials", study.trials())):
        write_file(directory / f"{name}.csv", csv_pieces(frame))
        write_file(directory / f"{name}.parquet", parquet_pieces(frame))
    write_file(directory / "hypervolume.csv", csv_pieces(study.hypervolume_history()))
    write_file(directory / "study.json", encoded(study, "front", "json"))


def writable_directory(directory: Path) -> None:
    """Create a folder, and make sure that files can be written there.

    Raises
    ------
    DseError
        If they cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DseError(f"{directory}: cannot be created ({error.strerror}); name another folder") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DseError(f"{directory}: cannot be written; change its permissions, or name another folder")


def write_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, in one piece or several, whole or not at all.

    Raises
    ------
    DseError
        If it cannot be written.
    """
    special = path.exists() and not path.is_file()  # such as /dev/stdout
    partial = path if special else path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
        partial.replace(path)
    except OSError as error:
        if not special:
            with suppress(OSError):  # the first error tells more
                partial.unlink()
        raise DseError(
            f"{path}: cannot be written ({error.strerror}); studies are not affected, name another place"
        ) from None
