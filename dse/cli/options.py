"""Arguments of commands: their tables, the types of their values, and the space that they name.

A YAML table in the folder of each command lists its arguments; `options.yaml` has those that several commands share.
`changed_space` and `launched_space` turn them into a space, and import the modules for it then, so that a command's
help starts at once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import PURE_NUMBER, count_value, plain_number, quantity
from dse.cli.terminal import say
from dse.registry import call, load

if TYPE_CHECKING:
    from dse.spaces.space import Params, Space

#: Name -> table of arguments that commands share.
SHARED: Final[Mapping[str, Any]] = data_beside(__file__)


def add_arguments(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """Add the arguments in the YAML table of the module of a command, its description and its examples.

    A group ``+NAME`` stands for a function of the module, which adds arguments that the table cannot express. Its
    rows `refused` list arguments that exclude or need each other (`refuse_together`).
    """
    table = data_beside(str(module.__file__))
    parser.description = table["about"]
    parser.epilog = "\n".join(["examples:", *(f"  {example}" for example in table["examples"])])
    add_table(parser, table["arguments"], module)
    for title, arguments in table.get("groups", {}).items():
        if title.startswith("+"):
            getattr(module, title[1:])(parser)
        else:
            add_table(parser.add_argument_group(title), arguments, module)

    def run(args: argparse.Namespace) -> int:
        refuse_together(parser, args, table.get("refused", ()))
        return int(module.run(args))

    parser.set_defaults(run=run, **table.get("defaults", {}))


def refuse_together(
    parser: argparse.ArgumentParser, args: argparse.Namespace, rows: Iterable[Mapping[str, str]]
) -> None:
    """Refuse arguments that exclude or need each other, by the rows of a table; a `DseError`.

    A row is refused if `all` of its arguments are given, `any` of these, and `none` of those. In its message, {any}
    stands for the first of `any`, and other names in braces for values.
    """
    given = {action.dest: action for action in parser._actions if getattr(args, action.dest, None) != action.default}
    for row in rows:
        every, either, none = (row.get(key, "").split() for key in ("all", "any", "none"))
        first = next((given[name] for name in either if name in given), None)
        if given.keys() >= {*every} and (first or not either) and given.keys().isdisjoint(none):
            word = [*first.option_strings, first.metavar][0] if first else ""
            raise DseError(row["say"].format(any=word, **vars(args)))


def add_table(parser: argparse._ActionsContainer, arguments: Mapping[str, Any], module: ModuleType) -> None:
    """Add a table of arguments: flags -> settings, as `options.yaml` explains them."""
    for flags, settings in arguments.items():
        if flags == "+one_of":
            add_table(parser.add_mutually_exclusive_group(), settings, module)
        elif flags.startswith("+"):
            for flag, words in SHARED[flags[1:]].items():
                noted = words and {**words, "help": words["help"].replace("{note}", settings or "")}
                add_table(parser, {flag: noted}, module)
        else:
            parser.add_argument(*flags.split(), **{key: setting(key, value, module) for key, value in settings.items()})


def setting(key: str, value: Any, module: ModuleType) -> Any:
    """A setting of an argument, from its form in a table."""

    def named(name: str) -> Any:
        return load(name) if ":" in name else getattr(module, name, None) or globals()[name]

    if isinstance(value, dict):
        return named(value["of"])(*value["with"]) if "with" in value else named(value["of"])
    # an adapter is imported when a value is converted
    return value if key != "type" else partial(call, value) if ":" in value else named(value)


def bounded(low: float, high: float, expected: str) -> Callable[[str], float]:
    """A type of arguments: a number from `low` to `high`."""

    def parsed(text: str) -> float:
        try:
            value = plain_number(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
        return value

    return parsed


share = bounded(0, 1, "a share from 0 to 1")
number = bounded(5e-324, 1.7e308, "a number above 0")  #: from the least float to the largest


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """A type of arguments: a whole number from `least` to `most`."""
    expected = f"of at least {least}" if most == math.inf else f"from {least} to {most}"

    def parsed(text: str) -> int:
        with suppress(ValueError):
            if text.isascii() and "_" not in text and least <= (value := int(text)) <= most:
                return value
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number {expected}")

    return parsed


positive, natural, port = whole(1), whole(0), whole(0, 65535)


def whole_or(word: str) -> Callable[[str], int]:
    """A type of arguments: a whole number of at least 1; 0 for a word."""
    return lambda text: 0 if text == word else positive(text)


def tokens(text: str) -> float:
    """A count such as ``15T``."""
    try:
        return count_value(text.upper())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pin(text: str) -> tuple[str, str]:
    """``tp=8`` -> ``("tp", "8")``."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, such as tp=8; quote < and >")
    return name, value


