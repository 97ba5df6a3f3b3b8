"""What ends a command from outside: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a terminal that is closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

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
