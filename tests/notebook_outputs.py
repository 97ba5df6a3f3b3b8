"""Stores the outputs of the notebooks: `python -m tests.notebook_outputs` runs each in an empty folder.

Charts are stored as pictures, which repository pages show. Progress bars, warnings and paths of the machine
are left out.
"""

import base64
import io
import re
import tempfile
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[1] / "notebooks"
#: The Vega-Lite specification within the page of an Altair chart.
CHART: Final = re.compile(r"^  \}\)\((\{.*\}), \{.*\);$", re.MULTILINE)

#: Largest width of a stored picture, in pixels, and its number of colours.
WIDTH: Final = 900
COLOURS: Final = 24


def executed(notebook: Any, folder: Path) -> Any:
    """The notebook with the outputs of a run in a folder."""
    import nbclient

    resources = {"metadata": {"path": folder}}
    nbclient.NotebookClient(notebook, timeout=240, resources=resources, record_timing=False).execute()
    return notebook


def small_picture(chart: str) -> str:
    """A chart as PNG with few colours, at most 900 pixels wide, in base64."""
    import vl_convert
    from PIL import Image

    picture = Image.open(io.BytesIO(vl_convert.vegalite_to_png(chart, scale=1))).convert("RGB")
    picture.thumbnail((WIDTH, 10 * WIDTH))
    packed = io.BytesIO()
    picture.quantize(COLOURS).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def kept(output: Any) -> Any | None:
    """An output as it is stored; none for progress bars and warnings."""
    if output.get("name") == "stderr" or "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
        return None
    if "text" in output:
        output["text"] = re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+/", "", output["text"])
    if "execution_count" in output:
        output["execution_count"] = None
    data = output.get("data", {})
    if chart := CHART.search(data.get("text/html", "")):
        output["data"] = {"image/png": small_picture(chart[1]), "text/plain": "<chart>"}
    return output


def main() -> None:
    """Run each notebook and store its outputs."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(nbformat.read(path, as_version=4), Path(folder))
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.execution_count = None
                    outputs = [kept(output) for output in cell.outputs]
                    cell.outputs = [output for output in outputs if output is not None]
            notebook.metadata.pop("widgets", None)
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
