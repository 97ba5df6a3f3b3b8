"""Launch files, read back from the folder of a test."""

from pathlib import Path
from types import ModuleType

from dse.launches.launch import Launch


def read_text(form: ModuleType, text: str, folder: Path, gpus: int | None = None) -> tuple[Launch, list[str]]:
    """The launch that a file of some text starts, and notes; `form` is a framework's module of launch files."""
    path = folder / "launch.py"
    path.write_text(text)
    launch, notes = form.read_script(path, gpus)
    return launch, notes
