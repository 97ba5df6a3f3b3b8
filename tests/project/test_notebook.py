"""The notebooks run from top to bottom, on studies that they make for themselves."""

import re
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from tests.support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BY_NAME = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    """A notebook."""
    return pytest.importorskip("nbformat", reason="needs the `notebook` extra").read(path, as_version=4)


@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=() if path.stem == "analysis" else pytest.mark.slow) for path in NOTEBOOKS
])  # fmt: skip
def test_notebook_runs(path, tmp_path):
    pytest.importorskip("ipykernel", reason="needs the `notebook` extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the `notebook` extra")
    notebook = read(path)
    for cell in notebook.cells:
        cell.source = re.sub(r"\.run\((500|200)", ".run(30", cell.source)  # shorter than in the notebook
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}) for output in outputs]
    assert sum("vega" in kind for data in shown for kind in [*data, data.get("text/html", "")]) >= 2
    pages = "".join(data.get("text/html", "") for data in shown)
    charts = re.findall(r"^  \}\)\((\{.*\}), \{.*\);$", pages, re.MULTILINE)
    assert len(charts) == pages.count('"mode": "vega-lite"')
    assert all(vl_convert.vegalite_to_svg(chart).startswith("<svg") for chart in charts)
    if path.stem == "analysis":
        printed = "".join(output.get("text", "") for output in outputs)
        assert "no database there" in printed
        assert "ran 200 trials" in printed


@BY_NAME
def test_notebook_is_stored_with_small_outputs(path):
    """`python -m tests.notebook_outputs` stores them: tables, texts and pictures, without paths."""
    text = path.read_text()
    assert len(text) < 150_000
    assert not re.search(r"/(?:tmp|home|root|work)/|Warning", text)
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum(bool(cell.outputs) for cell in cells) >= len(cells) / 2


@BY_NAME
def test_notebook_imports_and_defines_nothing(path):
    code = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    lines = "\n".join(code).splitlines()
    assert not [line for line in lines if line.startswith(("def ", "class "))]
