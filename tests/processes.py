"""Processes of Python's that begin with a statement, such as a limit or what they do about a signal."""

from __future__ import annotations

import sys

#: A shell that runs the tests in the background has them ignore Ctrl-C; what is tested must not.
HEEDING = "signal.signal(signal.SIGINT, signal.SIG_DFL)"


def python_after(statement: str, *arguments: str | bytes) -> list[str | bytes]:
    """The command of Python with arguments, after a statement that may use `signal` and `resource`.

    `subprocess`'s own hook between fork and exec is not safe beside the threads of a compiler in the process
    of the tests.
    """
    again = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", f"import os, resource, signal, sys; {statement}; {again}", *arguments]
