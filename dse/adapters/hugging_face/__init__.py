"""Hugging Face: `config.json` of a model -> the fields of a model file.

Rooms in the order in which they are read; those on one line do not know each other:

    families, numerics
    configuration
"""

from pathlib import Path

from dse.registry import Adapter


def is_configuration(path: Path) -> bool:
    """True for the path of a configuration, by its name, and for a folder that holds one."""
    return path.suffix == ".json" or (path.is_dir() and (path / "config.json").exists())


ADAPTER = Adapter(
    name="hugging_face",
    title="Hugging Face",
    is_model=is_configuration,
    import_model="dse.adapters.hugging_face.configuration:import_model",
)
