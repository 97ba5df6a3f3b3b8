"""Processes of Python's that begin with a statement, such as a limit or what they do about a signal."""

import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

#: A shell that runs the tests in the background has them ignore Ctrl-C; what is tested must not.
HEEDING = "signal.signal(signal.SIGINT, signal.SIG_DFL)"


def python_after(statement: str, *arguments: str | bytes) -> list[str | bytes]:
    """The command of Python with arguments, after a statement that may use `signal` and `resource`.

    `subprocess`'s own hook between fork and exec is not safe beside the threads of a compiler in the process
    of the tests.
    """
    again = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", f"import os, resource, signal, sys; {statement}; {again}", *arguments]


def begun(statement: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of Python, after a statement, whose output and errors are pipes."""
    command, pipe = python_after(statement, *arguments), subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def searching(url: str, budget: int) -> ForkServerProcess:
    """A process that goes on with the study named shared, about to begin.

    It is forked from one that has imported all, so that a start takes no second.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dse.api.study", "dse.searching.batches.loop", "tests.support.processes"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=search, args=(url, budget, there))
    process.start()
    there.close()
    here.recv()
    return process


def search(url: str, budget: int, ready: Connection) -> None:
    """Say that all is imported, then go on with the study named shared."""
    from dse.api.study import Study

    study = Study.load("shared", storage=url)
    ready.send(None)
    study.run(budget)


def exit_codes(processes: list[ForkServerProcess]) -> list[int | None]:
    """Exit codes of processes, once all have ended."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
