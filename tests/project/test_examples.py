"""Examples of README, docs and help that evaluate designs: each runs, and shows a design that fits."""

import re
import shlex
from functools import cache

import pytest

from costmodel.formats import shipped
from dse.cli import main
from tests.dse.launches.test_launching import SCRIPT
from tests.support.commands import parsers, stdout_of
from tests.support.paths import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Files of other frameworks' launches, and designs, that no page holds.
WITHOUT_FILE = re.compile(r"--from-(nemo|torchtitan|maxtext)|--designs|7b|my_space|small\.yaml")


@cache
def lines() -> list[str]:
    """Lines of all pages, and of the help of every command."""
    texts = [*(page.read_text() for page in PAGES), *(command.format_help() for command in parsers().values())]
    return [line.strip().removeprefix("$ ") for line in "\n".join(texts).splitlines()]


def examples() -> list[str]:
    """Commands that name a design of a built-in space, or a launch file of Megatron-LM."""
    kinds = tuple(f"dse {command} " for command in ("evaluate", "fit", "cost"))
    named = (*shipped.names("spaces"), "--from-megatron", "train.sh")
    return sorted({
        re.split(r" {2,}#|\s+\||&&", line)[0].strip()
        for line in lines()
        if line.startswith(kinds) and line.split()[2] in named and not WITHOUT_FILE.search(line)
    })  # fmt: skip


def other_examples() -> list[str]:
    """Commands that plan, explain, compare, show and report what `folder` holds; `test_readme` runs the guides' own."""
    run_already = [page.read_text() for page in PAGES if page.stem == "README" or page.stem.startswith("guide_")]
    held = ["gpt3_175b_1024_a100", "plan_llama3_70b_256", "train.sh", "old.sh", "meta-llama/Llama-3.1-405B"]
    held += [*shipped.names("models"), *shipped.names("systems"), *shipped.spellings("systems")]
    kinds = tuple(f"dse {command} " for command in ("plan", "compare", "explain", "show", "report"))
    actual = {
        command
        for line in lines()
        if (command := re.split(r" {2,}| +#|\s+\||&&", line)[0]).startswith(kinds)
        and command.split()[2] in held
        and not re.search(r"gpt3_without_sp|by_simai|--trace", command)
        and not any(command in page for page in run_already)
        and not re.search(r"^dse report .* -o (?!gpt3).*html", command)  # the same page under another name
    }
    return sorted({like(command): command for command in sorted(actual)}.values())


def like(command: str) -> tuple[str, ...]:
    """The command and its options, without their values."""
    return (*command.split()[:2], *sorted(re.findall(r"--?[a-z][\w-]*", command)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the studies and the scripts that examples name."""
    path = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        stdout_of("search", "gpt3_175b_1024_a100", "--budget", "45", "--study", "gpt3_175b_1024_a100")
        stdout_of("plan", "llama3_70b", "--gpus", "256", "--system", "h100")
        for name, trial in (("train.sh", "0"), ("old.sh", "0"), ("new.sh", "2")):
            stdout_of("export", "plan_llama3_70b_256", "--trial", trial, "--format", "megatron", "-o", name)
    return path


def test_there_are_examples():
    assert len(examples()) > 15
    assert len(other_examples()) > 15


@pytest.mark.parametrize("command", other_examples())
@pytest.mark.slow
def test_an_example_of_another_command_runs_and_shows_what_fits(command, folder, monkeypatch, capsys):
    """Limits of CI on a comparison may be exceeded, as they are there for."""
    monkeypatch.chdir(folder)
    code = main(shlex.split(command)[1:])
    said = capsys.readouterr()
    assert code == 0 or ("--max-" in command and "more than the limit" in said.out), said.err
    assert "Does not fit" not in said.out


@pytest.mark.parametrize("command", examples())
def test_an_example_runs_and_shows_a_design_that_fits(command, tmp_path, monkeypatch):
    """The exit code is 1 where no design is feasible."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(SCRIPT)
    stdout_of(*shlex.split(command)[1:])
