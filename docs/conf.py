"""The site of these pages: `sphinx-build -W docs build/site`. It needs no network, to be built or to be read.

Made beside the pages that are written: the README's, a page for each command from its help, and the library's
own words.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import yaml

import dse
from dse import __version__
from dse.reporting.pages.validation_page import validation_page

HERE = Path(__file__).parent
ROOT, MADE = HERE.parent, HERE / "made"

project = "dse"
release = version = __version__
copyright = "the authors of dse, Apache 2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "README"
html_theme = "furo"
html_title = "dse"
html_static_path: list[str] = []
#: Files that are copied to the site: the page of `dse validate`.
html_extra_path = ["made/extra"]
myst_heading_anchors = 4
autodoc_typehints = "none"
autodoc_member_order = "bysource"
suppress_warnings = ["myst.header", "misc.highlighting_failure", "ref.citation"]
#: Columns of a command's help. [characters]
WIDTH = "88"
#: Files outside this folder that pages link to -> pages of the site.
ELSEWHERE = {"../README.md": "made/overview.md", "../CONTRIBUTING.md": "made/contributing.md"}
#: Pages that are made, in the order of the site's contents: before and after those that are written.
FIRST, LAST = (["made/overview"], ["made/commands/index", "made/library", "made/references", "made/contributing"])


(MADE / "extra").mkdir(parents=True, exist_ok=True)


def setup(app: Any) -> None:
    """Hooks of the build."""
    app.connect("builder-inited", lambda _: make_pages())
    app.connect("source-read", lead_to_pages)


def make_pages() -> None:
    """Write the pages that are made."""
    (MADE / "commands").mkdir(parents=True, exist_ok=True)
    pages = {
        "overview": from_the_root("README.md"),
        "contributing": from_the_root("CONTRIBUTING.md"),
        "library": library(),
        "references": references(),
        **{f"commands/{name}": text for name, text in commands().items()},
    }
    for name, text in pages.items():
        path = MADE / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    accuracy = validation_page(dse.validate(), "published figures")
    (MADE / "extra" / "accuracy.html").write_text(accuracy)


def lead_to_pages(app: Any, name: str, source: list[str]) -> None:
    """Links to files outside this folder lead to their pages, and the index to all pages."""
    if name == root_doc:
        written = dict.fromkeys(re.findall(r"\]\((\w+)\.md\)", source[0]))
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", *FIRST, *written, *LAST, "```", ""])
    if not name.startswith("made/"):
        for link, page in ELSEWHERE.items():
            source[0] = source[0].replace(f"]({link}", f"]({page}")


def from_the_root(name: str) -> str:
    """A page that lies outside this folder."""
    text = re.sub(r"\]\(docs/README\.md", "](../README.md", (ROOT / name).read_text())
    text = re.sub(r"\]\(docs/", "](../", text)
    text = text.replace("](README.md", "](overview.md").replace("](CONTRIBUTING.md", "](contributing.md")
    return re.sub(r"\[([^]]*)\]\((?:LICENSE|CHANGELOG\.md|CITATION\.cff|notebooks[^)]*)\)", r"\1", text)


def commands() -> dict[str, str]:
    """Name of a command -> its page; `index` lists them in their groups."""
    os.environ["COLUMNS"] = WIDTH
    from dse.cli import COMMANDS, OVERVIEW, parser

    helps = parser().commands
    pages, index = {}, ["# Commands"]
    for group in OVERVIEW.split("\n\n")[:-1]:
        title, *lines = group.splitlines()
        index += ["", f"## {title.removesuffix(':')}", "", "| command | does |", "|---|---|"]
        for name, about in ((line.split()[0], COMMANDS[line.split()[0]]) for line in lines):
            pages[name] = f"# dse {name}\n\n`dse {name}`: {about}.\n\n```text\n{helps[name].format_help()}```\n"
            index.append(f"| [`dse {name}`]({name}.md) | {about} |")
    pages["index"] = "\n".join([*index, "", "```{toctree}", ":hidden:", *pages, "```", ""])
    return pages


def library() -> str:
    """Public names of both packages, in the words of their docstrings."""
    from costmodel.stubs import homes

    seen: set[tuple[str, str]] = set()
    lines = ["# Library", "", "[From Python](../python.md) shows them in use."]
    for package in ("dse", "costmodel"):
        module = importlib.import_module(package)
        lines += ["", f"## {package}", ""]
        for name in module.__all__:
            kind = "class" if isinstance(getattr(module, name), type) else "function"
            members = "   :members:\n" if kind == "class" else ""
            home = homes(package)[name]
            if (home, name) in seen:
                continue
            seen.add((home, name))
            lines.append(f"```{{eval-rst}}\n.. auto{kind}:: {home}.{name}\n{members}```\n")
    return "\n".join(lines)


def references() -> str:
    """What docstrings cite."""
    sources = yaml.safe_load((ROOT / "costmodel/references.yaml").read_text())
    cited = "\n".join(f".. [{key}] {text}" for key, text in sorted(sources.items()))
    return f"# References\n\n```{{eval-rst}}\n{cited}\n```\n"
