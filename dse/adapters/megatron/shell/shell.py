"""Shell scripts followed without running them: the commands that they would start, variables written out.

The script is read as Bash would run it without arguments in an empty environment. Nothing is executed: of
programs, only the output of `echo`, `dirname` and a few others is known. A condition that depends on another
program, a file or the machine is taken to hold; `Script.asked` lists these conditions, and a reader that
gives `answers` follows the other branches. Loops, `case`, functions and here-documents are not followed: a variable
that they set is unknown from there on (`$(for:12)`), and a script that starts its training in one of them is
refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.errors import DseError
from dse.adapters.megatron.shell.tree import parsed, text_of
from dse.adapters.megatron.shell.values import holds, is_number, slurm_options, slurm_variables
from dse.adapters.megatron.shell.words import Words
from dse.launches.launch import launch_text

if TYPE_CHECKING:
    from tree_sitter import Node

#: Folders above that of the script in which files are looked for. [-]
MOST_PARENTS: Final = 6

_SCRIPT: Final = (".sh", ".bash", ".slurm", ".sbatch", ".env")
_SHELLS: Final = ("bash", "sh", "zsh")
#: Programs that start the script that they name.
_STARTING: Final = (*_SHELLS, "sbatch", "srun", "salloc", "qsub", "exec", "nohup", "time", "env",
                    "mpirun", "mpiexec", "docker", "ssh", "sudo", "timeout")  # fmt: skip
#: The end of a line that does not continue on the next one.
_NEW_LINE: Final = re.compile(rb"(?<!\\)\n")
#: Commands that succeed and decide nothing here.
_PASSED: Final = ("echo", "printf", ":", "true", "trap", "ulimit", "mkdir", "pip", "module")
#: Text of a statement that may start a training, and variables that a statement sets.
_STARTS: Final = re.compile(r"\.(py|sh|bash|slurm|sbatch|env)\b|\b(eval|source|python3?|torchrun)\b")
_SETS: Final = re.compile(
    r"\b([A-Za-z_]\w*)(?:\[[^]]*\])?(?:(?:[-+%]|\*\*?|/)?=(?!=)|\s=\s|\+\+|--)"
    r"|(?:\b(?:read|mapfile|readarray|for|let)\s|\+\+|--)\s*(?:-\w+\s+)*([A-Za-z_]\w*)"
)


class Jump(Exception):
    """`exit` or `return` of a script."""

    @classmethod
    @contextmanager
    def stopping(cls, *words: str) -> Iterator[None]:
        """Run statements up to one of these jumps."""
        try:
            yield
        except Jump as jump:
            if jump.args[0] not in words:
                raise


def _jump(word: str, *_: Any) -> bool:
    raise Jump(word)


@dataclass
class Script(Words):
    """A script as far as it has been followed."""

    functions: dict[str, Node] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)  #: variables that the programs it starts see; "*": all
    commands: list[list[str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  #: files that it reads and that do not exist
    launcher: list[str] = field(default_factory=list)  #: words before a command within another
    answers: Mapping[int, int] = field(default_factory=dict)  #: ordinal of a condition -> branch to take
    asked: list[tuple[str, int]] = field(default_factory=list)  #: undecided conditions, branches of each

    @classmethod
    def read(
        cls,
        text: str,
        path: Path | None = None,
        variables: Mapping[str, list[str]] | None = None,
        arguments: list[str] | None = None,
        answers: Mapping[int, int] | None = None,
    ) -> Script:
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
            with Jump.stopping("exit", "return"):
                script.follow(text)
        except RecursionError:
            raise DseError("variables of the script are nested without bound") from None
        return script

    def follow(self, text: str) -> None:
        """Follow a text: a script, a file that it reads, or a command within a command."""
        self.measured([text])
        for name, value in slurm_options(text).items():
            self.slurm.setdefault(name, value)
        for name, value in slurm_variables(self.slurm).items():
            self.variables.setdefault(name, [value])
            self.exported.add(name)
        self.run(parsed(text).children)

    # Statements; each returns whether it succeeds, None where that is unknown

    def run(self, nodes: Iterable[Node]) -> bool | None:
        """Follow statements in turn, and pass over the words and comments between them."""
        status: bool | None = True
        for node in nodes:
            if node.type in STATEMENTS:
                self.measured([""])
                status = STATEMENTS[node.type](self, node)
        return status

    def block(self, node: Node) -> bool | None:
        """Statements between brackets; or an arithmetic command."""
        if node.children and node.children[0].type == "((":
            return self.calculated(self.text(node)[2:-2])
        return self.run(node.children)

    def apart(self, node: Node) -> bool | None:
        """Statements of a subshell, whose variables end with it."""
        with Jump.stopping("exit"):
            return self.within(variables={**self.variables}).run(node.children)
        return None

    def chain(self, node: Node) -> bool | None:
        """Two statements with `&&` or `||` between them."""
        left, joint, right = (child for child in node.children if child.type != "comment")
        status = self.run([left])
        if self.leaves(right):
            return status
        succeeds = self.branch(left, 2) == 0 if status is None else status
        return self.run([right]) if succeeds == (joint.type == "&&") else status

    def branch(self, node: Node, branches: int) -> int:
        """The branch to take behind an undecided condition; 0 where it holds."""
        self.asked.append((" ".join(text_of(node).split()), branches))
        return self.answers.get(len(self.asked) - 1, 0)

    def redirected(self, node: Node) -> bool | None:
        """A statement with its input and output, which are passed over."""
        body, *others = node.children
        for own in others:
            if own.type.startswith("here") and "--" in text_of(own):
                self.skipped(own, "here-document")
        status = self.run([body])
        for own in others:
            self.run(own.children)
        return status

    def skipped(self, node: Node, kind: str) -> None:
        """Pass over statements that are not followed: variables that they set are unknown from here on.

        Raises `DseError` if they may start the training.
        """
        text, line = text_of(node), node.start_point[0] + 1
        if _STARTS.search(text):
            raise DseError(f"line {line}: `{kind}` may start the training, and is not followed")
        self.forget(text, f"{kind}:{line}")

    def forget(self, text: str, kind: str = "arithmetic") -> None:
        """Make the variables unknown that a text sets."""
        self.variables |= {own[1] or own[2]: [f"$({kind})"] for own in _SETS.finditer(text)}

    def leaves(self, node: Node) -> bool:
        """Whether a statement leaves the script with an error."""
        if node.type == "compound_statement":
            return any(map(self.leaves, node.children))
        words = text_of(node).split() if node.type == "command" else []
        if words[:1] in (["exit"], ["return"]):
            return words[1:] != ["0"]
        return bool(words) and words[0] in self.functions and self.leaves(self.functions[words[0]])

    def branches(self, node: Node) -> None:
        """Follow the branch whose condition holds; of undecided conditions that of `answers`."""
        clauses = ("elif_clause", "else_clause")
        arms = [node, *(child for child in node.children if child.type in clauses)]
        undecided, answer = 0, -1
        for arm in arms:
            parts = [child for child in arm.children if child.type not in clauses]
            then = next((place for place, part in enumerate(parts) if part.type == "then"), 0)
            status = self.run(parts[:then])
            if status is False or any(map(self.leaves, parts[then:])):
                continue
            if status is None:
                if answer < 0:
                    answer = self.branch(parts[1], len(arms) + (arms[-1].type != "else_clause"))
                undecided += 1
                if undecided <= answer:
                    continue
            self.run(parts[then:])
            break

    def loop(self, node: Node) -> None:
        """Pass over a loop that has a turn, or `case`."""
        condition = node.children_by_field_name("condition")
        if node.type == "while_statement" and self.run(condition) is (node.children[0].type == "until"):
            return
        values = self.known(node.children_by_field_name("value")) if node.type == "for_statement" else []
        if not values or any(value != "" for value in values):
            self.skipped(node, text_of(node).split()[0])

    def defined(self, node: Node) -> None:
        """Keep the body of a function."""
        [name], [body] = (node.children_by_field_name(own) for own in ("name", "body"))
        self.functions[text_of(name)] = body

    # Commands

    def command(self, node: Node) -> bool | None:
        """Follow a command of the shell itself, or the start of a program."""
        parts = [own for own in node.children if own.type != "comment"]
        given = [own for own in parts if own.type == "variable_assignment"]
        arguments = [own for own in parts if own not in given and not own.type.endswith("_redirect")]
        source, start = node.text or b"", node.start_byte
        gaps = [source[one.end_byte - start : two.start_byte - start] for one, two in pairwise(parts)]
        # The grammar takes a line of several assignments for the start of the command on a later line.
        whole = max((n + 1 for n, gap in enumerate(gaps[: len(given)]) if _NEW_LINE.search(gap)), default=0)
        self.run(given[:whole])
        given = given[whole:]
        words = [word for own in arguments for word in self.expanded(own)]
        if words and words[0] in self.functions:
            self.skipped(self.functions[words[0]], "function")
            return None
        if words[:1] == ["test"]:
            return holds(self.known(arguments[1:]))
        if not words or words[0] in _PASSED:
            return True
        own = self
        if given:  # for this command alone
            own = self.within(variables={**self.variables})
            own.exported = self.exported | {own.assigned(child) for child in given}
        if words[0] in BUILT_IN:
            return BUILT_IN[words[0]](own, words[1:])
        own.started(words)
        return None

    def started(self, words: list[str]) -> None:
        """Keep a command that starts a program; follow the script or the text that it starts."""
        program = posixpath.basename(words[0])
        shell = any(posixpath.basename(word) in _SHELLS for word in words)
        for place, word in enumerate(words):
            if word.endswith(".py"):
                break
            path = self.found(word) if word.endswith(_SCRIPT) else None
            if path and (place == 0 or program in _STARTING):
                if program in ("sbatch", "salloc"):
                    self.slurm.update(slurm_options(f"#SBATCH {' '.join(words[1:place])}"))
                return self.child(words[:place], launch_text(path), arguments=words[place + 1 :], path=path)
            text = re.sub(r"^--?[\w-]+=", "", word)
            command = shell and re.fullmatch(r"-\w*c", words[place - 1])
            if (command or (" " in word and ".py" in text and "--" in text)) and self.is_script(text):
                return self.child(words[:place], text)
        self.commands.append(self.measured([*self.launcher, *words]))
        return None

    def child(self, launcher: Sequence[str], text: str, **changes: Any) -> None:
        """Follow a script that another process runs: it has the variables that are exported."""
        seen = {n: v for n, v in self.variables.items() if n in self.exported or "*" in self.exported}
        with Jump.stopping("exit", "return"):
            self.within(launcher, variables=seen, exported={*seen}, **changes).follow(text)

    def is_script(self, text: str) -> bool:
        """Whether a text parses; a text that does not parse takes long and counts ten times."""
        try:
            parsed(text)
        except DseError:
            self.measured([text] * 10)
            return False
        return True

    def sourced(self, words: list[str]) -> bool:
        """Follow a file that the script reads."""
        path = self.found(words[0]) if words else None
        if path:
            with Jump.stopping("return"):
                self.within(arguments=words[1:] or self.arguments, path=path).follow(launch_text(path))
        elif words:
            self.missing.append(words[0])
        return True

    def found(self, name: str) -> Path | None:
        """A file that the script names: beside the script, or below a folder above it.

        The unknown part of a path, and the folders of another machine, are left out.
        """
        if self.path is None:
            return None
        tail = name if "$" not in name else name[name.rindex("$") :].partition("/")[2]
        parts = [part for part in tail.split("/") if part != "."]
        tails = [tail, *("/".join(parts[place:]) for place in range(1, len(parts)))]
        folders = [*([Path(self.folder)] if self.folder else []), *list(self.path.parents)[:MOST_PARENTS]]
        for end, folder in product(tails if tail.startswith("/") else [tail], folders):
            if end and isfile(folder / end):
                return folder / end
        return None

    def within(self, launcher: Sequence[str] = (), **changes: Any) -> Script:
        """This script, to follow a text of another command or file."""
        return replace(self, launcher=[*self.launcher, *launcher], **changes)

    def given(self, words: list[str]) -> None:
        """Replace the arguments of the script (`set --`); export all variables (`set -a`)."""
        self.arguments = words[1:] if words[:1] == ["--"] else self.arguments
        self.exported |= {"*"} if {"-a", "allexport"} & {*words} else set()

    def shifted(self, words: list[str]) -> None:
        """Drop the first argument, or several."""
        self.arguments = (self.arguments or [])[int(words[0]) if words and is_number(words[0]) else 1 :]

    def declared(self, node: Node) -> None:
        """Follow `export`, `declare` and their like."""
        self.run(node.children)
        names = {text_of(own.child_by_field_name("name") or own) for own in node.children}
        if "-i" in names:
            raise DseError(f"line {node.start_point[0] + 1}: variables of declare -i are not followed")
        self.exported |= names if names & {"export", "-x"} else set()

    def set(self, node: Node) -> bool:
        """Make an assignment."""
        if self.assigned(node) == "IFS":
            raise DseError(f"line {node.start_point[0] + 1}: words that IFS separates are not followed")
        return True

    # Conditions

    def test(self, node: Node) -> bool | None:
        """Whether a condition between `[` or `[[` and its end holds."""
        return holds(self.known(list(_operands(node))[1:-1]))

    def calculated(self, text: str) -> bool | None:
        """Whether an arithmetic command is not 0; variables that it sets are unknown."""
        if re.search(r"(?<![=!<>])=(?!=)|\+\+|--", text):
            self.forget("".join(text.split()))
            return None
        value = replace(self, strict=True).arithmetic(text)
        return None if value is None else value != 0


def _operands(node: Node) -> Iterator[Node]:
    """Words and operators of a condition in turn."""
    for child in node.children:
        if child.type.endswith("ary_expression") or child.type == "parenthesized_expression":
            yield from _operands(child)
        else:
            yield child


#: Kinds of statements -> what they do; words and comments stand between them.
STATEMENTS: Final[dict[str, Callable[[Script, Node], bool | None]]] = {
    **dict.fromkeys(("compound_statement", "variable_assignments"), Script.block),
    **dict.fromkeys(("for_statement", "while_statement", "c_style_for_statement", "case_statement"), Script.loop),
    "declaration_command": Script.declared,
    "subshell": Script.apart,
    "list": Script.chain,
    "pipeline": lambda script, node: (script.apart(node), None)[1],
    "negated_command": lambda script, node: {True: False, False: True, None: None}[script.run(node.children)],
    "redirected_statement": Script.redirected,
    "command": Script.command,
    "test_command": Script.test,
    "variable_assignment": Script.set,
    "unset_command": lambda script, node: [script.variables.pop(text_of(own), "") for own in node.children] != [],
    "if_statement": Script.branches,
    "function_definition": Script.defined,
}

#: Commands of the shell itself -> what they do.
BUILT_IN: Final[dict[str, Callable[[Script, list[str]], bool | None]]] = {
    "false": lambda script, words: False,
    "exit": partial(_jump, "exit"),
    "return": partial(_jump, "return"),
    **dict.fromkeys((".", "source"), Script.sourced),
    **dict.fromkeys(("cd", "pushd"), Script.gone),
    **dict.fromkeys(("read", "mapfile", "readarray", "let"),
                    lambda script, words: script.forget(" ".join(f"let {word}" for word in words), "read")),
    "shift": Script.shifted,
    "getopts": lambda script, words: None if script.arguments else False,
    "set": Script.given,
    "eval": lambda own, words: own.follow(" ".join(words)) if own.is_script(" ".join(words)) else None,
}  # fmt: skip
