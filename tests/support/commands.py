"""Commands of `dse`, run in the process of the tests: their results, outputs and parsers."""

import argparse
import contextlib
import io
import json
from typing import Any, NamedTuple

from dse.cli import main, parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command."""
    [commands] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(commands.choices)


class Outputs(NamedTuple):
    """Texts that a command prints to stdout and to stderr."""

    out: str
    err: str


def outputs_of(*words: object, code: int = 0) -> Outputs:
    """Texts that a command prints; fails if it ends with another exit code."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True) for _ in range(2)]
    ended: int | str | None
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            ended = main([*map(str, words)])
        except SystemExit as stop:  # of argparse: --help, --version, and wrong usage
            ended = stop.code
    outputs = Outputs(*(stream.buffer.getvalue().decode() for stream in streams))
    assert ended == code, (words, outputs.err)
    return outputs


def stdout_of(*words: object, code: int = 0) -> str:
    """Text that a command prints to stdout."""
    return outputs_of(*words, code=code).out


def stderr_of(*words: object, code: int = 1) -> str:
    """Text that a failing command prints to stderr."""
    return outputs_of(*words, code=code).err


def json_of(*words: object, code: int = 0) -> Any:
    """The object that a command prints as JSON."""
    return json.loads(stdout_of(*words, "--format", "json", code=code))
