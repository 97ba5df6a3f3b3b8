"""Model files: the dimensions of a model in YAML -> the record of its schema, such as `ModelShape`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.input_files import Section
from costmodel.training.blocks import LINEAR_MIXERS
from costmodel.training.dimensions import OF_LAYERS, Numerics, Sizes
from costmodel.training.model import ModelShape

#: The record that a model file describes, such as `ModelShape`: profiles have other records.
AnyModel: TypeAlias = Any

#: Schema -> module and name of the record that its files describe.
SCHEMAS: Final[Mapping[str, tuple[str, str]]] = {
    "model/v1": ("costmodel.training.model", "ModelShape"),
    "lstm_model/v1": ("costmodel.lstm", "LstmShape"),
}
NUMERICS: Final = "numerics"
#: Orders of layers, by letters.
ORDERS: Final = ("layer_order", "mtp_order")
#: Parallel mixers behind one norm.
PAIRS: Final = tuple(f"full+{mixer}" for mixer in LINEAR_MIXERS)
#: Parts of a layer -> words for them in `layer_kinds`.
BRANCHES: Final = {
    "mixer": ("full", "window", "latent", "sparse", "compressed", *LINEAR_MIXERS, *PAIRS, "none"),
    "mlp": ("dense", "experts", "none"),
}
_TEXTS: Final = ("schema", "name", "title", "description", "source")


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model read from a file of another program."""

    model: ModelShape
    fields: Mapping[str, Any]  #: the content of its model file
    notes: tuple[str, ...]  #: a line for each thing that the user should know


def model_names() -> list[str]:
    """Names of the built-in models."""
    return shipped.names("models")


def load_model(name_or_path: str | Path) -> AnyModel:
    """A model by the name of a built-in one, or by path.

    Raises `DseError` with one line for each mistake in the file.
    """
    name, _, section = shipped.opened(name_or_path, "models")
    model = read_model(section, name)
    section.source.finish()
    return model


#: Largest dimension or count of a model, far beyond any: products of a few stay finite. [-]
LARGEST: Final = 1e12


def read_model(section: Section, name: str) -> AnyModel:
    """The model that a mapping describes; mistakes are noted in its source, and a stand-in returned."""
    module, record = SCHEMAS[section.word("schema", SCHEMAS)]
    shape = getattr(import_module(module), record)
    others = _words_and_switches(shape)
    of_orders = (*ORDERS, "layer_kinds", NUMERICS) if shape is ModelShape else ()
    section.only((*_TEXTS, *shape.dimensions, *shape.counts, *others, *of_orders))
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
    values |= _chosen(section, others)
    values |= {key: section.text(key) for key in ORDERS if key in section and key in of_orders}
    if "layer_kinds" in section and shape is ModelShape:
        kinds = section.section("layer_kinds").sections("kind of layer")
        full = "latent" if values.get("attention") == "mla" else "full"
        values["layer_kinds"] = tuple((letter, _read_layer_kind(letter, kind, full)) for letter, kind in kinds.items())
    if NUMERICS in section and shape is ModelShape:
        values[NUMERICS] = _read_numerics(section.section(NUMERICS))
    if not section.source.mistakes:
        try:
            return shape(**values)
        except DseError as error:
            section.mistake(None, str(error))
    stand_in: dict[str, Any] = dict.fromkeys(required, 1.0)
    return shape(name=name, **stand_in)


@cache
def _words_and_switches(record: type[Any]) -> dict[str, tuple[str, ...]]:
    """Fields of a record that are a word, with the words, or a switch, with none."""
    kinds = get_type_hints(record)
    return {
        field.name: get_args(kinds[field.name]) if get_origin(kinds[field.name]) is Literal else ()
        for field in fields(record)
        if kinds[field.name] in (bool, bool | None) or get_origin(kinds[field.name]) is Literal
    }


def _chosen(section: Section, choices: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Words and switches that a section has."""
    return {
        key: section.word(key, words) if words else section.switch(key, default=False)
        for key, words in choices.items()
        if key in section
    }


def _read_layer_kind(letter: str, section: Section, full: str) -> tuple[str, str, Sizes]:
    """Mixer, MLP and dimensions of a kind of layer; full attention and a dense MLP where it has no word for them."""
    if len(letter) != 1:
        section.mistake(None, "expected a name of one letter")
    section.only((*BRANCHES, *OF_LAYERS))
    switches = _words_and_switches(ModelShape)
    usual, values = {"mixer": full, "mlp": "dense"}, dict[str, Any]()
    branches = [section.word(key, words, default=usual[key]) for key, words in BRANCHES.items()]
    for key in (key for key in OF_LAYERS if key in section):
        values[key] = section.switch(key, default=False) if key in switches else section.number(key)
    mixer, mlp = ("" if word == "none" else word for word in branches)
    return mixer, mlp, tuple(values.items())


def _read_numerics(section: Section) -> Numerics:
    """Numerics of a model besides its dimensions."""
    choices, names = _words_and_switches(Numerics), [field.name for field in fields(Numerics)]
    section.only(names)
    values = _chosen(section, choices)
    for key in (key for key in names if key in section and key not in choices):
        values[key] = section.number(key)
        if not 0 <= values[key] <= LARGEST:
            section.mistake(key, f"expected a number from 0 to {LARGEST:.0e}")
    return Numerics(**values)
