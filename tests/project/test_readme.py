"""The README's commands and snippets run, in the order in which a reader meets them; links and names of all
pages exist."""

import ast
import doctest
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import dse
from dse.cli import parsed
from tests.support.cases import cases
from tests.support.commands import stdout_of
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER_FILES = [ROOT / name for name in ("SECURITY.md", ".github/pull_request_template.md", "CHANGELOG.md")]


def blocks(language: str, page: str = README) -> list[str]:
    """Contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[str]:
    """Commands of the blocks of a page, and those with arguments in its sentences, in their order."""
    texts = re.findall(r"^```sh\n(.*?)^```$|(?<!`)`(dse \w+ [^`]+)`", page, flags=re.MULTILINE | re.DOTALL)
    return [line for block, inline in texts for line in (block or inline).splitlines() if "mine.csv" not in line]


COMMANDS = commands_of(README)

#: Beginning of a command that takes long -> options that narrow it here. The continuous integration runs the
#: search of the README whole, and tests/stress the enumeration.
NARROWED = cases(__file__, "NARROWED")


def run_all(commands: list[str], folder: Path) -> dict[str, str]:
    """Run the commands of a page in order, and return what each prints; a redirection writes a file."""
    outputs = {}
    for command in commands:
        more = next((options for start, options in NARROWED.items() if command.startswith(start)), "")
        words, _, file = command.partition(" > ")
        outputs[command] = stdout_of(*shlex.split(words, comments=True)[1:], *shlex.split(more))
        if file:
            (folder / file).write_text(outputs[command])
    return outputs


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Folder of a reader who has run all commands of the README, and what they print."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "100")
        return folder, run_all([command for command in COMMANDS if command.startswith("dse ")], folder)


@pytest.mark.slow
@pytest.mark.parametrize("guide", sorted((ROOT / "docs").glob("guide_*.md")), ids=lambda page: page.stem)
def test_every_command_of_a_guide_runs_in_a_fresh_folder(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks("sh", guide.read_text()) for line in block.splitlines()]
    assert len(commands) > 5
    run_all(commands, tmp_path)


def test_every_command_leaves_what_the_readme_says(reader):
    folder, _ = reader
    assert {path.name for path in folder.iterdir()} >= {"dse.db", "train.sh", "plan.html", "my_chip.yaml"}
    assert len({study.name for study in dse.studies(f"sqlite:///{folder}/dse.db")}) == 4


def test_every_python_snippet_runs(reader, monkeypatch, capsys):
    monkeypatch.chdir(reader[0])
    names: dict[str, object] = {}
    for snippet in blocks("python"):
        exec(compile(snippet, "README.md", "exec"), names)
    assert len(names["front"]) > 5
    assert "step_time_s" in capsys.readouterr().out


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 107


def test_the_plan_in_the_readme_is_what_the_command_prints(reader):
    """A line of dots stands for lines that are left out."""
    [shown] = blocks("text")
    _, outputs = reader
    printed = next(text for command, text in outputs.items() if command.startswith("dse plan "))
    parts = [part.strip("\n") for part in shown.split("...\n")]
    assert printed.startswith(parts[0])
    assert [part for part in parts if part not in printed] == []


def test_readme_opens_with_the_main_job_and_the_tests():
    job, tests = COMMANDS[:2]
    assert job.endswith("&& .venv/bin/dse search --budget 500")
    assert tests.endswith("&& .venv/bin/pytest -n auto")


def test_ci_runs_the_first_two_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    patterns = re.findall(r"grep -m 1 '(.+?)' README\.md", script)
    run = [next(line for line in README.splitlines() if re.search(pattern, line)) for pattern in patterns]
    assert run == COMMANDS[:2]
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)


def test_the_report_in_the_docs_is_that_of_its_search(tmp_path, monkeypatch):
    """All but the numbers of trials, which may differ with the last bit of a logarithm."""
    [report] = blocks("text", (ROOT / "docs" / "studies.md").read_text())
    monkeypatch.chdir(tmp_path)
    printed = stdout_of("search", "gpt3_175b_1024_a100", "--budget", "500")
    assert without_trial_numbers(printed) == without_trial_numbers(report)


def without_trial_numbers(report: str) -> str:
    report = re.sub(r"trial \d+", "trial", report)
    report = re.sub(r"\d+ infeasible", "infeasible", report)
    return re.sub(r"^ +\d+(?=  +\d+  +\d+)", "", report.strip(), flags=re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, *OTHER_FILES], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https:)([^)#]+)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_places_in_the_code_that_a_page_names_are_there(page):
    """But for those of other software, of the profile that a recipe makes, and of whichever reader."""
    others = r"megatron/|torchtitan/|dse/adapters/ideal_links/|(rules|words)\.py|tests/data/corpus/READER/"
    beginnings = (ROOT, ROOT / "costmodel", ROOT / "dse", ROOT / "tests")
    pattern = r"`((?:\w+/)*\w+\.py|(?:costmodel|dse|tests|search_spaces)(?:/\w+)+/?)`"
    named = {path for path in re.findall(pattern, page.read_text()) if not re.match(others, path)}
    assert not {path for path in named if not any((root / path).exists() for root in beginnings)}


def test_every_stage_of_one_design_is_as_its_page_says():
    failed, examples = doctest.testfile(str(ROOT / "docs" / "one_design.md"), module_relative=False)
    assert (failed, examples > 30) == (0, True)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_imports_of_the_docs_work(page):
    """Their snippets need files of the reader's own; what they import is there."""
    for snippet in blocks("python", page.read_text()):
        nodes = (node for node in ast.parse(snippet).body if isinstance(node, ast.Import | ast.ImportFrom))
        for node in nodes:
            exec(ast.unparse(node), {})


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_commands_of_the_docs_are_commands(page):
    """Their options and words exist; files and studies are the reader's own."""
    for block in blocks("sh", page.read_text()):
        for line in re.split(r"\n|&&|\| |&$", block.replace("\\\n", " ")):
            if line.strip().startswith("dse "):
                parsed(shlex.split(re.sub(r"\$SLURM_\w+", "3", line), comments=True)[1:])


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {*re.findall(r"\]\((\w+\.md)\)", index)} == pages


def glossary() -> list[str]:
    """Names in code in the last column of the glossary's tables."""
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    cells = [line.rstrip(" |").rpartition("|")[2] for line in lines if line.startswith("| ")]
    return sorted({word for cell in cells for word in re.findall(r"`([^`]+)`", cell)})


@pytest.mark.parametrize("word", glossary())
def test_what_the_glossary_names_is_in_the_code(word):
    if "/" in word:
        assert (ROOT / word).exists()
        return
    name = re.compile(rf"\b{word.rpartition('.')[2]}\b")
    modules = (path for package in ("costmodel", "dse") for path in (ROOT / package).rglob("*.py"))
    assert any(name.search(path.read_text()) for path in modules)
