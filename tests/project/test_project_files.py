"""Files that people and services read beside the program: change log, citation, policies, workflow."""

import re
import subprocess
import sys
from typing import Any

import yaml

import dse
from tests.support.paths import ROOT


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


def test_the_change_log_of_a_release_is_short():
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert all(len(release.splitlines()) <= 50 for release in releases)


def test_the_workflow_runs_the_script_of_continuous_integration():
    [job] = content(".github/workflows/ci.yml")["jobs"].values()
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_every_table_of_the_tests_is_read_by_its_module():
    folder = ROOT / "tests" / "data" / "cases"
    for path in folder.rglob("*.yaml"):
        module = (ROOT / "tests" / path.relative_to(folder)).with_suffix(".py").read_text()
        by_name = {*re.findall(r"^@by_table.*\n(?:@.*\n)*def test_(\w+)", module, flags=re.MULTILINE)}
        read = by_name | {*re.findall(r'cases\(__file__, "(\w+)"\)', module)}
        assert {*yaml.safe_load(path.read_text())} == read
