"""The `dse` command: parse the arguments, call one function, write its result.

Rooms in the order in which they are read; those on one line do not import each other:

    terminal
    options, output, progress
    layouts
    commands
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

from costmodel.errors import DseError, masked, suggestion
from dse.cli.terminal import INTERRUPTED, PrintableStream, discard_output, interruptible, say

DESCRIPTION: Final = "Plan distributed training of large language models, and the hardware for it."
#: The commands in their groups, one a line, and examples.
OVERVIEW: Final = Path(__file__).with_name("commands.txt").read_text(encoding="utf-8").rstrip()
#: Command -> description.
COMMANDS: Final = dict(re.findall(r"^  (\w+) +(.+)$", OVERVIEW.partition("\nexamples:")[0], flags=re.MULTILINE))

DONE, FAILED = 0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process; returns its exit code. [-]

    0: done; 1: invalid input, or nothing feasible; 130: interrupted. Wrong usage exits with 2.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    if sys.stdout is None:
        say("output: closed")
        return FAILED
    for stream in (sys.stdout, sys.stderr):  # a terminal shows ? for characters that it lacks, such as those of bars
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with interruptible():
            return run_command(sys.argv[1:] if argv is None else argv)
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
        say("out of memory; use fewer designs at a time, fewer --jobs, or a smaller file")
        return FAILED
    except Exception as error:
        say(f"internal error ({type(error).__name__}); please report it with {crash_report(error)}")
        return FAILED


def run_command(argv: Sequence[str]) -> int:
    """Run the command of some arguments and flush its output; returns the exit code."""
    try:
        if not argv:
            print(parser("").format_help(), end="")
            return DONE
        args = parsed(argv)
        with waiting(getattr(args, "wait", None)), redirect_stderr(PrintableStream(sys.stderr)):
            return int(args.run(args))
    finally:
        sys.stdout.flush()


def waiting(seconds: float | None) -> AbstractContextManager[None]:
    """A block in which databases wait so long for the locks of other programs; None for the default. [s]"""
    if seconds is None:
        return nullcontext()
    from dse.storage.database import patience

    return patience(seconds)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command in any spelling; exits with 2 where they are wrong."""
    words = current_command(argv)
    command = next((word for word in words if not word.startswith("-")), "")
    top = parser(command)
    if command in COMMANDS:
        words = current_options(words, known_options(top.commands[command]))
    args, unknown = top.parse_known_args(words)
    if unknown:
        top.commands[command].refuse(unknown)
    return args


def crash_report(error: Exception) -> str:
    """Path of a new file with the command that was run, the versions of its packages, and the place of the error."""
    import platform
    import tempfile
    import traceback

    words = " ".join(map(ascii, sys.argv))
    from costmodel.installation import __version__

    machine = f"dse {__version__}, Python {platform.python_version()}, {platform.platform()}"
    report = masked("\n".join([words, machine, "", *traceback.format_exception(error)]))
    with tempfile.NamedTemporaryFile(
        "w", prefix="dse-crash-", suffix=".txt", encoding="utf-8", errors="backslashreplace", delete=False
    ) as file:
        file.write(report)
    return file.name


