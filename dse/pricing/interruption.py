"""What must not be interrupted halfway, and workers whose master is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

#: How often a worker looks for its master. [s]
LOOK: Final = 1.0


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block that Ctrl-C and the like reach when it is done; it must not take long."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def end_with(master: int) -> None:
    """Have this process end once its parent, a process of that number, is gone: it may have been killed."""

    def watch() -> None:
        while os.getppid() == master:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
