"""Progress of a search on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

from dse.cli.terminal import plain_stream
from dse.searching.batches.loop import Progress, bar, state
from dse.spaces.space import Space

#: Least time between two plain lines. [s]
LINE_INTERVAL = 1.0


@contextmanager
def progress_of(space: Space, stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """A function that shows the progress of a search of `space` on a stream."""
    if stream.isatty():
        with bar(space, plain_stream(stream)) as update:
            yield update
    else:
        yield lines(space, stream)


def lines(space: Space, stream: TextIO) -> Callable[[Progress], None]:
    """One plain line per `LINE_INTERVAL`, and one at the end."""
    last = -LINE_INTERVAL

    def update(progress: Progress) -> None:
        nonlocal last
        if progress.complete < progress.budget and monotonic() - last < LINE_INTERVAL:
            return
        last = monotonic()
        print(f"{progress.complete}/{progress.budget} trials, {state(space, progress)}", file=stream, flush=True)

    return update
