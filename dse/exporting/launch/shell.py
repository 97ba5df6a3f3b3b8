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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from costmodel.errors import DseError
from dse.exporting.launch.launch import LONGEST, launch_text
from dse.exporting.launch.shell_tree import parsed, text_of
from dse.exporting.launch.shell_values import (
    SLURM_VARIABLES,
    changed,
    holds,
    is_number,
    line_of,
    slurm_options,
    whole_arithmetic,
)

if TYPE_CHECKING:
    from tree_sitter import Node

#: Most turns of a loop whose condition holds. [-]
MOST_TURNS: Final = 1000
#: Folders above that of the script in which files are looked for. [-]
MOST_PARENTS: Final = 6

_CHANGED: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(=(?!=)|[-+*]=|\+\+|--)(.*)", re.DOTALL)
_KEPT: Final = re.compile(r"\$(\{\w+\}|\w+)")
_SCRIPT: Final = (".sh", ".bash", ".slurm", ".sbatch", ".env")
_EXPANDING: Final = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
#: Programs that start the script that they name.
_STARTING: Final = ("bash", "sh", "zsh", "sbatch", "srun", "salloc", "qsub", "exec", "nohup", "time", "env",
                    "mpirun", "mpiexec", "docker", "ssh", "sudo", "timeout")  # fmt: skip
#: Commands of the shell that succeed and matter no further here.
_PASSED: Final = ("echo", "printf", ":", "true", "exit", "return", "trap", "ulimit", "break", "continue",
                  "mkdir", "pip", "module")  # fmt: skip


