"""Model files: the dimensions of a transformer in YAML -> `ModelShape`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.strict_yaml import Section
from costmodel.model import DIMENSIONS, ModelShape

SCHEMA: Final = "model/v1"
_REQUIRED: Final = ("num_layers", "hidden_size", "num_attention_heads")
_SWITCHES: Final = ("gated_mlp", "biases", "dropout", "tied_embeddings")
_WORDS: Final = {
    name: get_args(get_type_hints(ModelShape)[name]) for name in ("normalization", "position_embedding")
}
_TEXTS: Final = ("schema", "name", "description", "source")


def model_names() -> list[str]:
    """Names of the models that ship."""
    return shipped.names("models")


def load_model(name_or_path: str | Path) -> ModelShape:
    """A model by the name of one that ships, or by path.

    Raises
    ------
    DseError
        With one line for each mistake in the file.
    """
    name, _, section = shipped.opened(name_or_path, "models")
    model = read_model(section, name)
    section.source.finish()
    return model


def read_model(section: Section, name: str) -> ModelShape:
    """The model that a mapping describes; mistakes are noted in its source, and a stand-in returned."""
    section.only((*_TEXTS, *DIMENSIONS, *_SWITCHES, *_WORDS))
    section.word("schema", [SCHEMA])
    section.text("source")
    for key in ("name", "description"):
        section.text(key, required=False)
    values: dict[str, Any] = {"name": section.text("name", required=False) or name}
    for key in DIMENSIONS:
        if key in _REQUIRED or key in section:
            values[key] = section.number(key)
    for key in _SWITCHES:
        if key in section:
            values[key] = section.switch(key, default=False)
    for key, words in _WORDS.items():
        if key in section:
            values[key] = section.word(key, words)
    if not section.source.mistakes:
        try:
            return ModelShape(**values)
        except DseError as error:
            section.mistake(None, str(error))
    return ModelShape(name=name, num_layers=1, hidden_size=1, num_attention_heads=1)
