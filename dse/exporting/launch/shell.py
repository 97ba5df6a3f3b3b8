"""Shell scripts followed without running them: the commands that they would start, variables written out.

Assignments, arrays, quotes, substitutions, arithmetic, conditions, loops, functions, here-documents, files
that are `source`d or started and stand beside, and commands within texts (`sh -c "..."`, `eval`) mean what
they do to Bash. Of programs nothing but `echo`, `dirname` and their like is known. A script is read as one
started without arguments in an empty environment. What the caller or a program would fill in stays as it is
written; where a condition depends on what a program says, all branches are read, and the last assignment
counts. Branches that leave the script with an error are not taken.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from dse.exporting.launch.launch import LONGEST, launch_text
from dse.exporting.launch.shell_syntax import (
    ArrayWord,
    Branches,
    Case,
    Chain,
    Condition,
    Document,
    Function,
    Grouped,
    Loop,
    Node,
    PipedCommands,
    Simple,
    Word,
    WordPart,
    parsed,
    plain,
    quoted_word,
    whole_word,
)
from dse.exporting.launch.shell_values import changed, holds, is_number, line_of, whole_arithmetic

#: Most turns of a loop whose condition holds. [-]
MOST_TURNS: Final = 1000

_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(?:\[([^]]*)\])?(\+?)=(.*)", re.DOTALL)
_PARAMETER: Final = re.compile(r"([#!]?)(\w+|[@*#?$!-])(?:\[([^]]*)\])?(.*)", re.DOTALL)
_CHANGED: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(=(?!=)|[-+*]=|\+\+|--)(.*)", re.DOTALL)
_KEPT: Final = re.compile(r"\$(\{\w+\}|\w+)")
_SCRIPT: Final = (".sh", ".bash", ".slurm", ".sbatch", ".env")
#: Words before an assignment.
_DECLARING: Final = ("export", "declare", "local", "readonly", "typeset")


@dataclass
class Script:
    """A script as far as it has been followed."""

    path: Path | None = None  #: where it stands; files are looked for beside it
    variables: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, dict[str, str]] = field(default_factory=dict)  #: arrays with words for indices
    functions: dict[str, Node] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    slurm: dict[str, str] = field(default_factory=dict)  #: options of `#SBATCH` lines
    missing: list[str] = field(default_factory=list)  #: files that it reads and that are not there
    folder: str = ""  #: where it goes, below that of the script
    arguments: list[str] | None = None  #: of a function, or of a script that another starts
    launcher: list[str] = field(default_factory=list)  #: words before a command that stands in another
    strict: bool = False  #: whether what is not known is empty, as in conditions
    size: int = 0

    @classmethod
    def read(
        cls,
        text: str,
        path: Path | None = None,
        variables: Mapping[str, list[str]] | None = None,
        arguments: list[str] | None = None,
    ) -> Script:
        """Follow a script, with variables and arguments that its caller gives.

        Raises
        ------
        DseError
            If a quote or a bracket is left open, or variables grow without bound.

        >>> script = 'TP=8\\nARGS=(--tp $TP # of a node\\n --pp "$((TP * 2))")\\nrun ${ARGS[@]} $X'
        >>> Script.read(script).commands
        [['run', '--tp', '8', '--pp', '16', '$X']]
        """
        script = cls(path, {**(variables or {})}, arguments=arguments)
        try:
            script.follow(text)
        except RecursionError:
            raise DseError("variables of the script are nested without bound") from None
        return script

    def follow(self, text: str) -> None:
        """Take up a text: that of the script, of a file that it reads, or of a command within a command."""
        self.measured([text])
        for name, value in slurm_options(text).items():
            self.slurm.setdefault(name, value)
            for variable in SLURM_VARIABLES.get(name, ()):
                self.variables.setdefault(variable, [value])
        self.run(parsed(text))

    def run(self, commands: Sequence[Chain]) -> bool | None:
        """Take up commands in turn; whether the last one succeeds, None where nothing here knows."""
        status: bool | None = True
        for chain in commands:
            for step in chain:
                if (step.joint == "&&" and status is False) or (step.joint == "||" and status is True):
                    continue
                if step.joint and any(self.leaves(node) for node in step.commands):
                    continue
                status = self.step(step)
        return status

    def step(self, step: PipedCommands) -> bool | None:
        """Take up a pipeline; whether it succeeds."""
        found = [self.node(node) for node in step.commands]
        status = found[0] if len(found) == 1 else None
        return status if status is None or not step.negated else not status

    def node(self, node: Node) -> bool | None:
        """Take up a command of any kind; whether it succeeds."""
        self.measured([""])
        match node:
            case Simple():
                return self.simple(node)
            case Condition(words):
                return self.test(words)
            case Branches(branches):
                self.branches(branches)
            case Case(word, choices):
                self.choose(word, choices)
            case Loop():
                self.loop(node)
            case Grouped(body):
                return self.run(body)
            case Function(name, body):
                self.functions[name] = body
        return None

    def leaves(self, node: Node) -> bool:
        """Whether a command leaves the script with an error."""
        if isinstance(node, Grouped):
            return self.all_leave(node.body)
        if not isinstance(node, Simple):
            return False
        words = [plain(word) if isinstance(word, tuple) else "" for word in node.words]
        if words[:1] == ["exit"] or words[:1] == ["return"]:
            return words[1:] != ["0"]
        own = self.functions.get(words[0]) if words else None
        return own is not None and self.leaves(own)

    def all_leave(self, commands: Sequence[Chain]) -> bool:
        """Whether commands leave the script with an error at their end."""
        return any(self.leaves(node) for chain in commands if len(chain) == 1 for node in chain[0].commands)

    def branches(self, branches: Sequence[tuple[list[Chain], list[Chain]]]) -> None:
        """Take up the branch whose condition holds, and all before it that may."""
        for condition, body in branches:
            status = self.run(condition)
            if status is not False and not self.all_leave(body):
                self.run(body)
                if status:
                    break

    def choose(self, word: Word, choices: Sequence[tuple[list[Word], list[Chain]]]) -> None:
        """Take up the branch of the first pattern that a word fits; all of them where it is not known."""
        [value] = self.known([word])
        for patterns, body in choices:
            fits = value is None or any(fnmatchcase(value, self.joined(own)) for own in patterns)
            if fits and not self.all_leave(body):
                self.run(body)
            if fits and value is not None:
                break

    def loop(self, loop: Loop) -> None:
        """Take up a loop: for each of its words, or as long as its condition is known to hold."""
        if loop.name:
            for value in [item for word in loop.words for item in self.expanded(word)]:
                self.variables[loop.name] = [value]
                self.run(loop.body)
            return
        for _ in range(MOST_TURNS):
            status = self.run(loop.condition)
            if status is loop.until and status is not None:
                break
            self.run(loop.body)
            if status is None:
                break

    # Commands

    def simple(self, command: Simple) -> bool | None:
        """Take up a command: its assignments, what the shell itself does, or the start of a program."""
        first = plain(command.words[0]) if command.words and isinstance(command.words[0], tuple) else ""
        if first in ("[", "test"):
            return self.test([word for word in command.words[1:] if isinstance(word, tuple)])
        words: list[str] = []
        for word in command.words:
            declares = not words or (words[0] in _DECLARING and all(one[:1] == "-" for one in words[1:]))
            if not (declares and self.assigned(word)) and isinstance(word, tuple):
                words += self.expanded(word)
        if not words:
            return True
        if words[0] in BUILT_IN:
            return BUILT_IN[words[0]](self, words[1:], command.documents)
        if words[0] in self.functions:
            with self.within(arguments=words[1:]):
                return self.node(self.functions[words[0]])
        self.started(words, command.documents)
        return None

    def started(self, words: list[str], documents: Sequence[Document]) -> None:
        """Keep a command that starts a program; follow the script or the text that it starts."""
        for place, word in enumerate(words):
            if word.endswith(".py"):
                break
            path = self.found(word) if word.endswith(_SCRIPT) else None
            if path and (place == 0 or posixpath.basename(words[0]) in _STARTING):
                with self.within(words[:place], words[place + 1 :], path):
                    return self.follow(launch_text(path))
            if " " in word and self.inner(re.sub(r"^--?[\w-]+=", "", word), words[:place]):
                return None
        inner = [self.inner(self.joined(document.word), words) for document in documents]
        if not any(inner):
            self.commands.append(self.measured([*self.launcher, *words]))
        return None

    def inner(self, text: str, launcher: list[str]) -> bool:
        """Follow a text within a command if it is a script that starts a program of Python."""
        if ".py" not in text or "--" not in text:
            return False
        try:
            parsed(text)
        except DseError:
            return False
        with self.within(launcher):
            self.follow(text)
        return True

    def sourced(self, words: list[str], documents: Sequence[Document]) -> bool | None:
        """Follow a file that the script reads."""
        path = self.found(words[0]) if words else None
        if path:
            with self.within(arguments=words[1:] or self.arguments, path=path):
                self.follow(launch_text(path))
        elif words:
            self.missing.append(words[0])
        return None

    def found(self, name: str) -> Path | None:
        """A file that the script names: there, beside the script, or below a folder above it.

        What is not known of a path, and what of it is of another machine, is left out.
        """
        if self.path is None:
            return None
        tail = name if "$" not in name else name[name.rindex("$") :].partition("/")[2]
        parts = [part for part in tail.split("/") if part != "."]
        tails = [tail, *("/".join(parts[place:]) for place in range(1, len(parts)))]
        folders = [*([Path(self.folder)] if self.folder else []), *list(self.path.parents)[:MOST_PARENTS]]
        for end, folder in product(tails if tail.startswith("/") else [tail], folders):
            try:
                if end and (folder / end).is_file():
                    return folder / end
            except OSError:
                return None
        return None

    @contextmanager
    def within(
        self, launcher: Sequence[str] = (), arguments: list[str] | None = None, path: Path | None = None
    ) -> Iterator[None]:
        """Follow what stands in another command, file or function."""
        before = self.launcher, self.arguments, self.path, self.folder
        self.launcher = [*self.launcher, *launcher]
        self.arguments = self.arguments if arguments is None else arguments
        self.path = path or self.path
        try:
            yield
        finally:
            self.launcher, self.arguments, self.path, self.folder = before

    def gone(self, words: list[str], documents: Sequence[Document]) -> bool | None:
        """Go to another folder."""
        where = words[-1] if words else "~"
        if "$" not in where:
            self.folder = posixpath.normpath(posixpath.join(self.folder or self.here, where))
        return True

    @property
    def here(self) -> str:
        """Folder of the script."""
        return str(self.path.parent) if self.path else "."

    def set_arguments(self, words: list[str], documents: Sequence[Document]) -> bool | None:
        """Replace the arguments of the script, as `set --` does."""
        if words[:1] == ["--"]:
            self.arguments = words[1:]
        return True

    def shifted(self, words: list[str], documents: Sequence[Document]) -> bool | None:
        """Drop the first argument, or as many as asked for."""
        self.arguments = (
            self.arguments and self.arguments[int(words[0]) if words and is_number(words[0]) else 1 :]
        )
        return True

    def forgotten(self, words: list[str], documents: Sequence[Document]) -> bool | None:
        """Drop variables."""
        for name in words:
            self.variables.pop(name, None)
        return True

    def taken_in(self, words: list[str], documents: Sequence[Document]) -> bool | None:
        """Assign a here-document to the variable that reads it."""
        for document in documents:
            self.variables[words[-1] if words else "REPLY"] = self.measured([self.joined(document.word)])
        return None

    def evaluated(self, words: list[str], documents: Sequence[Document]) -> bool | None:
        """Follow words as a command."""
        with self.within():
            self.follow(" ".join(words))
        return None

    # Conditions

    def test(self, words: Sequence[Word]) -> bool | None:
        """Whether a condition holds, or an arithmetic expression is not 0."""
        if len(words) == 1 and plain(words[0]).startswith("(("):
            text = plain(words[0])[2:-2]
            if change := _CHANGED.fullmatch(text):
                name, sign, other = change.groups()
                text = other if sign == "=" else f"{name} {sign[0]} ({other or 1})"
            value = self.arithmetic(text)
            if change and value is not None:
                self.variables[change[1]] = [str(value)]
            return None if value is None else value != 0
        found = self.known(words)
        return holds(found[:-1] if found[-1:] == ["]"] else found)

    def known(self, words: Sequence[Word]) -> list[str | None]:
        """Words of a condition: what the caller would fill in is empty, what a program would is None."""
        before, self.strict = self.strict, True
        texts = [self.joined(word) for word in words]
        self.strict = before
        return [None if "$(" in text else _KEPT.sub("", text) for text in texts]

    # Words

    def assigned(self, word: Word | ArrayWord) -> bool:
        """Take up a word if it is an assignment."""
        if isinstance(word, ArrayWord):
            pairs = [re.fullmatch(r"\[([^]]+)\]=(.*)", self.joined(one), re.DOTALL) for one in word.words]
            if pairs and all(pairs):
                self.tables.setdefault(word.name, {}).update({own[1]: own[2] for own in pairs if own})
                return True
            items = [item for one in word.words for item in self.expanded(one)]
            held = self.variables.get(word.name, []) if word.append else []
            self.variables[word.name] = self.measured([*held, *items])
            return True
        found = _ASSIGNED.fullmatch(word[0].text) if word and word[0] == WordPart(word[0].text) else None
        if not found:
            return False
        name, index, append, first = found.groups()
        value = self.joined((WordPart(first), *word[1:]))
        if index is not None and not is_number(index):
            self.tables.setdefault(name, {})[index] = self.measured([value])[0]
            return True
        held, place = self.variables.get(name, []), int(index or 0)
        before = held[place] if append and place < len(held) else ""
        if index and place <= len(held):
            self.variables[name] = [*held[:place], *self.measured([before + value]), *held[place + 1 :]]
        else:
            self.variables[name] = self.measured([before + value])
        return True

    def measured(self, words: list[str]) -> list[str]:
        """Words of a script, unless there are too many."""
        self.size += sum(map(len, words)) + len(words)
        if self.size > LONGEST:
            raise DseError("variables of the script grow without bound")
        return words

    def joined(self, word: Word) -> str:
        """A word as one text, with its variables written out."""
        texts = [" ".join(self.value(part.text)) if part.expands else part.text for part in word]
        return self.measured(["".join(texts)])[0]

    def expanded(self, word: Word) -> list[str]:
        """A word with its variables written out: several where one holds several or, unquoted, has blanks."""
        found = [""]
        for part in word:
            values = self.value(part.text) if part.expands else [part.text]
            if part.expands and not part.quoted:
                text = " ".join(values)
                values = text.split()
                found += [""] * (text[:1].isspace() and found[-1] != "")
            elif part.expands and not re.search(r"(\[@\]\}|^\$@|^\$\{@\})$", part.text):
                values = [" ".join(values)]
            found[-1] += values[0] if values else ""
            found += self.measured(values[1:])
        quoted = any(part.quoted and not (part.expands and "@" in part.text) for part in word)
        return [one for one in found if one] or ([""] if quoted else [])

    def value(self, written: str) -> list[str]:
        """What `$NAME`, `$(command)` and their kin stand for; what is not known stays as it is."""
        if written.startswith("$((") and written.endswith("))"):
            number = self.arithmetic(written[3:-2])
            return ["".join(written.split()) if number is None else str(number)]
        if written[0] == "`" or written.startswith("$("):
            inner = written[1:-1].replace("\\`", "`") if written[0] == "`" else written[2:-1]
            text = self.output(inner)
            return [f"$({(inner.split() or [''])[0]})" if text is None else text]
        found = _PARAMETER.fullmatch(written[2:-1] if written.startswith("${") else written[1:])
        if not found:
            return [written]
        mark, name, index, rest = found.groups()
        held = self.held(name, index)
        if mark == "#":
            return [str(len(held or []) if index in ("@", "*") else len("".join(held or [])))]
        if mark == "!":
            if index is not None:
                return list(self.tables.get(name, {}))
            held = self.held(held[0], None) if held else None
        kept = [] if self.strict else [written if not rest else f"${name}"]
        usual = re.fullmatch(r"(:?)([-=+?])(.*)", rest, re.DOTALL)
        if not usual:
            return kept if held is None else [changed(own, rest, self.filled) for own in held]
        there = held is not None and not (usual[1] and "".join(held) == "")
        if usual[2] == "+":
            return [self.filled(usual[3])] if there else []
        if there or usual[2] == "?":
            return held if there and held is not None else kept
        text = self.filled(usual[3])
        if usual[2] == "=":
            self.variables[name] = [text]
        return [text]

    def held(self, name: str, index: str | None) -> list[str] | None:
        """What a variable holds, all of it or one item; None if nothing is known of it."""
        if name in ("@", "*"):
            return self.arguments or []
        if name == "#":
            return [str(len(self.arguments or []))]
        if name == "?":
            return ["0"]
        if is_number(name) and name != "0":
            given = self.arguments is not None and int(name) <= len(self.arguments)
            return [self.arguments[int(name) - 1]] if given and self.arguments else None
        if name in ("0", "BASH_SOURCE"):
            return [str(self.path)] if self.path else None
        if name == "PWD":
            return [self.folder or "."]
        key = None if index is None else self.filled(index)
        if name in self.tables:
            table = self.tables[name]
            return [*table.values()] if key in ("@", "*") else [table[key]] if key in table else None
        found = self.variables.get(name)
        if found is None or key in ("@", "*"):
            return found
        place = int(key) if key and is_number(key) else 0
        return found[place : place + 1] or ([""] if not found else None)

    def filled(self, text: str) -> str:
        """A text within braces with its variables written out, and its quotes taken off."""
        return self.joined(whole_word(text))

    def arithmetic(self, text: str) -> int | None:
        """Whole-number arithmetic, where all of its names are known."""
        filled = self.joined(quoted_word(text))
        try:
            return whole_arithmetic(re.sub(r"[A-Za-z_]\w*", self._number, filled))
        except (ValueError, ZeroDivisionError):
            return None

    def _number(self, name: re.Match[str]) -> str:
        held = self.held(name[0], None)
        return f"({held[0]})" if held else "0" if self.strict else name[0]

    def output(self, text: str) -> str | None:
        """What a substituted command prints, where nothing but `echo`, `dirname` and their like does."""
        printed: list[str] = []
        with self.within():
            for step in [step for chain in parsed(text) for step in chain]:
                [command, *others] = step.commands
                if others or not isinstance(command, Simple):
                    return None
                words = [
                    item for own in command.words if isinstance(own, tuple) for item in self.expanded(own)
                ]
                if words[:1] == ["cd"]:
                    self.gone(words[1:], ())
                    continue
                if words[:1] == ["cat"] and command.documents:
                    words = ["echo", *(self.joined(document.word) for document in command.documents)]
                line = (self.folder or ".") if words == ["pwd"] else line_of(words)
                if line is None:
                    return None
                printed.append(line)
        return self.measured(["\n".join(printed).rstrip("\n")])[0]


Does = Callable[[Script, list[str], Sequence[Document]], bool | None]

#: Variables of Slurm -> by the option that sets them.
SLURM_VARIABLES: Final = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--ntasks": ("SLURM_NTASKS",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}
_SHORT: Final = {"-N": "--nodes", "-n": "--ntasks"}
#: Folders above that of the script in which files are looked for. [-]
MOST_PARENTS: Final = 6
#: Programs that start the script that they name.
_STARTING: Final = ("bash", "sh", "zsh", "sbatch", "srun", "salloc", "qsub", "exec", "nohup", "time", "env",
                    "mpirun", "mpiexec", "docker", "ssh", "sudo", "timeout")  # fmt: skip

#: What the shell itself does -> how.
BUILT_IN: Final[dict[str, Does]] = {
    **dict.fromkeys(
        (*_DECLARING, "echo", "printf", ":", "true", "exit", "return", "trap", "ulimit", "break", "continue",
         "mkdir", "pip", "module"), lambda script, words, documents: True,
    ),
    "false": lambda script, words, documents: False,
    **dict.fromkeys((".", "source"), Script.sourced),
    **dict.fromkeys(("cd", "pushd"), Script.gone),
    "set": Script.set_arguments,
    "shift": Script.shifted,
    "unset": Script.forgotten,
    "read": Script.taken_in,
    "eval": Script.evaluated,
}  # fmt: skip


def slurm_options(text: str) -> dict[str, str]:
    """Options of the `#SBATCH` lines of a script, by their long names.

    >>> slurm_options("#SBATCH -N 4 --exclusive --gres=gpu:8\\n")
    {'--nodes': '4', '--exclusive': '', '--gres': 'gpu:8'}
    """
    found: dict[str, str] = {}
    for line in re.findall(r"^[ \t]*#SBATCH[ \t]+(.*)$", text, re.MULTILINE):
        words, place = line.split("#")[0].split(), 0
        while place < len(words):
            name, equals, value = words[place].partition("=")
            place += 1
            if not equals and place < len(words) and not words[place].startswith("-"):
                value, place = words[place], place + 1
            if name.startswith("-"):
                found.setdefault(_SHORT.get(name, name), value)
    return found
