"""Examples of README, docs and help that evaluate designs: each runs, and shows a design that fits."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from costmodel.formats import shipped
from dse.cli import main, parser
from tests.test_launching import SCRIPT

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Files of other frameworks' launches, and designs, that no page holds.
WITHOUT_FILE = re.compile(r"--from-(nemo|torchtitan|maxtext)|--designs|7b|my_space|small\.yaml")


def helps() -> str:
    """Help of every command."""
    [commands] = [own for own in parser()._actions if isinstance(own, argparse._SubParsersAction)]
    return "\n".join(own.format_help() for own in commands.choices.values())


def examples() -> list[str]:
    """Commands that name a design of a built-in space, or a launch file of Megatron-LM."""
    lines = "\n".join([*(page.read_text() for page in PAGES), helps()]).splitlines()
    found = [line.strip().removeprefix("$ ") for line in lines]
    kinds = tuple(f"dse {command} " for command in ("evaluate", "fit", "cost"))
    named = (*shipped.names("spaces"), "--from-megatron", "train.sh")
    return sorted({
        re.split(r" {2,}#|\s+\||&&", line)[0].strip()
        for line in found
        if line.startswith(kinds) and line.split()[2] in named and not WITHOUT_FILE.search(line)
    })  # fmt: skip


def test_there_are_examples():
    assert len(examples()) > 15


@pytest.mark.parametrize("command", examples())
def test_an_example_runs_and_shows_a_design_that_fits(command, tmp_path, monkeypatch, capsys):
    """The exit code is 1 where no design is feasible."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(SCRIPT)
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