class PrintVersion(argparse.Action):
    """Print the version, whose module is imported only then, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        from costmodel.installation import __version__

        print(f"dse {__version__}")
        parser.exit()


def parser(command: str | None = None) -> Parser:
    """The command line, with the arguments of one command, or of every command."""
    top = Parser(
        prog="dse",
        description=DESCRIPTION,
        epilog=OVERVIEW,
        usage="dse COMMAND ...",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(prog="dse", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    top.commands = commands.choices
    for name in COMMANDS:
        one = commands.add_parser(name, formatter_class=HelpFormatter, allow_abbrev=False)
        if command in (None, name):
            module = import_module(f"dse.cli.commands.{'import_model' if name == 'import' else name}")
            import_module("dse.cli.options").add_arguments(one, module)
            one.usage = short_usage(one)
    return top


def short_usage(command: argparse.ArgumentParser) -> str:
    """The usage of a command: its positional arguments and its required options."""
    words = [command.prog]
    for action in command._actions:
        if not action.option_strings:
            words.append(f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar))
        elif action.required:
            words.append(f"{action.option_strings[0]} {action.metavar}")
    return " ".join([*words, "[options]"])


def known_options(command: argparse.ArgumentParser) -> set[str]:
    """Every option of a command, such as ``--gpus``."""
    return {word for action in command._actions for word in action.option_strings}


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Texts as they are written, in two columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line with a way on."""

    commands: Mapping[str, Parser]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from costmodel.formats.shipped import spellings

            known, is_command = list(map(str, action.choices)), isinstance(action, argparse._SubParsersAction)
            section = "commands" if is_command else "formats" if "megatron" in known else ""
            hint = spellings(section).get(str(value).lower()) if section else ""
            hint = f"; {hint}" if hint else suggestion(str(value), known)
            if is_command:
                self.error(f"unknown command {value!r}{hint} (`dse help` lists all commands)")
            raise argparse.ArgumentError(action, f"unknown value {value!r}{hint}")

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as error:
            if action.nargs is not None:
                raise
            example = re.search(r"such as ([^ ,;)]+)", action.help or "")
            expected = f"expected {action.metavar or 'a value'}" + (f", such as {example[1]}" if example else "")
            raise argparse.ArgumentError(action, expected) from error

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Say which argument is unknown, and the nearest one that the command has."""
        option = next((word for word in words if word.startswith("-")), "")
        if not option:
            self.error(f"unexpected argument {words[0]!r}")
        self.error(f"unknown option {option}{option_hint(option, known_options(self))}")

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        message = message.removeprefix("argument ")
        if missing := re.match(r"the following arguments are required: (.*)", message):
            example = re.search(rf"^ *({self.prog} .*)$", self.epilog or "", flags=re.MULTILINE)
            message = f"missing {missing[1]}" + (f"; for example: {example[1]}" if example else "")
        say(message if self.prog == "dse" else f"{message} (see `{self.prog} --help`)")
        raise SystemExit(2)


#: Values of ``--format`` that may stand alone, as options.
FORMATS: Final = ("--json", "--csv", "--parquet", "--table")

#: Fixed values of spaces that ``--set`` may change.
GIVEN: Final = ("global_batch_size", "seq_len", "world_size")


def current_command(words: Sequence[str]) -> list[str]:
    """Arguments with the present name of their command.

    >>> current_command(["trials", "gpt3"]), current_command(["help", "plan"]), current_command(["help"])
    (['show', '--trials', 'gpt3'], ['plan', '--help'], ['--help'])
    """
    if words and words[0] == "help":
        return [*current_command(words[1:2]), "--help"]
    if not words or words[0] in COMMANDS or words[0].startswith("-"):
        return [*words]
    from costmodel.formats.shipped import spellings

    present = spellings("earlier").get(words[0])
    return [*(present.split() if present else words[:1]), *words[1:]]


def current_options(words: Sequence[str], known: Collection[str]) -> list[str]:
    """Arguments with the present names of their options; `known` are those of the command.

    A column of designs becomes ``--set``, where the command has it.

    >>> current_options(["--seq", "8k", "--tp=8", "--json"], {"--seq-len", "--set", "--format"})
    ['--seq-len', '8k', '--set', 'tp=8', '--format', 'json']
    """
    from costmodel.formats.shipped import spellings

    options: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name == "--qlora" and "--quantized-base" in known:
            options += ["--quantized-base", "nf4"]
        if not name.startswith("-") or name in known:
            options.append(word)
        elif target := next((usual for usual in spellings("options").get(name, "").split() if usual in known), ""):
            options += [target, value] if equals else [target]
        elif name in FORMATS and "--format" in known:
            options += ["--format", name.removeprefix("--")]
        elif "--set" in known and (column := design_column(name)):
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("-") else "true"
            options += ["--set", f"{column}={value}"]
        else:
            options.append(word)
    return options


def design_column(option: str) -> str:
    """The column of designs that an option such as ``--micro-batch-size`` names; "" if it names none."""
    from costmodel.formats.shipped import spellings
    from costmodel.training.design import DesignPoints

    name = option.lstrip("-").replace("-", "_").lower()
    name = spellings("columns").get(name, name)
    known = {*DesignPoints.__dataclass_fields__, *DesignPoints.aliases, *GIVEN}
    return name if option.startswith("--") and name in known else ""


def option_hint(option: str, known: Collection[str]) -> str:
    """The way on from an option that `current_options` does not understand."""
    from costmodel.formats.shipped import spellings

    if hint := spellings("hints").get(option):
        return f". {hint}"
    near_names = sorted(spelling.strip("-") for spelling in known)
    near = difflib.get_close_matches(option.partition("=")[0].strip("-"), near_names, n=1)
    return f"; did you mean {'--' if len(near[0]) > 1 else '-'}{near[0]}?" if near else ""
