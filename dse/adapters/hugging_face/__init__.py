"""Hugging Face: `config.json` of a model -> the fields of a model file."""

from pathlib import Path

from dse.registry import Adapter


def _is_configuration(path: Path) -> bool:
    return path.suffix == ".json" or (path.is_dir() and (path / "config.json").exists())


ADAPTER = Adapter(
    name="hugging_face",
    title="Hugging Face",
    is_model=_is_configuration,
    import_model="dse.adapters.hugging_face.configuration:import_model",
)