class WordPart(NamedTuple):
    """Part of a word: what it stands for."""

    values: list[str]
    quoted: bool = False
    expands: bool = False
    each: bool = False  #: its values are words of their own in quotes too, as of "$@"


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
    documents: list[str] = field(default_factory=list)  #: texts that the next command reads
    strict: bool = False  #: whether what is not known is empty, as in conditions
    sizes: list[int] = field(default_factory=lambda: [0])  #: characters so far [-]

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
        self.run(parsed(text).children)

    # Statements; each says whether it succeeds, None where nothing here knows

    def run(self, nodes: Iterable[Node]) -> bool | None:
        """Take up statements in turn, and pass over the words and comments between them."""
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

    def chain(self, node: Node) -> bool | None:
        """Two statements with `&&` or `||` between them."""
        left, joint, right = (child for child in node.children if child.type != "comment")
        status = self.run([left])
        if status is (joint.type == "||") or self.leaves(right):
            return status
        return self.run([right])

    def redirected(self, node: Node) -> bool | None:
        """A statement with what it reads; where it writes is passed over."""
        body, *others = node.children
        self.documents = [document for own in others for document in self.read_by(own)]
        status = self.run([body])
        self.documents = []
        for own in others:
            self.run(own.children)
        return status

    def read_by(self, node: Node) -> list[str]:
        """Text behind `<<WORD` or `<<<`."""
        if node.type == "herestring_redirect":
            return [self.text(node.children[-1])]
        kinds = {child.type: child for child in node.children}
        if "heredoc_body" not in kinds:
            return []
        body = kinds["heredoc_body"]
        raw = re.search(r"['\"\\]", text_of(kinds["heredoc_start"]))
        return [text_of(body) if raw else self.text(body, quoted=True)]

    def leaves(self, node: Node) -> bool:
        """Whether a statement leaves the script with an error."""
        if node.type == "compound_statement":
            return any(map(self.leaves, node.children))
        words = text_of(node).split() if node.type == "command" else []
        if words[:1] in (["exit"], ["return"]):
            return words[1:] != ["0"]
        return bool(words) and words[0] in self.functions and self.leaves(self.functions[words[0]])

    def branches(self, node: Node) -> None:
        """Take up the branch whose condition holds, and all before it that may."""
        clauses = ("elif_clause", "else_clause")
        for arm in [node, *(child for child in node.children if child.type in clauses)]:
            parts = [child for child in arm.children if child.type not in clauses]
            then = next((place for place, part in enumerate(parts) if part.type == "then"), 0)
            status = self.run(parts[:then])
            if status is not False and not any(map(self.leaves, parts[then:])):
                self.run(parts[then:])
                if status:
                    break

    def choice(self, node: Node) -> None:
        """Take up the branch of the first pattern that a word fits; all of them where it is not known."""
        [value] = self.known(node.children_by_field_name("value")[:1])
        for item in node.children:
            patterns = item.children_by_field_name("value") if item.type == "case_item" else []
            fits = value is None or any(fnmatchcase(value, self.text(own)) for own in patterns)
            if patterns and fits:
                if not any(map(self.leaves, item.children)):
                    self.run(item.children)
                if value is not None:
                    break

    def words_loop(self, node: Node) -> None:
        """Take up a loop for each of its words."""
        name = text_of(node.children_by_field_name("variable")[0])
        for value in [item for own in node.children_by_field_name("value") for item in self.expanded(own)]:
            self.variables[name] = [value]
            self.run(node.children_by_field_name("body"))

    def condition_loop(self, node: Node) -> None:
        """Take up a loop as long as its condition is known to hold."""
        for _ in range(MOST_TURNS):
            status = self.run(node.children_by_field_name("condition"))
            if status is (node.children[0].type == "until"):
                break
            self.run(node.children_by_field_name("body"))
            if status is None:
                break

    def defined(self, node: Node) -> None:
        """Keep the body of a function."""
        [name], [body] = (node.children_by_field_name(own) for own in ("name", "body"))
        self.functions[text_of(name)] = body

    # Commands

    def command(self, node: Node) -> bool | None:
        """Take up a command: its assignments, what the shell itself does, or the start of a program."""
        documents, self.documents = self.documents, []
        arguments: list[Node] = []
        for child in node.children:
            if child.type == "variable_assignment":
                self.assigned(child)
            elif child.type.endswith("_redirect"):
                documents += self.read_by(child)
            else:
                arguments.append(child)
        words = [word for own in arguments for word in self.expanded(own)]
        if words[:1] == ["test"]:
            return holds(self.known(arguments[1:]))
        if not words or words[0] in _PASSED:
            return True
        if words[0] in BUILT_IN:
            return BUILT_IN[words[0]](self, words[1:])
        if words[0] == "read":
            self.variables[words[-1]] = self.measured(documents[:1] or [""])
        elif words[0] in self.functions:
            return self.within(arguments=words[1:]).run([self.functions[words[0]]])
        else:
            self.started(words, documents)
        return None

    def started(self, words: list[str], documents: Sequence[str]) -> None:
        """Keep a command that starts a program; follow the script or the text that it starts."""
        for place, word in enumerate(words):
            if word.endswith(".py"):
                break
            path = self.found(word) if word.endswith(_SCRIPT) else None
            if path and (place == 0 or posixpath.basename(words[0]) in _STARTING):
                own = self.within(words[:place], arguments=words[place + 1 :], path=path)
                return own.follow(launch_text(path))
            if " " in word and self.inner(re.sub(r"^--?[\w-]+=", "", word), words[:place]):
                return None
        if not [own for own in documents if self.inner(own, words)]:
            self.commands.append(self.measured([*self.launcher, *words]))
        return None

    def inner(self, text: str, launcher: list[str]) -> bool:
        """Follow a text within a command if it is a script that starts a program of Python."""
        starts = ".py" in text and "--" in text and self.is_script(text)
        if starts:
            self.within(launcher).follow(text)
        return starts

    def is_script(self, text: str) -> bool:
        """Whether a text parses; what does not takes long, and counts ten times."""
        try:
            parsed(text)
        except DseError:
            self.measured([text] * 10)
            return False
        return True

    def sourced(self, words: list[str]) -> None:
        """Follow a file that the script reads."""
        path = self.found(words[0]) if words else None
        if path:
            self.within(arguments=words[1:] or self.arguments, path=path).follow(launch_text(path))
        elif words:
            self.missing.append(words[0])

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

    def within(self, launcher: Sequence[str] = (), **changes: Any) -> Script:
        """This script, to follow what stands in another command, file or function."""
        return replace(self, launcher=[*self.launcher, *launcher], **changes)

    def gone(self, words: list[str]) -> bool:
        """Go to another folder."""
        where = words[-1] if words else "~"
        if "$" not in where:
            here = self.folder or (str(self.path.parent) if self.path else ".")
            self.folder = posixpath.normpath(posixpath.join(here, where))
        return True

    def given(self, words: list[str]) -> None:
        """Replace the arguments of the script, as `set --` does."""
        self.arguments = words[1:] if words[:1] == ["--"] else self.arguments

    def shifted(self, words: list[str]) -> None:
        """Drop the first argument, or as many as asked for."""
        number = int(words[0]) if words and is_number(words[0]) else 1
        self.arguments = (self.arguments or [])[number:]

    def forgotten(self, node: Node) -> None:
        """Drop variables."""
        for child in node.children:
            self.variables.pop(text_of(child), None)

    def evaluated(self, words: list[str]) -> None:
        """Follow words as a command."""
        if self.is_script(" ".join(words)):
            self.follow(" ".join(words))

    # Conditions

    def test(self, node: Node) -> bool | None:
        """Whether a condition between `[` or `[[` and its end holds."""
        return holds(self.known(list(_operands(node))[1:-1]))

    def known(self, nodes: Sequence[Node]) -> list[str | None]:
        """Words of a condition: what the caller would fill in is empty, what a program would is None."""
        before, self.strict = self.strict, True
        texts = [self.text(node) for node in nodes]
        self.strict = before
        return [None if "$(" in text else _KEPT.sub("", text) for text in texts]

    def calculated(self, text: str) -> bool | None:
        """Whether an arithmetic command, or an assignment by one, is not 0."""
        if change := _CHANGED.fullmatch(text):
            name, sign, other = change.groups()
            text = other if sign == "=" else f"{name} {sign[0]} ({other or 1})"
        value = self.arithmetic(text)
        if change and value is not None:
            self.variables[change[1]] = [str(value)]
        return None if value is None else value != 0

    def arithmetic(self, text: str) -> int | None:
        """Whole-number arithmetic, where all of its names are known."""
        try:
            return whole_arithmetic(re.sub(r"[A-Za-z_]\w*", self._number, text))
        except (ValueError, ZeroDivisionError):
            return None

    def _number(self, name: re.Match[str]) -> str:
        held = self.held(name[0], None)
        return f"({held[0]})" if held else "0" if self.strict else name[0]

    # Words

    def assigned(self, node: Node) -> None:
        """Take up an assignment."""
        target, sign, *values = node.children
        index = target.child_by_field_name("index")
        name = text_of(target.child_by_field_name("name") or target)
        held = self.variables.get(name, [])
        if values and values[0].type == "array":
            words = [child for child in values[0].children if child.type not in ("(", ")", "comment")]
            pairs = [re.fullmatch(r"\[([^]]+)\]=(.*)", self.text(own), re.DOTALL) for own in words]
            if pairs and all(pairs):
                self.tables.setdefault(name, {}).update({own[1]: own[2] for own in pairs if own})
                return
            items = [item for own in words for item in self.expanded(own)]
            self.variables[name] = self.measured([*(held if sign.type == "+=" else []), *items])
            return
        value = self.text(values[0]) if values else ""
        key = "0" if index is None else self.text(index)
        if not is_number(key):
            self.tables.setdefault(name, {})[key] = value
            return
        place = min(int(key), len(held))
        before = "".join(held[place : place + 1]) if sign.type == "+=" else ""
        kept = (held[:place], held[place + 1 :]) if index is not None else ([], [])
        self.variables[name] = [*kept[0], *self.measured([before + value]), *kept[1]]

    def measured(self, words: list[str]) -> list[str]:
        """Words of a script, unless there are too many."""
        self.sizes[0] += sum(map(len, words)) + len(words)
        if self.sizes[0] > LONGEST:
            raise DseError("variables of the script grow without bound")
        return words

    def pieces(self, node: Node, quoted: bool = False, start: int | None = None) -> Iterator[WordPart]:
        """Parts of a word: what stands for something, and the text between."""
        if node.type in _EXPANDING:
            text = text_of(node).lstrip(" \t\n\\")
            yield WordPart(self.value(node), quoted, True, bool(re.search(r"\[@\]\}$|^\$@$|^\$\{@\}$", text)))
        elif node.type in ("raw_string", "ansi_c_string"):
            yield WordPart([text_of(node).lstrip("$")[1:-1]], True)
        elif node.type == "process_substitution":
            yield WordPart([text_of(node)], True)
        else:
            yield from self.mixed(node, quoted, start)

    def mixed(self, node: Node, quoted: bool, start: int | None) -> Iterator[WordPart]:
        """Parts of a word that has several, or of none but text."""
        source, at, end = node.text or b"", start or node.start_byte, node.end_byte
        if node.type == "string":
            quoted, at, end = True, node.children[0].end_byte, node.children[-1].start_byte
            yield WordPart([""], True)
        escaped = r'\\([$"\\`\n])' if quoted else r"\\(.)"

        def literal(to: int) -> WordPart:
            text = source[at - node.start_byte : to - node.start_byte].decode(errors="replace")
            return WordPart([re.sub(escaped, lambda own: own[1].strip("\n"), text, flags=re.DOTALL)], quoted)

        for child in node.children:
            if child.start_byte >= at and (child.children or child.type == "raw_string"):
                written = child.text or b""  # blanks before it belong to some
                blank = len(written) - len(written.lstrip(b" \t\n\\")) if child.type in _EXPANDING else 0
                yield literal(child.start_byte + blank)
                yield from self.pieces(child, quoted)
                at = child.end_byte
        yield literal(end)

    def text(self, node: Node, quoted: bool = False, start: int | None = None) -> str:
        """A part of a script as one text, with its variables written out."""
        texts = [" ".join(piece.values) for piece in self.pieces(node, quoted, start)]
        return self.measured(["".join(texts)])[0]

    def expanded(self, node: Node) -> list[str]:
        """A word with its variables written out: several where one holds several or, unquoted, has blanks."""
        found, pieces = [""], list(self.pieces(node))
        for piece in pieces:
            values = piece.values
            if piece.expands and not piece.quoted:
                text = " ".join(values)
                values = text.split()
                found += [""] * (text[:1].isspace() and found[-1] != "")
            elif piece.expands and not piece.each:
                values = [" ".join(values)]
            found[-1] += values[0] if values else ""
            found += self.measured(values[1:])
        quoted = any(piece.quoted for piece in pieces) and not any(piece.each for piece in pieces)
        return [one for one in found if one] or ([""] if quoted else [])

    def value(self, node: Node) -> list[str]:
        """What `$NAME`, `$(command)` and their kin stand for; what is not known stays as it is."""
        written = text_of(node).lstrip(" \t\n\\")
        if written.startswith("$((") and written.endswith("))"):  # which behind `:-` is a substitution to it
            known = node.type == "arithmetic_expansion"
            inner = "".join(self.text(child) for child in node.children[1:-1]) if known else written[3:-2]
            number = self.arithmetic(re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", inner))
            return ["".join(written.split()) if number is None else str(number)]
        if node.type == "command_substitution":
            text = self.output(node)
            first = "".join(re.findall(r"[-./\w]+", written)[:1])
            return [f"$({first})" if text is None else text]
        children = node.children[1:-1] if node.type == "expansion" else node.children[1:]
        marked = len(children) > 1 and not children[0].is_named
        if not children or not children[marked].is_named or " " in text_of(children[marked]):
            return [written]
        return self.parameter(node, children[0].type if marked else "", children[marked:])

    def parameter(self, node: Node, mark: str, parts: Sequence[Node]) -> list[str]:
        """What a variable stands for: its name, then what is to be done with it."""
        written, target = text_of(node).lstrip(" \t\n\\"), parts[0]
        index = target.child_by_field_name("index")
        key = None if index is None else self.text(index)
        name = text_of(target.child_by_field_name("name") or target)
        held = self.held(name, key)
        if mark == "#":
            return [str(len(held or []) if key in ("@", "*") else len("".join(held or [])))]
        if mark == "!":
            if key is not None:
                return list(self.tables.get(name, {}))
            held = self.held(held[0], None) if held else None
        sign = parts[1].type if len(parts) > 1 else ""
        kept = [] if self.strict else [f"${name}" if sign else written]
        if sign.strip(":") not in ("-", "=", "+", "?"):
            return kept if held is None else [self.changed(own, parts[1:]) for own in held]
        there = held is not None and not (sign[0] == ":" and "".join(held) == "")
        text = "".join(" ".join(own.values) for own in self.mixed(node, False, parts[1].end_byte))[:-1]
        if sign[-1] == "+":
            return [text] if there else []
        if there or sign[-1] == "?":
            return held if there and held is not None else kept
        if sign[-1] == "=":
            self.variables[name] = [text]
        return [text]

    def changed(self, value: str, change: Sequence[Node]) -> str:
        """A value without an ending, with a part replaced, or in other letters."""
        texts = [re.sub(r"\$\{?(\w+)\}?", lambda own: "".join(self.held(own[1], None) or []), self.text(own))
                 for own in change]  # fmt: skip
        return changed(value, *texts) if texts else value

    def held(self, name: str, key: str | None) -> list[str] | None:
        """What a variable holds, all of it or one item; None if nothing is known of it."""
        if name in ("@", "*"):
            return self.arguments or []
        if name == "#":
            return [str(len(self.arguments or []))]
        if is_number(name) and name != "0":
            return (self.arguments or [])[int(name) - 1 : int(name)] or None
        if name in ("0", "BASH_SOURCE"):
            return [str(self.path)] if self.path else None
        if name in ("?", "PWD"):
            return ["0" if name == "?" else self.folder or "."]
        if name in self.tables:
            table = self.tables[name]
            return [*table.values()] if key in ("@", "*") else [table[key]] if key in table else None
        found = self.variables.get(name)
        if found is None or key in ("@", "*"):
            return found
        place = int(key) if key and is_number(key) else 0
        return found[place : place + 1] or ([""] if not found else None)

    def output(self, node: Node) -> str | None:
        """What a substituted command prints, where nothing but `echo`, `dirname` and their like does."""
        printed: list[str] = []
        there = self.within()
        for own in _steps(node):
            [command, *others] = own.children if own.type == "redirected_statement" else [own]
            if command.type != "command":
                return None
            words = [word for child in command.children for word in there.expanded(child)]
            documents = [document for other in others for document in there.read_by(other)]
            if words[:1] == ["cat"] and documents:
                words = ["echo", *documents]
            if words[:1] == ["cd"]:
                there.gone(words[1:])
                continue
            line = (there.folder or ".") if words == ["pwd"] else line_of(words)
            if line is None:
                return None
            printed.append(line)
        return self.measured(["\n".join(printed).rstrip("\n")])[0]


def _steps(node: Node) -> Iterator[Node]:
    """Statements of a substitution in turn."""
    for child in node.children:
        if child.type == "list":
            yield from _steps(child)
        elif child.is_named:
            yield child


def _operands(node: Node) -> Iterator[Node]:
    """Words and operators of a condition in turn."""
    for child in node.children:
        if child.type.endswith("ary_expression") or child.type == "parenthesized_expression":
            yield from _operands(child)
        else:
            yield child


#: Kinds of statements -> what they do; words and comments stand between them.
STATEMENTS: Final[dict[str, Callable[[Script, Node], bool | None]]] = {
    **dict.fromkeys(("do_group", "subshell", "declaration_command", "variable_assignments"), Script.block),
    "compound_statement": Script.block,
    "list": Script.chain,
    "pipeline": lambda script, node: (script.run(node.children), None)[1],
    "negated_command": lambda script, node: {True: False, False: True, None: None}[script.run(node.children)],
    "redirected_statement": Script.redirected,
    "command": Script.command,
    "test_command": Script.test,
    "variable_assignment": Script.assigned,
    "unset_command": Script.forgotten,
    "if_statement": Script.branches,
    "case_statement": Script.choice,
    "for_statement": Script.words_loop,
    "while_statement": Script.condition_loop,
    "function_definition": Script.defined,
}

#: What the shell itself does -> how.
BUILT_IN: Final[dict[str, Callable[[Script, list[str]], bool | None]]] = {
    "false": lambda script, words: False,
    **dict.fromkeys((".", "source"), Script.sourced),
    **dict.fromkeys(("cd", "pushd"), Script.gone),
    "set": Script.given,
    "shift": Script.shifted,
    "eval": Script.evaluated,
}
