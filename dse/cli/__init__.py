"""The `dse` command: parse, call one function, write.

Rooms in the order in which they are read; those on one line do not know each other:

    options, output, terminal
    ask, understand, act, keep
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

from costmodel.installation import VERSION
from dse.cli.act import cost, evaluate, export, fit, import_model
from dse.cli.ask import enumerate, plan, search
from dse.cli.keep import calibrate, catalogue, check, completion, delete, validate
from dse.cli.options import HelpFormatter
from dse.cli.output import discard_output
from dse.cli.terminal import INTERRUPTED, interruptible, say
from dse.cli.understand import (
    columns,
    compare,
    dashboard,
    explain,
    importance,
    report,
    sensitivity,
    studies,
)

DESCRIPTION = "Find the best ways to train a large language model on a cluster, and the best clusters for it."
EXAMPLES = """\
examples:
  dse search --budget 500                       GPT-3 175B on 1,024 A100s: the Pareto front in seconds
  dse search llama3_70b_512_h100 --set tp=8     another space, one parameter pinned
  dse resume gpt3_175b_1024_a100 --budget 1000  go on tomorrow, from the database alone
  dse pareto gpt3_175b_1024_a100 -o front.csv   the front as a table

`dse COMMAND --help` explains a command."""

#: Where commands are, in the order in which they are listed.
COMMANDS = (
    *(plan, search, studies, check, report, dashboard, explain, sensitivity, importance, evaluate, fit),
    *(enumerate, columns, export, compare, cost, import_model, validate, calibrate, catalogue),
    *(delete, completion),
)

DONE, FAILED = 0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after ``dse``; those of the process by default.

    Returns
    -------
    code : int
        0 done; 1 a mistake in the input, or nothing feasible found; 130 interrupted. [-]
    """
    from costmodel.errors import DseError

    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    if sys.stdout is None:
        say("output: closed")
        return FAILED
    replace_unprintable()
    try:
        with interruptible():
            return obeyed(argv)
    except DseError as error:
        say(str(error))
        return FAILED
    except KeyboardInterrupt as interrupt:
        say(str(interrupt) or "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        discard_output()
        return DONE
    except OSError as error:
        discard_output()
        say(f"{error.filename or 'output'}: {error.strerror or error}")
        return FAILED
    except MemoryError:
        say("out of memory; fewer designs at a time, fewer --jobs, or a smaller file would do")
        return FAILED
    except Exception as error:
        say(
            f"a mistake of this program ({type(error).__name__}); please report it with {crash_report(error)}"
        )
        return FAILED


def obeyed(argv: Sequence[str] | None) -> int:
    """Run the command of some arguments, with all that it printed gone out; its exit code."""
    try:
        args = parser().parse_args(argv)
        from dse.cli.terminal import PrintableStream
        from dse.storage.database import patience

        with patience(getattr(args, "wait", None)), redirect_stderr(PrintableStream(sys.stderr)):
            return int(args.run(args))
    finally:
        sys.stdout.flush()


def crash_report(error: Exception) -> str:
    """Path of a new file that says what was run, by which versions, and where it failed."""
    import platform
    import tempfile
    import traceback

    from costmodel.errors import masked

    words = " ".join(map(ascii, sys.argv))
    machine = f"dse {VERSION}, Python {platform.python_version()}, {platform.platform()}"
    report = masked("\n".join([words, machine, "", *traceback.format_exception(error)]))
    with tempfile.NamedTemporaryFile(
        "w", prefix="dse-crash-", suffix=".txt", encoding="utf-8", errors="backslashreplace", delete=False
    ) as file:
        file.write(report)
    return file.name


def replace_unprintable() -> None:
    """Print a question mark where a terminal cannot show a character, such as those of bars."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="dse",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument(
        "--version", action="version", version=f"dse {VERSION}", help="print the version and exit"
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for group in COMMANDS:
        group.register(commands)
    return top


class Parser(argparse.ArgumentParser):
    """An argument parser that says which word was probably meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from costmodel.errors import suggestion

            known = list(map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r} is not one{suggestion(str(value), known)}")
