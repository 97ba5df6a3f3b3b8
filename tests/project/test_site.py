"""The site: built without a warning and without a network, with a page for each command."""

import json
import re
import subprocess
import sys

import pytest

import costmodel
import dse
from costmodel.stubs import homes
from dse.cli import COMMANDS
from tests.support.browser import data_of
from tests.support.paths import ROOT

pytest.importorskip("sphinx", reason="the site needs the extra: pip install 'dse-training[docs]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-d", folder / "trees", ROOT / "docs", folder / "site"]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "site"


def test_every_command_has_a_page_made_from_its_help(site):
    index = (site / "made" / "commands" / "index.html").read_text()
    assert {"search", "evaluate", "enumerate"} <= {*COMMANDS}
    for name in COMMANDS:
        assert f'href="{name}.html"' in index
        assert f"usage: dse {name} " in (site / "made" / "commands" / f"{name}.html").read_text()


def test_every_written_page_and_every_public_name_is_there(site):
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists(), page.name
    library = (site / "made" / "library.html").read_text()
    for package in (costmodel, dse):
        for name in package.__all__:
            assert f'id="{homes(package.__name__)[name]}.{name}"' in library, name


def test_the_site_has_the_page_of_errors(site):
    assert "Accuracy by software release" in json.dumps(data_of(site / "accuracy.html"))


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert re.findall(r'(?:src|<link[^>]* href)="(?:https?:)?//[^"]*"', page.read_text()) == [], page.name
