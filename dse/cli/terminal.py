"""Standard error of a command: text without control sequences; and signals that end a command."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn, TextIO

from costmodel.errors import masked, printable


class PrintableStream(io.TextIOBase):
    """A stream that shows control characters to a terminal, in place of sending them."""

    def __init__(self, plain: TextIO) -> None:
        self.plain = plain

    def write(self, text: str) -> int:
        """Write a text; how much of it was written. [characters]"""
        self.plain.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Write the buffered text."""
        self.plain.flush()

    def isatty(self) -> bool:
        """True if the stream is a terminal."""
        return self.plain.isatty()

    def fileno(self) -> int:
        """Number of the file."""
        return self.plain.fileno()


def plain_stream(stream: TextIO) -> TextIO:
    """The stream itself, for programs that draw on a terminal."""
    return stream.plain if isinstance(stream, PrintableStream) else stream


#: Exit code of a command that a signal interrupted: the trials that it stored are complete.
INTERRUPTED: Final = 130

#: Signals that interrupt; Windows has no SIGHUP.
ENDING: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def interruptible() -> Iterator[None]:
    """Let signals end a block as Ctrl-C does, in order; a second one, at once.

    Stored trials are complete at any moment, so that nothing is lost by leaving at once. A signal that the caller
    ignores, as `nohup` does, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python handles no signals
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    heeded = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        for signal_number in heeded:
            signal.signal(signal_number, leave)
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


def say(message: str) -> None:
    """Print lines on stderr that steer no terminal and tell no password."""
    with suppress(OSError):  # a terminal that is gone, or a full disk: nobody can read it
        for line in getattr(message, "flags", message).splitlines():
            print(f"dse: {printable(masked(line))}", file=sys.stderr)


def discard_output() -> None:
    """Let nothing that is still buffered for stdout fail again when the process ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a stream of no file, or one that is closed
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
