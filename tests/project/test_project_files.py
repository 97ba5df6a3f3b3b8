"""Files that people and services read beside the program: change log, citation, policies, forms, checks."""

import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

import dse
from tests.support.paths import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def content(name: str) -> Any:
    """A YAML file of the repository."""
    return yaml.safe_load((ROOT / name).read_text())


def test_the_version_is_the_newest_of_the_change_log_and_that_of_the_citation():
    log = (ROOT / "CHANGELOG.md").read_text()
    newest, day = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", log, flags=re.MULTILINE)[0]
    assert newest == dse.__version__
    citation = content("CITATION.cff")
    assert (citation["version"], str(citation["date-released"])) == (newest, day)
    printed = subprocess.run([sys.executable, "-m", "dse", "--version"], capture_output=True, text=True, check=True)
    assert printed.stdout == f"dse {newest}\n"


def test_the_version_is_written_in_one_place_of_the_packages():
    modules = [path for package in ("costmodel", "dse") for path in (ROOT / package).rglob("*.py")]
    number = re.compile(rf'"{re.escape(dse.__version__)}"')
    assert [path.name for path in modules if number.search(path.read_text())] == ["installation.py"]


def test_the_change_log_of_a_release_is_short():
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert all(len(release.splitlines()) <= 50 for release in releases)


def test_the_change_log_counts_the_built_in_files():
    log = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(r"(\d+) models, (\d+) systems, (\d+) frameworks and (\d+) search spaces are built in", log)
    assert found
    folders = ("models", "systems", "frameworks", "spaces")
    assert [*map(int, found.groups())] == [len([*(ROOT / "search_spaces" / own).glob("*.yaml")]) for own in folders]


def test_the_citation_has_what_its_format_demands():
    """CFF 1.2.0: authors, cff-version, message and title are required."""
    citation = content("CITATION.cff")
    assert {"authors", "cff-version", "message", "title"} <= {*citation}
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == "Apache-2.0"
    assert f"Copyright 2026 {citation['authors'][0]['name'].removeprefix('the ')}" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_something_and_has_a_name(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= {*form}
    asked = [part for part in form["body"] if part["type"] in ("textarea", "input")]
    assert any(part.get("validations", {}).get("required") for part in asked)
    assert len({part["id"] for part in asked}) == len(asked)


def test_there_is_a_form_for_bugs_predictions_and_features():
    assert {path.stem for path in FORMS} == {"bug", "feature", "wrong_prediction"}


def test_the_workflow_runs_the_script_of_continuous_integration():
    [job] = content(".github/workflows/ci.yml")["jobs"].values()
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_hooks_run_tools_that_the_script_of_continuous_integration_runs():
    script = (ROOT / ".ci" / "run").read_text()
    [local] = content(".pre-commit-config.yaml")["repos"]
    commands = {" ".join(re.findall(r"^\S+(?: (?:check|format))?", hook["entry"])) for hook in local["hooks"]}
    assert commands == {".venv/bin/ruff check", ".venv/bin/ruff format", ".venv/bin/mypy"}
    assert all(command in script for command in commands)


@pytest.mark.parametrize("name", ["SECURITY.md", ".github/pull_request_template.md", "CHANGELOG.md"])
def test_links_of_these_files_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https:)([^)#]+)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_table_of_the_tests_is_read_by_its_module():
    folder = ROOT / "tests" / "data" / "cases"
    for path in folder.rglob("*.yaml"):
        module = (ROOT / "tests" / path.relative_to(folder)).with_suffix(".py").read_text()
        assert [name for name in yaml.safe_load(path.read_text()) if f'cases(__file__, "{name}")' not in module] == []
