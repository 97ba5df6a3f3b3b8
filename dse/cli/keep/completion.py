"""`dse completion`: commands, options and names for the TAB key of a shell."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from costmodel.formats import shipped
from dse.cli import parser as command_line

#: Commands by name.
Parsers = Mapping[str, argparse.ArgumentParser]

#: Argument -> what ships of that kind.
NAMED: Final = {"space": "spaces", "system": "systems", "model": "models"}
#: Commands that list what ships of a kind, and take a name of it.
LISTS: Final = ("spaces", "models", "systems", "frameworks")
#: What a shell's names are.
_WORD: Final = re.compile(r"[\w.:/+-]+")


def run(args: argparse.Namespace) -> int:
    """Print the completion script of a shell."""
    [commands] = [own for own in command_line()._actions if isinstance(own, argparse._SubParsersAction)]
    print(SHELLS[args.shell](commands.choices), end="")
    return 0


def words_of(command_name: str, action: argparse.Action) -> list[str]:
    """What an argument may be: its choices, or what ships under such names; nothing where it is open."""
    if action.choices is not None:
        return [str(word) for word in action.choices if _WORD.fullmatch(str(word))]
    kind = command_name if action.dest == "name" and command_name in LISTS else NAMED.get(action.dest)
    if kind is None:
        return []
    return shipped.names(kind)


def options_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options of a command."""
    return (action for action in parser._actions if action.option_strings)


def bash(parsers: Parsers) -> str:
    """A script for bash: words for each command, and for each option that has some."""
    cases = []
    for name, parser in parsers.items():
        flags = [flag for action in options_of(parser) for flag in action.option_strings]
        positions = [
            word for own in parser._actions if not own.option_strings for word in words_of(name, own)
        ]
        values = [
            f"      {'|'.join(action.option_strings)}) words={shlex.quote(' '.join(words))} ;;"
            for action in options_of(parser)
            if (words := words_of(name, action))
        ]
        chosen = shlex.quote(" ".join([*positions, *flags]))
        cases.append(
            "\n".join([f"    {name}) case $before in", *values, f"      *) words={chosen} ;;", "    esac ;;"])
        )
    return _BASH.format(commands=shlex.quote(" ".join(parsers)), cases="\n".join(cases))


_BASH: Final = """\
_dse() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then words={commands}
  else case ${{COMP_WORDS[1]}} in
{cases}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _dse dse
"""


def zsh(parsers: Parsers) -> str:
    """The script for bash, with what makes zsh read it."""
    return (
        f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash(parsers)}"
    )


def fish(parsers: Parsers) -> str:
    """A script for fish: a line for each command and option."""
    lines = []
    for name, parser in parsers.items():
        about = shlex.quote((parser.description or name).partition(".")[0].replace("\n", " "))
        lines.append(f"complete -c dse -n __fish_use_subcommand -a {name} -d {about}")
        within = f"complete -c dse -n '__fish_seen_subcommand_from {name}'"
        for action in parser._actions:
            found = shlex.quote(" ".join(words_of(name, action)))
            words = f" -x -a {found}" if words_of(name, action) else ""
            flags = "".join(
                f" -{'l' if own.startswith('--') else 's'} {own.lstrip('-')}" for own in action.option_strings
            )
            if flags or words:
                lines.append(f"{within}{flags}{words if flags else words.replace(' -x', ' -f', 1)}")
    return "\n".join(lines) + "\n"


#: Shell -> how its script is written.
SHELLS: Final[Mapping[str, Callable[[Parsers], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
