"""Constructions that pages, help, messages, docstrings and comments avoid, each with a plain alternative.

`python -m tests.language` prints each place, `python -m tests.language --keep` lowers the allowances in
`tests/data/language.csv` to the counts of the tree. Allowances never grow.
"""

import ast
import csv
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.house import FILES, ROOT, nodes
from tests.support.cases import cases
from tests.support.commands import parsers

ALLOWED: Final = ROOT / "tests" / "data" / "language.csv"
PAGES: Final = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
#: Longest sentence that is easy to read. [words]
LONGEST: Final = 25

#: Name -> pattern of a construction, and the plain alternative.
FORBIDDEN: Final[dict[str, tuple[str, str]]] = cases(__file__, "FORBIDDEN")
COMPILED: Final = {name: re.compile(pattern, re.IGNORECASE) for name, (pattern, _) in FORBIDDEN.items()}


def found_in(text: str) -> list[tuple[str, str]]:
    """Each forbidden construction of a sentence with the words around it."""
    places = []
    for name, pattern in COMPILED.items():
        for match in pattern.finditer(text):
            places.append((name, text[max(match.start() - 30, 0) : match.end() + 30]))
    return places


def blocks(page: str) -> Iterator[tuple[str, bool]]:
    """Paragraphs, list items and cells of a Markdown page without code, and whether each is running text."""
    page = re.sub(r"^ *(`{3,}).*?^ *\1 *$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "CODE", page, flags=re.DOTALL)
    page = re.sub(r"\]\([^)]*\)", "]", page)
    for part in re.split(r"\n\s*\n|\n(?= *(?:[-*|#]|\d+\.) )", page):
        if part.startswith("    "):
            continue
        if part.lstrip().startswith("|"):
            yield from ((cell.strip(), False) for cell in part.split("|") if cell.strip(" -\n"))
        else:
            yield " ".join(part.split()), not part.startswith("#")


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph."""
    return [one for one in re.split(r"(?<=[.?!:])\s+(?=[A-Z*`\[(])", text) if one]


def faults(page: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Forbidden constructions of a page, and its sentences that are too long."""
    wrong, long = [], []
    for text, is_running in blocks(page):
        for sentence in sentences(text):
            wrong += found_in(sentence)
            if is_running and len(re.findall(r"[\w'%-]*\w[\w'%-]*", sentence)) > LONGEST:
                long.append(sentence)
    return wrong, long


def helps() -> dict[str, str]:
    """Help of each command, without its usage and its examples."""
    texts = {}
    for name, command in parsers().items():
        options = [action.help or "" for action in command._actions]
        groups = [group.description or "" for group in command._action_groups]
        parts = (command.description or "", *groups, *options)
        texts[name] = "\n\n".join(text % {} if "%%" in text else text for text in parts)
    return texts


def sources(package: str) -> list[tuple[str, list[ast.AST]]]:
    """Text and nodes of the modules of a package."""
    return [(path.read_text(), nodes(name)) for name, path in FILES.items() if name.split(".")[0] == package]


def messages(package: str) -> list[str]:
    """String literals in arguments of errors that a package raises."""
    texts = []
    for _, module in sources(package):
        for node in module:
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for argument in node.exc.args:
                    parts = [
                        part.value
                        for part in ast.walk(argument)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    ]
                    texts.append(" ".join(parts))
    return texts


def remarks(package: str) -> Iterator[str]:
    """Docstrings and comments of a package, paragraph by paragraph."""
    for source, module in sources(package):
        for node in module:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield from (" ".join(part.split()) for part in text.split("\n\n"))
        # A comment of several lines is one remark.
        for lines in re.findall(r"(?:^[^\n\"'#]*#[: ] ?[^\n]*\n)+", source, flags=re.MULTILINE):
            yield " ".join(re.sub(r"^.*?#[: ] ?", "", line).strip() for line in lines.splitlines())


@cache
def counts() -> dict[str, tuple[int, int]]:
    """Forbidden constructions and long sentences of pages; constructions of help, messages and remarks in code."""
    kept = {
        str(page.relative_to(ROOT)): (len(wrong), len(long))
        for page in PAGES
        for wrong, long in [faults(page.read_text())]
    }
    kept["help"] = (sum(len(faults(text)[0]) for text in helps().values()), 0)
    for package in ("costmodel", "dse"):
        kept[f"messages of {package}"] = (sum(len(found_in(text)) for text in messages(package)), 0)
        kept[f"remarks of {package}"] = (sum(len(found_in(text)) for text in remarks(package)), 0)
    return kept


def allowed() -> dict[str, tuple[int, int]]:
    """Allowances; a page that is not listed has none."""
    with ALLOWED.open(newline="") as file:
        return {row["place"]: (int(row["constructions"]), int(row["long_sentences"])) for row in csv.DictReader(file)}


def main() -> None:
    """Print places, or lower the allowances."""
    if "--keep" in sys.argv:
        before = allowed() if ALLOWED.exists() else {}
        now = {text_name: counted for text_name, counted in counts().items() if any(counted)}
        with ALLOWED.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["place", "constructions", "long_sentences"])
            for text_name, counted in now.items():
                limit = before.get(text_name, counted if not before else (0, 0))
                writer.writerow([text_name, *map(min, counted, limit)])
        return
    names = sys.argv[1:]
    for page in PAGES:
        if names and page.name not in names:
            continue
        wrong, long = faults(page.read_text())
        for name, text_name in wrong:
            print(f"{page.name}: {name} ({FORBIDDEN[name][1]}): {text_name}")
        for sentence in long:
            print(f"{page.name}: long: {sentence}")
    if not names or "help" in names:
        for command, text in helps().items():
            for name, text_name in faults(text)[0]:
                print(f"dse {command} --help: {name}: {text_name}")
    if not names or "messages" in names:
        for package in ("costmodel", "dse"):
            for text in (*messages(package), *remarks(package)):
                for name, text_name in found_in(text):
                    print(f"{package}: {name}: {text_name}")


if __name__ == "__main__":
    main()
