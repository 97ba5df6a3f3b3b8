"""Standard error of a command: text that steers no terminal, progress; and what ends it from outside."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from costmodel.errors import printable

if TYPE_CHECKING:
    from dse.searching.batches.loop import Progress
    from dse.spaces.space import Space


class PrintableStream(io.TextIOBase):
    """A stream that shows what would steer a terminal, instead of letting it.

    Parameters
    ----------
    plain : text file
        Where the text goes.
    """

    def __init__(self, plain: TextIO) -> None:
        self.plain = plain

    def write(self, text: str) -> int:
        """Write a text; how much of it was written. [characters]"""
        self.plain.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Pass on what is buffered."""
        self.plain.flush()

    def isatty(self) -> bool:
        """Whether a terminal reads it."""
        return self.plain.isatty()

    def fileno(self) -> int:
        """Number of the file."""
        return self.plain.fileno()


def plain_stream(stream: TextIO) -> TextIO:
    """The stream itself, for what draws on a terminal."""
    return stream.plain if isinstance(stream, PrintableStream) else stream


#: Exit code of a command that was interrupted, by whatever signal: what it stored is whole.
INTERRUPTED: Final = 130

#: Signals that interrupt; Windows has no SIGHUP.
ENDING: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let signals end a block as Ctrl-C does, in order; a second one, at once.

    What is stored is whole at any moment, so that nothing is lost by leaving at once. A signal that is
    ignored from outside, as by `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python handles no signals
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    heeded = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        for each in heeded:
            signal.signal(each, leave)
        raise KeyboardInterrupt

    for number in heeded:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once."""
    with suppress(OSError):  # a terminal that is gone
        os.write(2, b"dse: interrupted twice, so at once; every stored trial is kept\n")
    os._exit(INTERRUPTED)


#: Least time between two plain lines. [s]
LINE_INTERVAL = 1.0


@contextmanager
def progress_of(space: Space, stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """A function that shows where a search of `space` stands.

    Parameters
    ----------
    space : Space
        What is searched; its objectives say the units.
    stream : text file
        Where to show it: standard error.
    """
    if stream.isatty():
        with bar(space, stream) as update:
            yield update
    else:
        yield lines(space, stream)


def lines(space: Space, stream: TextIO) -> Callable[[Progress], None]:
    """One plain line per `LINE_INTERVAL`, and one at the end."""
    from dse.searching.progress_bar import state

    last = -LINE_INTERVAL

    def update(progress: Progress) -> None:
        nonlocal last
        if progress.complete < progress.budget and monotonic() - last < LINE_INTERVAL:
            return
        last = monotonic()
        print(
            f"{progress.complete}/{progress.budget} trials, {state(space, progress)}", file=stream, flush=True
        )

    return update


@contextmanager
def bar(space: Space, stream: TextIO) -> Iterator[Callable[[Progress], None]]:
    """A progress bar that disappears when it is done."""
    import rich.progress as rich
    from rich.table import Column

    from dse.records.text import SafeConsole
    from dse.searching.progress_bar import state

    shown = rich.Progress(
        rich.BarColumn(bar_width=12),
        rich.TextColumn("{task.completed:.0f}/{task.total:.0f} trials,", table_column=Column(no_wrap=True)),
        rich.TextColumn("{task.description}", markup=False),
        console=SafeConsole(file=plain_stream(stream)),
        transient=True,
    )
    with shown:
        task = shown.add_task("", total=1, visible=False)

        def update(progress: Progress) -> None:
            shown.update(
                task,
                completed=progress.complete,
                total=progress.budget,
                description=state(space, progress),
                visible=True,
            )

        yield update


def say(message: str) -> None:
    """Print lines on stderr that steer no terminal and tell no password."""
    from costmodel.errors import masked, printable

    with suppress(OSError):  # a terminal that is gone, or a full disk: nobody can read it
        for line in message.splitlines():
            print(f"dse: {printable(masked(line))}", file=sys.stderr)