def name_list(text: str) -> list[str]:
    """Names between commas."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r}: expected names between commas, such as tp,mfu")
    return names


def physical(unit: str, example: str, bare: float = 0.0) -> Callable[[str], float]:
    """A type of arguments: a quantity above 0 of a unit, such as ``80GB``; a number alone counts `bare` SI units."""

    def parsed(text: str) -> float:
        try:
            given = quantity(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        is_bare = given.dimension == PURE_NUMBER and bare > 0
        if not (is_bare or given.dimension == quantity(f"1 {unit}").dimension) or given.value <= 0:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a quantity such as {example}")
        return given.value * (bare if is_bare else 1)

    return parsed


def changed_space(args: argparse.Namespace) -> Space:
    """The space that a command's arguments name, with the changes of its options.

    Raises `DseError` if it does not load, or cannot be changed so.
    """
    from dse.api.designs import chosen_space

    return chosen_space(args.design if "design" in args else args.space, **changes_of(args))


def launched_space(args: argparse.Namespace, form: str = "") -> Space:
    """The space of the one design that a launch file runs; settings that are not read go to stderr."""
    from dse.api.designs import chosen_space
    from dse.api.launch_files import launch_design

    require_system(args.system, args.design)
    space = launch_design(args.design, form=form, system=args.system, gpus=args.gpus,
                          framework=args.framework, set=dict(args.set), note=say)  # fmt: skip
    return chosen_space(space, objective=args.objective, tokens=args.tokens)


def require_system(system: str | None, file: object) -> None:
    """Refuse a launch file without a system; a `DseError`."""
    if not system:
        raise DseError(f"{file}: add --system, such as --system h100 (`dse list systems` shows all)")


def changes_of(args: argparse.Namespace) -> dict[str, Any]:
    """Changes of a space by the options of a command, as keyword arguments of functions of `dse.api`."""
    if twice := next((n for n, _ in args.set if sum(n == m for m, _ in args.set) > 1), None):
        raise DseError(f"--set: {twice}: given twice")
    return {"set": dict(args.set), **{name: getattr(args, name) for name in ("layout", "objective", "tokens")}}


def set_words(args: argparse.Namespace) -> str:
    """The options of a launch file and the ``--set`` options of a command, as they are typed again."""
    given = {name: vars(args).get(name) for name in ("system", "gpus", "framework", "profile")}
    words = [f"--{name} {quote(str(value))}" for name, value in given.items() if value]
    words += [f"--set {quote(f'{name}={value}')}" for name, value in args.set]
    return "".join(f" {word}" for word in words)


def say_what_was_open(space: Space, params: Params) -> None:
    """Name the parameters that the user did not set, with the values that were used for them."""
    from dse.output import design_text

    taken = {p.name: params[p.name] for p in space.parameters if len(p.choices or "open") > 1}
    if taken:
        say(f"unset parameters get: {design_text(space, taken)}")


def refuse_same(read: Path | None, written: Path | None) -> None:
    """Refuse to write a file over the one that is read; a `DseError`."""
    if read and written and written.exists() and read.exists() and written.samefile(read):
        raise DseError(f"-o {written}: is the file that is read; name another")
