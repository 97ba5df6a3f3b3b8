"""Which layers stand on which chunk of a pipeline, written out as Megatron-LM's layout strings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

from costmodel.errors import DseError

#: The layout that needs no text: as even as can be.
EVEN: Final = "even"
_GROUP: Final = re.compile(r"\(([^()]*)\)\*([0-9]+)")
_LETTER: Final = re.compile(r"([Etm L|])\*([0-9]+)")
#: Most chunks that a layout may have.
MOST_CHUNKS: Final = 1024


@dataclass(frozen=True, slots=True)
class PipelineLayout:
    """Layers of each chunk, in the order of the model. [-]"""

    layers: tuple[float, ...]
    mtp: int  #: the chunk of multi-token prediction

    @classmethod
    def parse(cls, text: str) -> PipelineLayout:
        """A layout from its text; `|` ends a chunk: E embedding, t layer, m multi-token prediction, L loss.

        `t*3` is three layers, `(tt|)*29` twenty-nine chunks of two; commas say nothing.

        >>> PipelineLayout.parse("Et*3|(tt|)*2,m|L")
        PipelineLayout(layers=(3.0, 2.0, 2.0, 0.0, 0.0), mtp=3)

        Raises `DseError` if the text is no layout.
        """
        written = re.sub(r"[,\s]", "", text)
        while (more := _GROUP.sub(_repeated, written)) != written and len(more) < 100 * MOST_CHUNKS:
            written = more
        written = _LETTER.sub(_repeated, written)
        chunks = written.split("|")
        wrong = re.search(r"[^EtmL|]", written)
        if wrong or len(chunks) > MOST_CHUNKS:
            what = repr(wrong[0]) if wrong else f"{len(chunks)} chunks"
            raise DseError(f"pipeline_layout: {text!r}: {what}: expected a text such as Et*3|(tt|)*29,m|L")
        if not chunks[0].startswith("E") or written.count("E") != 1:
            raise DseError(f"pipeline_layout: {text!r}: expected E once, at the start")
        if not chunks[-1].endswith("L") or written.count("L") != 1:
            raise DseError(f"pipeline_layout: {text!r}: expected L once, at the end")
        ahead = [index for index, chunk in enumerate(chunks) if "m" in chunk]
        return cls(tuple(float(chunk.count("t")) for chunk in chunks), ahead[0] if ahead else len(chunks) - 1)


def _repeated(match: re.Match[str]) -> str:
    if len(match[2]) > 4:
        raise DseError(f"pipeline_layout: {match[2][:12]} times: expected at most 9999")
    return match[1] * int(match[2])


class PipelineLayouts(Sequence[str]):
    """Words of `pipeline_layout`: "even", and every layout that was read; a code is a place among them."""

    def __init__(self) -> None:
        self._texts = [EVEN]
        self._layouts: list[PipelineLayout | None] = [None]

    def __contains__(self, text: object) -> bool:
        if not isinstance(text, str):
            return False
        if text not in self._texts:
            try:
                layout = PipelineLayout.parse(text)
            except DseError:
                return False
            self._layouts.append(layout)
            self._texts.append(text)
        return True

    def index(self, text: object, start: int = 0, stop: int | None = None) -> int:
        """Code of a layout, which is read if it is new."""
        if text not in self:
            raise ValueError(f"{text!r}: no layout; expected a text such as Et*3|(tt|)*29,m|L")
        return self._texts.index(str(text))

    @overload
    def __getitem__(self, code: int) -> str: ...
    @overload
    def __getitem__(self, code: slice) -> Sequence[str]: ...
    def __getitem__(self, code: int | slice) -> str | Sequence[str]:
        return self._texts[code]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._texts))

    def __len__(self) -> int:
        return len(self._texts)

    def layout(self, code: int) -> PipelineLayout:
        """The layout of a code other than that of "even"."""
        layout = self._layouts[code]
        assert layout is not None
        return layout


LAYOUTS: Final = PipelineLayouts()
