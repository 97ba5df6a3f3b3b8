"""Shell scripts followed without running them: the commands that they would start, variables written out.

The script is read as Bash would run it without arguments in an empty environment. Nothing is executed: of
programs, only the output of `echo`, `dirname` and a few others is known. A condition that depends on another
program, a file or the machine is taken to hold; `Script.asked` lists these conditions, and a reader that
gives `answers` follows the other branches. Loops, `case` and functions are not followed: a variable that they
set is unknown from there on (`$(for:12)`), and a script that starts its training in one of them is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from os.path import isfile
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from dse.adapters.megatron.shell.tokens import Mistake, Tokens, cleaned
from dse.adapters.megatron.shell.words import (
    ASSIGNMENT,
    DECIDED,
    Words,
    holds,
    is_number,
    line_of,
    slurm_options,
    slurm_variables,
)
from dse.launches.launch import launch_text

#: Folders above that of the script in which files are looked for. [-]
MOST_PARENTS: Final = 6

_SCRIPT: Final = (".sh", ".bash", ".slurm", ".sbatch", ".env")
_SHELLS: Final = ("bash", "sh", "zsh")
#: Programs that start the script that they name.
_STARTING: Final = (*_SHELLS, "sbatch", "srun", "salloc", "qsub", "exec", "nohup", "time", "env",
                    "mpirun", "mpiexec", "docker", "ssh", "sudo", "timeout")  # fmt: skip
#: Commands that succeed and decide nothing here; commands that set the variables that they name.
_PASSED: Final = ("echo", "printf", ":", "true", "trap", "ulimit", "mkdir", "pip", "module")
_DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")
_SETTING: Final = ("read", "mapfile", "readarray", "let")
#: Text of a statement that may start a training, and variables that a statement sets.
_STARTS: Final = re.compile(r"\.(py|sh|bash|slurm|sbatch|env)\b|\b(eval|source|python3?|torchrun)\b")
#: A command within a word that starts a program in Python.
_PYTHON: Final = re.compile(r"\.py\b.*--|--.*\.py\b|\bpython[\d.]* -m ", re.DOTALL)
_SETS: Final = re.compile(
    r"\b([A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:(?:[-+%]|\*\*?|/)?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)"
    r"|\b((?:read|mapfile|readarray|let|for|select|getopts|unset|printf -v)\s[^;\n|<>&]*)"
)
_ENDS: Final = ("\n", ";", "&", ";;")


class Exit(Exception):
    """`exit` of a script."""


class Return(Exception):
    """`return` of a script."""


class Unprinted(Exception):
    """A command within a substitution whose output is not known."""


@dataclass
class Script(Words):
    """A script as far as it has been followed."""

    functions: dict[str, tuple[str, bool, int]] = field(default_factory=dict)  #: text, whether it fails, line
    exported: set[str] = field(default_factory=set)  #: variables that the programs it starts see; "*": all
    commands: list[list[str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  #: files that it reads and that do not exist
    launcher: list[str] = field(default_factory=list)  #: words before a command within another
    answers: Mapping[int, int] = field(default_factory=dict)  #: ordinal of a condition -> branch to take
    asked: list[tuple[str, int]] = field(default_factory=list)  #: undecided conditions, branches of each
    printed: list[str] | None = None  #: output, within a substitution
    syntax: Tokens = field(default_factory=lambda: Tokens(""))
    first: int = 0  #: lines before the text [-]

    @classmethod
    def read(cls, text: str, path: Path | None = None, variables: Mapping[str, list[str]] | None = None,
             arguments: list[str] | None = None, answers: Mapping[int, int] | None = None) -> Script:  # fmt: skip
        """Follow a script, with variables and arguments of its caller and branches of undecided conditions.

        Raises `DseError` if a quote or a bracket is left open, variables grow without bound, or a loop, a function or a
        here-document may start the training.

        >>> script = 'TP=8\\nARGS=(--tp $TP # of a node\\n --pp "$((TP * 2))")\\nrun ${ARGS[@]} $X'
        >>> Script.read(script).commands
        [['run', '--tp', '8', '--pp', '16', '$X']]
        """
        given = {**(variables or {})}
        script = cls(path, given, arguments=arguments, exported={*given}, answers=answers or {})
        try:
            with suppress(Exit, Return):
                script.follow(text)
        except RecursionError:
            raise DseError("brackets, quotes or variables of the script are nested without bound") from None
        return script

    def follow(self, text: str, **changes: Any) -> None:
        """Follow a text: a script, a file that it reads, or a command within a command."""
        for name, value in slurm_options(self.measured([text])[0]).items():
            self.slurm.setdefault(name, value)
        reader = replace(self, **changes)
        for name, value in slurm_variables(self.slurm).items():
            reader.variables.setdefault(name, [value])
            reader.exported.add(name)
        try:
            text = cleaned(text)
            reader.syntax = Tokens(text)
        except Mistake as mistake:
            reader.line = reader.first + text.count("\n", 0, mistake.args[0]) + 1
            raise reader.refused(mistake.args[1]) from None
        try:
            reader.run(0, len(reader.syntax.tokens))
        except Mistake as mistake:  # in a word of the statement of this line
            raise reader.refused(mistake.args[1]) from None

    # Statements are ranges of tokens. Each method returns whether they succeed, None where that is unknown

    def split(self, start: int, stop: int, *signs: str) -> list[tuple[int, int, str]]:
        """Ranges of tokens between signs outside brackets, with the sign before each; empty ones left out."""
        ranges, begin, at, before = [], start, start, ""
        while at < stop:
            token = self.syntax.tokens[at]
            if token.text in signs and token.kind == "sign":
                ranges.append((begin, at, before))
                begin, before = at + 1, token.text
            at = self.syntax.closers.get(at, at) + 1
        return [part for part in (*ranges, (begin, stop, before)) if part[0] < part[1]]

    def written(self, start: int, stop: int) -> str:
        """The text of a range of tokens."""
        tokens = self.syntax.tokens
        return self.syntax.source[tokens[start].at : tokens[stop - 1].at + len(tokens[stop - 1].text)]

    def token_line(self, number: int) -> int:
        """Line of a token. [-]"""
        return self.first + self.syntax.source.count("\n", 0, self.syntax.tokens[number].at) + 1

    def run(self, start: int, stop: int) -> bool | None:
        """Follow statements in turn."""
        status: bool | None = True
        for begin, end, _ in self.split(start, stop, *_ENDS):
            parts = self.split(begin, end, "&&", "||")
            for number, (first, last, joint) in enumerate(parts):
                if joint:
                    if self.leaves(first, last):
                        continue
                    succeeds = status if status is not None else self.branch(begin, parts[number - 1][1], 2) == 0
                    if succeeds != (joint == "&&"):
                        continue
                status = self.pipeline(first, last)
        return status

    def branch(self, start: int, stop: int, branches: int) -> int:
        """The branch to take behind an undecided condition; 0 where it holds."""
        if self.printed is not None:
            raise Unprinted
        condition = re.sub(r"[\s;]+$", "", " ".join(self.written(start, stop).split()))
        if re.match(r"python3? -c .(from|import)\b", condition):  # packages count as installed
            return 0
        self.asked.append((f"line {self.line}: `{condition[:60]}`", branches))
        return self.answers.get(len(self.asked) - 1, 0)

    def leaves(self, start: int, stop: int) -> bool:
        """True if a statement ends the script with an error."""
        first, *words = (token.text for token in self.syntax.tokens[start:stop])
        if first == "{":
            return self.fails(start + 1, self.syntax.closers[start])
        if first in ("exit", "return"):
            return words[:1] != ["0"]
        return first in self.functions and self.functions[first][1]

    def fails(self, start: int, stop: int) -> bool:
        """True if one of several statements leaves the script with an error."""
        return any(self.leaves(begin, end) for begin, end, _ in self.split(start, stop, *_ENDS))

    def pipeline(self, start: int, stop: int) -> bool | None:
        """Follow a command, or several with `|` between them."""
        parts = self.split(start, stop, "|", "|&")
        if self.syntax.tokens[start].text in ("|", "|&"):
            raise Mistake(start, f"expected a command, not {self.syntax.tokens[start].text}")
        if len(parts) == 1:
            return self.statement(start, stop)
        for begin, end, _ in parts:
            with suppress(Exit):
                replace(self, variables={**self.variables}).statement(begin, end)
        return None

    def statement(self, start: int, stop: int) -> bool | None:
        """Follow a compound statement or a command."""
        token = self.syntax.tokens[start]
        self.line = self.token_line(start)
        end = self.syntax.closers.get(start, stop)
        if token.kind == "function":
            self.functions[token.text] = self.written(start, stop), self.fails(start + 2, stop - 1), self.line
            return True
        if token.kind == "arithmetic":
            if _SETS.search(token.text):
                self.forget(token.text, "arithmetic")
                return None
            value = replace(self, strict=True).arithmetic(self.text(token.text, True))
            return None if value is None else value != 0
        if token.kind in ("word", "redirection"):
            return self.simple(start, stop)
        if token.text != "!" and start not in (self.syntax.arms if token.text == "if" else self.syntax.closers):
            raise Mistake(start, f"{token.text}: not a whole command")
        match token.text:
            case "if":
                self.branches(start)
            case "(":
                with suppress(Exit):
                    replace(self, variables={**self.variables}).run(start + 1, end)
                return None
            case "[[":
                tokens = self.syntax.tokens[start + 1 : end]
                return holds([part.text if part.kind == "sign" else self.known(part.text) for part in tokens])
            case "!":
                status = self.statement(start + 1, stop) if start + 1 < stop else True
                return None if status is None else not status
            case "{":
                return self.run(start + 1, end)
            case _:
                self.loop(start, end)
        return None

    def branches(self, start: int) -> None:
        """Follow the branch whose condition holds; of undecided conditions that of `answers`."""
        tokens, undecided, answer = self.syntax.tokens, 0, -1
        marks = [start, *self.syntax.arms[start], self.syntax.closers[start]]
        arms = sum(tokens[mark].text in ("if", "elif") for mark in marks)
        for before, mark, after in zip(marks, marks[1:], [*marks[2:], marks[-1]], strict=False):
            if tokens[mark].text == "then":
                self.line = self.token_line(before)
                status = self.run(before + 1, mark)
            elif tokens[mark].text == "else":
                status = True
            else:
                continue
            if status is False or self.fails(mark + 1, after):
                continue
            if status is None:
                if answer < 0:
                    answer = self.branch(before + 1, mark, arms + 1)
                undecided += 1
                if undecided <= answer:
                    continue
            self.run(mark + 1, after)
            return

    def loop(self, start: int, end: int) -> None:
        """Pass over a loop that has a turn, or `case`."""
        word, tokens = self.syntax.tokens[start].text, self.syntax.tokens
        line, do = self.line, self.syntax.arms.get(start, [end])[0]
        if word in ("while", "until") and self.run(start + 1, do) is (word == "until"):
            return
        self.line = line
        if word in ("for", "select") and tokens[start + 2].text == "in":
            words = [token.text for token in tokens[start + 3 : do] if token.kind == "word"]
            if not any(self.known(text) != "" or replace(self, strict=True).expanded(text) for text in words):
                return
        self.skipped(self.written(start, end + 1), word)

    def skipped(self, text: str, kind: str) -> None:
        """Make the variables unknown that statements set which are not followed.

        Raises `DseError` if they may start the training.
        """
        used = re.sub(r"\b(echo|printf)\b[^\n;|]*", "", text)
        names = [name for name in self.functions if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
        for name in names:  # grows by functions that these call
            text += self.functions[name][0]
            names += [other for other in self.functions if other not in names and other in self.functions[name][0]]
        values = " ".join(word for name in re.findall(r"\$\{?(\w+)", used) for word in self.variables.get(name, ()))
        if _STARTS.search(text) or _STARTS.search(values):
            raise self.refused(f"`{kind}` may start the training, and is not followed")
        self.forget(text, kind)

    def forget(self, text: str, kind: str) -> None:
        """Make the variables unknown that a text sets, and the arguments if it shifts them."""
        value = self.unknown(kind)
        for assigned, counted, named in _SETS.findall(text):
            for name in re.findall(r"(?<![-\w$])[A-Za-z_]\w*", named.partition(" ")[2]) or [assigned or counted]:
                self.variables[name] = [value]
        if re.search(r"\b(shift|set)\b", text):
            self.arguments = [value] * 9

    # Commands

    def simple(self, start: int, stop: int) -> bool | None:
        """Follow assignments, a command of the shell itself, or the start of a program."""
        file, given, raw = -1, list[str](), list[str]()
        for at in range(start, stop):
            token = self.syntax.tokens[at]
            body = self.syntax.documents.get(at, "")
            if "--" in body and _STARTS.search(body):
                raise self.refused("`here-document` may start the training, and is not followed")
            if token.kind not in ("word", "redirection"):
                raise self.refused(f"expected a word, not {token.text}")
            if token.kind == "redirection":
                file = -1 if at in self.syntax.documents else at + 1
            elif at != file:
                (raw if raw or not ASSIGNMENT.match(token.text) else given).append(token.text)
        if raw[:1] in (["["], ["test"]):
            return holds([self.known(word) for word in raw[1 : -1 if raw[0] == "[" else None]])
        if raw[:1] and raw[0] in _DECLARING:
            return self.declared(raw)
        words = [word for written in raw for word in self.expanded(written)]
        if not words:
            if "IFS" in map(self.assigned, given):
                raise self.refused("words that IFS separates are not followed")
            return True
        if words[0] in _SETTING or words[:2] == ["printf", "-v"]:
            self.forget(" ".join(["read", *words[1:]]), words[0])
            return None
        reader = replace(self, variables={**self.variables}) if given else self
        reader.exported = self.exported | {*map(reader.assigned, given)}
        return reader.command(words)

    def declared(self, raw: Sequence[str]) -> bool:
        """Follow `export`, `declare` and their like."""
        names = [self.assigned(word) for word in raw if ASSIGNMENT.match(word)]
        words = [word for written in raw if not ASSIGNMENT.match(written) for word in self.expanded(written)]
        if "-i" in words:
            raise self.refused("variables of declare -i are not followed")
        self.exported |= {*names, *words[1:]} if {"export", "-x"} & {*words} else set()
        return True

    def command(self, words: list[str]) -> bool | None:
        """Follow a command with its words."""
        if self.printed is not None and words[0] != "cd":
            line = (self.folder or ".") if words == ["pwd"] else line_of(words)
            if line is None:
                raise Unprinted
            self.printed.append(line)
            return True
        if words[0] in self.functions:
            text, _, self.line = self.functions[words[0]]
            runs = re.search(r"(?:^|[{;&|\n])\s*\"?\$(@|\*|1)", text)
            self.skipped(f"{text} {' '.join(words[1:]) if runs else ''}", "function")
            return None
        return self.built_in(words[0], words[1:])

    def started(self, words: list[str]) -> None:
        """Keep a command that starts a program; follow the script or the text that it starts."""
        program = posixpath.basename(words[0])
        shell = any(posixpath.basename(word) in _SHELLS for word in words)
        for number, word in enumerate(words):
            if word.endswith(".py"):
                break
            path = self.located(word) if word.endswith(_SCRIPT) else None
            if path and (number == 0 or program in _STARTING):
                if program in ("sbatch", "salloc"):
                    self.slurm.update(slurm_options(f"#SBATCH {' '.join(words[1:number])}"))
                return self.child(words[:number], launch_text(path), **_of_file(path, words[number + 1 :]))
            text = re.sub(r"^--?[\w-]+=", "", word)
            command = shell and re.fullmatch(r"-\w*c", words[number - 1])
            if (command or (" " in word and _PYTHON.search(text))) and self.is_script(text):
                return self.child(words[:number], text, first=self.line - 1)
        return self.commands.append(self.measured([*self.launcher, *words]))

    def child(self, launcher: Sequence[str], text: str, **changes: Any) -> None:
        """Follow a script that another process runs: it has the variables that are exported."""
        seen = {n: v for n, v in self.variables.items() if n in self.exported or "*" in self.exported}
        with suppress(Exit, Return):
            self.follow(text, launcher=[*self.launcher, *launcher], variables=seen, exported={*seen}, **changes)

    def is_script(self, text: str) -> bool:
        """True if a text parses as a script."""
        try:
            Tokens(cleaned(self.measured([text])[0]))
        except Mistake:
            return False
        return True

    def sourced(self, words: list[str]) -> bool:
        """Follow a file that the script reads."""
        if words and DECIDED.match(words[0]):
            raise self.refused("`source` of a process substitution is not followed")
        path = self.located(words[0]) if words else None
        if path:
            with suppress(Return):
                self.follow(launch_text(path), **_of_file(path, words[1:] or self.arguments))
        elif words:
            self.missing.append(words[0])
        return True

    def located(self, name: str) -> Path | None:
        """A file that the script names: in the folder of the script, or below a folder above it.

        The unknown part of a path, and the folders of another machine, are left out.
        """
        if self.path is None:
            return None
        tail = name if "$" not in name else name[name.rindex("$") :].partition("/")[2]
        parts = [part for part in tail.split("/") if part != "."]
        tails = [tail, *("/".join(parts[start:]) for start in range(1, len(parts)))]
        folders = [*([Path(self.folder)] if self.folder else []), *list(self.path.parents)[:MOST_PARENTS]]
        for end, folder in product(tails if tail.startswith("/") else [tail], folders):
            if end and isfile(folder / end):
                return folder / end
        return None

    def built_in(self, name: str, words: list[str]) -> bool | None:
        """Follow a command of the shell itself; or keep one that starts a program."""
        match name:
            case "exit" | "return":
                raise Exit if name == "exit" else Return
            case "." | "source":
                return self.sourced(words)
            case "cd" | "pushd":
                return self.gone(words)
            case "shift":
                self.arguments = (self.arguments or [])[int(words[0]) if words and is_number(words[0]) else 1 :]
            case "set":  # replaces the arguments of the script, or exports all variables
                if words[:1] == ["--"]:
                    known = next((at for at, word in enumerate(words) if word.startswith("$")), len(words))
                    self.arguments = words[1:known] + [self.unknown("set")] * (9 if known < len(words) else 0)
                self.exported |= {"*"} if {"-a", "allexport"} & {*words} else set()
            case "unset":
                for word in words:
                    self.variables.pop(word, None)
            case "eval":
                if self.is_script(text := " ".join(words)):
                    self.follow(text, first=self.line - 1)
            case "false":
                return False
            case _ if name in _PASSED:
                return True
            case _:
                self.started([name, *words])
        return None

    def output(self, text: str) -> str | None:
        """The output of a substituted command; None if a program other than `echo`, `dirname` and their like prints."""
        printed: list[str] = []
        try:
            syntax = Tokens(text)
            reader = replace(self, first=self.line - 1, printed=printed, variables={**self.variables}, syntax=syntax)
            reader.run(0, len(syntax.tokens))
        except (Exit, Return, Unprinted, Mistake):
            return None
        return self.measured(["\n".join(printed).rstrip("\n")])[0]


def _of_file(path: Path, arguments: list[str] | None) -> dict[str, Any]:
    """Fields that differ in a script that another script starts or sources."""
    return {"arguments": arguments, "path": path, "file": path.name, "first": 0}
