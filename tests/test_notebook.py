"""The analysis notebook runs from top to bottom, on a study that it makes for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "analysis.ipynb"


def test_notebook_runs(tmp_path, monkeypatch):
    pytest.importorskip("ipykernel", reason="needs the `notebook` extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the `notebook` extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the `notebook` extra")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[1].outputs)
    assert "no database there" in printed
    assert "ran 200 trials" in printed


def test_notebook_is_committed_without_outputs():
    nbformat = pytest.importorskip("nbformat", reason="needs the `notebook` extra")
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get("outputs") for cell in cells)


def test_notebook_imports_and_defines_nothing():
    nbformat = pytest.importorskip("nbformat", reason="needs the `notebook` extra")
    code = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    lines = "\n".join(code).splitlines()
    assert not [line for line in lines if line.startswith(("def ", "class "))]
