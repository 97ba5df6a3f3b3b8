"""The `dse` command: parse, call one function, write.

Rooms in the order in which they are read; those on one line do not know each other:

    options, terminal
    chosen, output, progress
    ask, understand, act, keep
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from costmodel.errors import DseError, masked, suggestion
from costmodel.installation import __version__
from dse.cli.terminal import INTERRUPTED, PrintableStream, discard_output, interruptible, say

DESCRIPTION = "Find the best ways to train a large language model on a cluster, and the best clusters for it."
EXAMPLES = """\
examples:
  dse search --budget 500                       GPT-3 175B on 1,024 A100s: the Pareto front in seconds
  dse search llama3_70b_512_h100 --set tp=8     another space, one parameter pinned
  dse resume gpt3_175b_1024_a100 --budget 1000  go on tomorrow, from the database alone
  dse pareto gpt3_175b_1024_a100 -o front.csv   the front as a table

`dse COMMAND --help` explains a command."""


class Command(NamedTuple):
    """A room, the module that carries the command out (which of its commands), and a line of help."""

    room: str
    module: str
    help: str


#: Commands in the order in which they are listed.
COMMANDS = {
    "plan": Command("ask", "plan", "the best layouts of a model on so many chips"),
    "search": Command("ask", "search:search", "search a space for the designs that nothing beats"),
    "resume": Command("ask", "search:resume", "continue a study"),
    "studies": Command("understand", "studies:studies", "list the studies of a database"),
    "pareto": Command("understand", "studies:pareto", "print the Pareto front of a study"),
    "trials": Command("understand", "studies:trials", "print every finished trial of a study"),
    "check": Command("keep", "check", "evaluate trials of a study again and say what differs"),
    "report": Command("understand", "report", "write a study as one page"),
    "dashboard": Command("understand", "dashboard", "look at studies in Optuna's dashboard"),
    "explain": Command("understand", "explain", "say why a design costs what it does"),
    "sensitivity": Command(
        "understand", "sensitivity", "say which parameters and quantities a design's step follows"
    ),
    "importance": Command("understand", "importance", "say which parameters matter for each objective"),
    "evaluate": Command("act", "evaluate", "price one design, or all that a sweep or a file names"),
    "fit": Command("act", "fit", "the nearest design that fits to one that may not"),
    "enumerate": Command("ask", "enumerate", "the exact Pareto front of all legal designs"),
    "columns": Command("understand", "columns", "every name that formulas, options and tables may use"),
    "export": Command("act", "export", "write a design of a study as a file for other programs"),
    "compare": Command(
        "understand",
        "compare",
        "compare two studies, two systems, or a study under another cost model or machine",
    ),
    "cost": Command("act", "cost", "price a workload file"),
    "import": Command("act", "import_model", "a model file from a Hugging Face config.json"),
    "validate": Command("keep", "validate", "compare predictions with measurements"),
    "calibrate": Command("keep", "calibrate", "fit the constants of a machine to measurements"),
    "spaces": Command("keep", "catalogue", "list the search spaces that ship"),
    "models": Command("keep", "catalogue", "list the models that ship"),
    "systems": Command("keep", "catalogue", "list the systems that ship"),
    "frameworks": Command("keep", "catalogue", "list the training frameworks that ship"),
    "delete": Command("keep", "delete", "delete a study and all of its trials"),
}

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
        say(str(getattr(error, "flags", error)))
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
        words = sys.argv[1:] if argv is None else argv
        args = parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
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

    words = " ".join(map(ascii, sys.argv))
    machine = f"dse {__version__}, Python {platform.python_version()}, {platform.platform()}"
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


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The command line, with the arguments of one command, or of every one."""
    top = Parser(
        prog="dse",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument(
        "--version", action="version", version=f"dse {__version__}", help="print the version and exit"
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, own in COMMANDS.items():
        one = commands.add_parser(name, help=own.help, formatter_class=HelpFormatter, allow_abbrev=False)
        if command in (None, name):
            words = import_module(f"dse.cli.{own.room}.words")
            getattr(words, own.module.split(":")[-1])(one)
            one.set_defaults(run=partial(carried_out, own))
    return top


def carried_out(command: Command, args: argparse.Namespace) -> int:
    """Run a command, whose module is imported now; its exit code."""
    module, colon, name = command.module.partition(":")
    run = getattr(import_module(f"dse.cli.{command.room}.{module}"), f"run_{name}" if colon else "run")
    return int(run(args))


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Texts as they are written, in two columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)
        self._action_max_length = 16  # argparse forgets that commands are indented


class Parser(argparse.ArgumentParser):
    """An argument parser that says which word was probably meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r} is not one{suggestion(str(value), known)}")
