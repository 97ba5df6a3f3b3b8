"""Model files: the dimensions of a model in YAML -> `ModelShape` or `LstmShape`, by the file's schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.strict_yaml import Section
from costmodel.training.lstm import LstmShape
from costmodel.training.model import ModelShape

#: What a model file describes.
AnyModel = ModelShape | LstmShape

#: Schema -> what its files describe.
SCHEMAS: Final[Mapping[str, type[AnyModel]]] = {"model/v1": ModelShape, "lstm_model/v1": LstmShape}
_TEXTS: Final = ("schema", "name", "title", "description", "source")


def model_names() -> list[str]:
    """Names of the models that ship."""
    return shipped.names("models")


def load_model(name_or_path: str | Path) -> AnyModel:
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


#: Largest dimension or count of a model, far beyond any: products of a few stay finite. [-]
LARGEST: Final = 1e12


def read_model(section: Section, name: str) -> AnyModel:
    """The model that a mapping describes; mistakes are noted in its source, and a stand-in returned."""
    shape = SCHEMAS[section.word("schema", SCHEMAS)]
    kinds = get_type_hints(shape)
    switches = [f.name for f in fields(shape) if kinds[f.name] in (bool, bool | None)]
    others = [*switches, *(f.name for f in fields(shape) if get_origin(kinds[f.name]) is Literal)]
    section.only((*_TEXTS, *shape.dimensions, *shape.counts, *others))
    section.text("source")
    section.text("description", required=False)
    values: dict[str, Any] = {key: section.text(key, required=False) for key in ("name", "title")}
    values["name"] = values["name"] or name
    required = [f.name for f in fields(shape) if f.init and f.default is MISSING]
    for key in (*shape.dimensions, *shape.counts):
        if key in required or key in section:
            values[key] = section.number(key)
            if values[key] > LARGEST:
                section.mistake(key, f"expected at most {LARGEST:.0e}")
    for key in (key for key in others if key in section):
        switch = key in switches
        values[key] = (
            section.switch(key, default=False) if switch else section.word(key, get_args(kinds[key]))
        )
    if not section.source.mistakes:
        try:
            return shape(**values)
        except DseError as error:
            section.mistake(None, str(error))
    stand_in: dict[str, Any] = dict.fromkeys(required, 1.0)
    return shape(name=name, **stand_in)
