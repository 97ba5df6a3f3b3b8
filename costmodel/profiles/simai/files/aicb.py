"""AICB workload files, which SimAI and ASTRA-sim read: text <-> a `StepRows` with its header.

A header of tokens, the number of rows, and rows of 12 fields: a name, a dependency that is always -1, then
time [ns], collective and size [B] of each pass, and a delay [ns]. Sizes are of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.formats.input_files import LARGEST
from costmodel.formats.strict_yaml import exact_text, plain_text
from costmodel.profiles.simai.files.aicb_reader import (
    CHECKPOINTS,
    EP,
    GA,
    GPUS,
    INITIATES,
    PP,
    PP_COMM,
    SPELLED,
    SUFFIXES,
    TOKENS,
    TP,
    TRAINING,
    VPP,
    AicbReader,
)
from costmodel.profiles.simai.workload_rows import GROUPS, StepRows

__all__ = [
    "GPUS",
    "HEADERS",
    "REQUIRED",
    "VPP",
    "WorkloadFile",
    "load_workload",
    "read_workload",
    "workload_file",
]

#: Header of each generation of files -> its tokens in order. Old readers go by the place, new ones by name;
#: both understand "2024-12".
HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "2024-07": (TP, CHECKPOINTS, INITIATES),  # of AICB's own texts, which no simulator takes
    "prerelease": (TP, EP, PP, VPP, GA, GPUS, PP_COMM, CHECKPOINTS, INITIATES),
    "2024-10": (TP, EP, PP, GA, GPUS, CHECKPOINTS, INITIATES),
    "2024-11": (TP, EP, PP, VPP, GA, GPUS, CHECKPOINTS, INITIATES),
    "2024-12": (TP, EP, PP, VPP, GA, GPUS, CHECKPOINTS, INITIATES, PP_COMM),
    "2025-01": (TP, EP, PP, VPP, GA, GPUS, CHECKPOINTS, INITIATES, PP_COMM),
    "2025-09": (TP, EP, PP, VPP, GA, GPUS, CHECKPOINTS, INITIATES, PP_COMM),
}
#: Those that may write pp_comm with a fraction.
WITH_FRACTIONS: Final = ("2025-01", "2025-09")

#: Revision of SimAI -> tokens that its reader cannot do without. The first one goes by their places.
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "simai-2024-10": (TP, EP, PP, GA, GPUS),
    "simai-2024-12": (TP, PP),
    "simai-2025-07": (TP, PP),
}


@dataclass(frozen=True, kw_only=True)
class WorkloadFile:
    """One workload, and the header it has in a file."""

    loop: str
    words: Mapping[str, str]  #: token, with its colon if it has one -> value as written; all are kept
    workload: StepRows  #: of one design
    text: str  #: the file; of one that was read, to the byte

    @property
    def tokens(self) -> dict[str, str]:
        """Token -> value as written, in order."""
        return {word.removesuffix(":"): value for word, value in self.words.items()}

    @property
    def executed(self) -> StepRows:
        """The rows as SimAI runs them: what recomputation repeats is in the forward time.

        Before the backward pass over the row that `checkpoint_initiates` names, the forward pass runs again
        from the nearest row that `checkpoints` names. Of several rows SimAI reads the first, and it
        repeats no communication.
        """
        starts, end = self._marked(CHECKPOINTS), self._marked(INITIATES)
        if not starts or not end or not starts[0] < end[0] < len(self.workload.names):
            return self.workload
        time = self.workload.time.copy()
        time[:, starts[0] : end[0], 0] *= 2
        return replace(self.workload, time=time)

    def _marked(self, token: str) -> list[int]:
        """Rows that a token names, counted from 0."""
        count, *rows = self.tokens.get(token, "0").split() or ["0"]
        return [int(row) for row in rows] if count != "0" else []


def load_workload(path: Path) -> WorkloadFile:
    """The workload that a file holds.

    Raises
    ------
    DseError
        With one line for each mistake in the file.
    """
    return read_workload(exact_text(path, "an AICB workload", largest=LARGEST), str(path))


def read_workload(text: str, name: str) -> WorkloadFile:
    """The workload that a text holds; `name` is what messages call it.

    Raises
    ------
    DseError
        With one line for each mistake.
    """
    lines = plain_text(text).split("\n")
    reader = AicbReader(name)
    loop, words = reader.header(lines[0])
    rows = reader.rows(lines)
    layout = reader.layout(loop, {word.removesuffix(":"): value for word, value in words.items()}, rows)
    reader.finish()
    return WorkloadFile(loop=loop, words=words, workload=reader.workload(rows, layout), text=text)


def workload_file(workload: StepRows, *, point: int = 0, header: str = "2024-12") -> WorkloadFile:
    """One design's workload with a header.

    Parameters
    ----------
    workload : StepRows
        Of one design or more.
    point : int
        Which design. [-]
    header : str
        A key of `HEADERS`.
    """
    own = workload.take(np.array([point]))
    words = {token + ":": header_value(own, token, header) for token in HEADERS[header]}
    tokens = " ".join(f"{word} {value}" for word, value in words.items())
    rows = row_lines(own)
    first = TRAINING + ("\t" if header == "2024-07" else " ") + tokens
    text = "\n".join([first, str(len(rows)), *rows, ""])
    return WorkloadFile(loop=TRAINING, words=words, workload=own, text=text)


def header_value(workload: StepRows, token: str, header: str) -> str:
    """A token's value of the first design, as the generation of the header writes it.

    From January 2025 on AICB divides the bytes between stages by tp in sequence parallelism, in floating
    point: these have a fraction, and no others.
    """
    if token not in TOKENS:
        return "0"
    value = float(getattr(workload.layout, TOKENS[token])[0])
    fraction = token == PP_COMM and header in WITH_FRACTIONS and value > 0
    return str(value if fraction and workload.sequence_parallel[0] > 0 else int(value))


def row_lines(workload: StepRows) -> list[str]:
    """Every row of one design's step as the file has it."""
    point = 0
    times, sizes, delays = (
        np.rint(values[point] * scale).astype(np.int64).tolist()
        for values, scale in ((workload.time, 1e9), (workload.message_bytes, 1.0), (workload.delay, 1e9))
    )
    words = spelled(workload)
    lines = []
    for name, time, word, size, delay in zip(workload.names, times, words, sizes, delays, strict=True):
        passes = [f"{t}\t{w}\t{s}" for t, w, s in zip(time, word, size, strict=True)]
        lines.append("\t".join([name, "-1", *passes, str(delay)]))
    return [lines[place] for place in workload.unrolled(point).tolist()]


def spelled(workload: StepRows) -> list[list[str]]:
    """Collectives of the first design's rows and passes, as files spell them."""
    kinds, suffixes = list(SPELLED), {group: suffix for suffix, group in SUFFIXES.items()}
    return [
        [
            kinds[kind] + (suffixes.get(GROUPS[group], "") if kind else "")
            for kind, group in zip(*both, strict=True)
        ]
        for both in zip(workload.collective[0].tolist(), workload.group[0].tolist(), strict=True)
    ]
