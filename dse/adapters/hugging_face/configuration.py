"""`config.json` of a Hugging Face model -> the fields of a model file.

`families.yaml` lists which keys of an architecture give which fields, and which values of keys are refused.
`defaults.yaml` has the values of keys that a file omits, `numerics.yaml` constants without a cost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any, Final, get_type_hints

from costmodel.errors import VERY_CLOSE, DseError, shortened
from costmodel.formats.input_files import Section, Source, data_beside, read_text
from costmodel.formats.model_file import ImportedModel, read_model
from costmodel.training.dimensions import MOST_LAYERS, USUAL, plain
from costmodel.training.model import ModelShape
from dse.adapters.hugging_face.layers import ALIASES, REFUSED, WORDS, Family, LayerReader, families
from dse.spaces.formulas.expressions import Expression, Name

CONSTANTS: Final[dict[str, Any]] = data_beside(__file__, "numerics.yaml")
#: `model_type` -> key -> value of its class in `transformers` where a file is silent, unlike that of the family.
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = data_beside(__file__, "defaults.yaml")
_SCALING: Final[Mapping[str, str]] = CONSTANTS["scaling"]
_SCALINGS: Final[Mapping[str, int]] = CONSTANTS["scalings"]
_SCALED: Final = "rope_scaling.{0}|rope_parameters.{0}"


def read_numerics(value: Callable[[str], Any], family: str, *, experts: bool) -> dict[str, Any]:
    """Fields of `Numerics` that a configuration gives and that differ from the defaults.

    `value` returns the value of a key, or None; "|" separates several keys, and a point precedes those of sections.
    `family` is the title of the model's family.
    """
    shared = CONSTANTS["families"].get(family, {}).items()
    numerics: dict[str, Any] = {name: word for name, word in shared if experts or not name.startswith("router_")}
    for name, key in {**CONSTANTS["keys"], **(CONSTANTS["of_experts"] if experts else {})}.items():
        numerics |= _number(name, value(key))
    word = value(_SCALED.format("rope_type")) or value(_SCALED.format("type"))
    if isinstance(word, str) and word in _SCALINGS:
        numerics["rotary_scaling"] = word
        for name, key in [*_SCALING.items()][: _SCALINGS[word]]:
            numerics |= _number(name, value(_SCALED.format(key)))
    for key, words in (CONSTANTS["words_of_experts"] if experts else {}).items():
        numerics |= words.get(str(value(key)), {})
    if value("use_qk_norm") is False:
        numerics.pop("qk_l2_norm", None)
    return {name: plain(value_of) for name, value_of in numerics.items() if value_of != getattr(USUAL, name)}


def _number(name: str, value: Any) -> dict[str, float]:
    """A field, if its value is a number from 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {name: float(value)} if is_number and 0 <= value < 1e12 else {}


#: Tokens of a sequence where a configuration allows more: pre-training seldom takes longer ones.
USUAL_SEQ_LEN: Final = 8192
#: Largest size that is taken for one.
LARGEST: Final = 1e9
#: Keys of the language model within models that see or hear.
TEXT_PARTS: Final = ("thinker_config", "language_config", "llm_config", "text_config")
#: Fields that models without experts lack.
OF_EXPERTS: Final = frozenset({"num_experts", "moe_topk", "moe_ffn_hidden_size", "shared_ffn_hidden_size"})
ACTIVATIONS: Final[Mapping[str, str]] = WORDS["activations"]
NEEDED: Final = frozenset(WORDS["needed"])
WITHOUT_COST: Final = frozenset(WORDS["without_cost"])
#: Fields that are true or false.
SWITCHES: Final = {name for name, kind in get_type_hints(ModelShape).items() if kind in (bool, bool | None)}


def import_model(path: Path, *, name: str = "", seq_len: float | None = None) -> ImportedModel:
    """The model that a Hugging Face configuration describes: a `config.json`, or the folder of one.

    `name` is that of the model, by default that of the file or its folder. `seq_len` is the length of a training
    sequence, by default that of the model's first training, or `USUAL_SEQ_LEN`. [tokens] Raises `DseError` with one
    line for each mistake in the file.
    """
    path = path / "config.json" if path.is_dir() else path
    reader = _ConfigurationReader(read_json(path), name or _name_of(path), seq_len)
    return reader.imported(path.name)


def read_json(path: Path) -> Section:
    """The object in a JSON file.

    Raises `DseError` if the text is not JSON, gives a key twice, or is something else than an object.
    """
    text = read_text(path, "JSON in UTF-8")
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise DseError(f"{path}: not JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise DseError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg.lower()}") from None
    except KeyError as error:
        raise DseError(f"{path}: {shortened(str(error.args[0]))}: given twice in one object") from None
    except ValueError as error:
        raise DseError(f"{path}: not JSON: {str(error).split(';')[0].lower()}") from None
    if not isinstance(data, dict):
        names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
        raise DseError(f"{path}: expected the object of a config.json, got {names.get(type(data), 'a number')}")
    return Section(Source(str(path)), (), data)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; `KeyError` names a key that it has twice."""
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise KeyError(key)
        data[key] = value
    return data


def _name_of(path: Path) -> str:
    """Name of a model by its file, or by the folder of a file that is called as all are."""
    stem = path.resolve().parent.name if path.stem in ("config", "params") else path.stem
    return "".join(letter if letter.isalnum() else "_" for letter in stem).strip("_").lower() or "model"


def nearest_types(word: str, data: Mapping[str, Any]) -> list[str]:
    """Up to three supported `model_type`: near by name, then those whose keys a configuration has."""
    close = get_close_matches(word, [*families(), *ALIASES], n=1, cutoff=VERY_CLOSE)
    alike = {}
    for name, family in families().items():
        present = {key for alternatives in family.keys.values() for key in alternatives.split("|")} & {*data}
        alike[name] = -len(present), len(present and {*NEEDED} - present)
    return [*dict.fromkeys([*close, *sorted(alike, key=lambda name: alike[name])])][:3]


class _ConfigurationReader:
    """Reads one configuration; mistakes are noted in its source."""

    def __init__(self, section: Section, name: str, seq_len: float | None) -> None:
        self.notes: list[str] = []
        self.name = name
        self.asked_seq_len = seq_len
        self.outer = section
        self.section = section
        for key in TEXT_PARTS:
            if isinstance(self.section.data.get(key), dict):
                self.section = Section(section.source, (*self.section.at, key), self.section.data[key])
        if self.section is not section or "vision_config" in section.data:
            self.notes.append("only the language model is read: its parts for images and sound are left out")
        inner, outer = (part.data.get("tie_word_embeddings") for part in (self.section, section))
        inner_decides = inner is True and section.data.get("model_type") in WORDS["inner_ties"]
        self.sections = (self.section, section) if inner_decides else (section, self.section)
        if inner is not None and outer not in (None, inner):
            whole = f"the whole model says {outer!r}, its language model {inner!r}"
            self.notes.append(f"tie_word_embeddings: {inner if inner_decides else outer}: {whole}")
        self.family = self._family()
        self.read: set[str] = {*self.family.only, self.family.window_switch}

    def _family(self) -> Family:
        """The family of the model, by its type or else by its architecture."""
        known = {**{word: word for word in families()}, **ALIASES}
        scan = self.section.data.get("ssm_cfg")  # of files of state-spaces/mamba, without a type
        types = [scan.get("layer", "Mamba1")] if isinstance(scan, dict) else []
        types += [section.data.get("model_type") for section in (self.section, self.outer)]
        words = [word for word in types if isinstance(word, str)]
        classes = self.outer.data.get("architectures")
        class_name = str(classes[0]) if isinstance(classes, list) and classes else ""
        flat = {word.replace("_", ""): word for word in known}
        short = class_name.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
        if class_name.endswith(tuple(WORDS["headless"])):
            self.notes.append(f"architectures: {class_name} has no output layer; one is counted")
        drafts = (word for word in REFUSED if word in class_name)
        known_words = [WORDS["classes"].get(class_name, ""), *words, flat.get(short, ""), *drafts]
        names = [name for word in known_words for name in (word, word.removesuffix("_text"))]
        where = self.outer.source.name
        if {"producer", "quantization"} <= self.outer.data.keys():
            raise DseError(f"{where}: states formats of weights alone; import the config.json of the model")
        if refused := next((name for name in names if name in REFUSED), None):
            raise DseError(f"{where}: model_type: {refused!r} is not supported: it has {REFUSED[refused]}")
        for name in (name for name in names if name in known):
            family = families()[known[name]]
            return replace(family, defaults={**family.defaults, **DEFAULTS.get(name, {})})
        called = next(iter(words), class_name)
        near = ", ".join(nearest_types(called, self.section.data))
        what = f"{called!r} is not supported" if called else "missing"
        raise DseError(
            f"{where}: model_type: {what}; the nearest of {len(known)} that are: {near}. Write one of them if the "
            "architecture is the same, or edit a built-in model: `dse list model llama3_8b`"
        )

    def imported(self, file: str) -> ImportedModel:
        """The model and its fields."""
        fields_of_model = {**self.family.fixed, **self._fields()}
        reader = LayerReader(self.family, self._value, self._whole, self.section.mistake)
        fields_of_model |= reader.fields(fields_of_model)
        fields_of_model["seq_len"] = self.asked_seq_len or self._seq_len()
        numerics = read_numerics(self._value, self.family.title, experts=fields_of_model.get("num_experts", 0) > 0)
        self.section.source.finish()
        self._note_unread()
        called = self.section.data.get("model_type", self.family.title)
        source = f"Hugging Face configuration {file}, model_type {called}"
        shortened = _shortened(fields_of_model) | ({"numerics": numerics} if numerics else {})
        shape = self._shape(shortened, source)
        described = f"{self.family.title}, {_billions(shape.num_parameters)}"
        path = self.outer.data.get("_name_or_path")
        title = path.rsplit("/")[-1] if isinstance(path, str) and path.strip("/. ") else self.name
        texts = {"schema": "model/v1", "title": title, "description": described, "source": source}
        return ImportedModel(shape, {**texts, **shortened}, tuple(self.notes))

    def _shape(self, settings: Mapping[str, Any], source: str) -> ModelShape:
        """The model of some fields."""
        section = Section(Source(self.section.source.name), (), {"schema": "model/v1", "source": source, **settings})
        model = read_model(section, self.name)
        section.source.finish()
        assert isinstance(model, ModelShape)
        return model

    def _value(self, key: str) -> Any:
        """Value of a key in the configuration, or the default of `transformers`; None without either."""
        if "|" in key and "*" in key:
            return next((value for name in key.split("|") if (value := self._value(name)) is not None), None)
        if "*" in key:  # a product of several
            values = [self._value(name) for name in key.split("*")]
            return None if None in values else math.prod(map(self._whole, key.split("*"), values))
        names = key.split("|")
        self.read |= {name.partition(".")[0] for name in names}
        for section in self.sections:
            for name in names:
                value = reduce(_within, name.split("."), section.data)
                if value is not None and (section is self.section or name.startswith("tie_")):
                    return value
        silent = not self.section.data.keys() & {*names}  # null is a value, except for lists
        usual = [self.family.defaults[name] for name in names if name in self.family.defaults]
        return next((value for value in usual if silent or isinstance(value, list)), None)

    def _fields(self) -> dict[str, Any]:
        """Fields that keys of the configuration give."""
        experts: dict[str, Any] = {}
        for name, key in self.family.keys.items():
            value = self._value(key)
            if value is None and name in SWITCHES and key in self.family.defaults:
                value = False  # null
            if value is None:
                ordered = name == "num_layers" and isinstance(self._value(self.family.types), list | str)
                if key.split("|")[0] in NEEDED and not ordered and name not in self.family.optional:
                    self.section.mistake(None, f"{key.split('|')[0]}: missing")
                continue
            if value != "auto":
                said = [word for word in key.split("|") if word.partition(".")[0] in self.section.data]
                experts[name] = self._read(name, [*said, key.split("|")[0]][0], value)
        if experts.get("routing_groups") == 1:
            experts = {name: value_of for name, value_of in experts.items() if not name.startswith("routing_")}
        experts |= self._calculated(experts)
        if not experts.get("num_experts"):
            experts = {name: value for name, value in experts.items() if name not in OF_EXPERTS}
        return experts

    def _calculated(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Fields that formulas of fields and keys give where a file is silent, or change where they read them."""
        calculated: dict[str, int] = {}
        for name, text in self.family.formulas.items():
            formula, known = Expression.parse(text), {**model, **calculated}
            if (name in model) == (name in formula.names):
                read = {word: known.get(word, self._value(word)) for word in formula.names}
                counts = {word: int(value) if isinstance(value, bool) else value for word, value in read.items()}
                values = {word: _number(word, value).get(word, math.nan) for word, value in counts.items()}
                whole = self._whole(name, float(formula.compiled(dict.fromkeys(values, Name()))(values)))
                calculated[name] = whole > 0 if name in SWITCHES else whole
        return calculated

    def _read(self, name: str, key: str, value: Any) -> Any:
        """A field's value from that of a key."""
        if name == "activation":
            return self._activation(key, value)
        if name == "dropout":
            return isinstance(value, int | float) and value > 0
        if name in SWITCHES:
            return Section(self.section.source, self.section.at, {key: value}).switch(key, default=False)
        return self._whole(key, value, MOST_LAYERS if name == "num_layers" else LARGEST, self._least(name))

    def _least(self, name: str) -> int:
        """Least value of a field: where a file gives less, `transformers` makes other weights than a model file."""
        return 0 if name in self.family.optional else {**WORDS["least"], **self.family.least}.get(name, 0)

    def _whole(self, key: str, value: Any, most: float = LARGEST, least: int = 0) -> int:
        """A value that is a whole number, or a list of equal ones."""
        value = value[0] if isinstance(value, list) and value and value == value[:1] * len(value) else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or value != int(value):
            shown = repr(value) if len(repr(value)) < 40 else f"{repr(value)[:36]}..."
            self.section.mistake(key, f"{shown}: expected a whole number from {least} to {most:,.0f}")
            return 1
        return int(value)

    def _activation(self, key: str, value: Any) -> str:
        """The activation function that a configuration names."""
        word = str(value)
        if word not in ACTIVATIONS and not word.startswith("gelu"):
            self.notes.append(f"{key}: {word[:40]} is counted as gelu")
        return ACTIVATIONS.get(word, "gelu")

    def _seq_len(self) -> int:
        """Length of a sequence in pre-training, as far as the configuration tells."""
        longest = self._value("max_position_embeddings|n_positions|max_seq_len|max_sequence_length")
        first = self._value(_SCALED.format("original_max_position_embeddings")) or longest
        if first is None:
            self.notes.append(f"seq_len: {USUAL_SEQ_LEN} assumed; --seq-len sets another")
            return USUAL_SEQ_LEN
        first = self._whole("max_position_embeddings", first)
        if first > USUAL_SEQ_LEN or (longest and longest != first):
            taken = min(first, USUAL_SEQ_LEN)
            self.notes.append(f"seq_len: {taken} tokens, of {longest} that it allows; --seq-len sets another")
        return min(first, USUAL_SEQ_LEN)

    def _note_unread(self) -> None:
        """Name the keys that a model file has no use for."""
        left = [key for key in self.section.data if key not in self.read and key not in WITHOUT_COST]
        left = [key for key in left if key.isidentifier() and self.section.data[key] not in (None, False, 0, [])]
        if self.family.apart:
            self.notes.append(f"{self.family.title}: {self.family.apart}")
        if left:
            shown = ", ".join(left if len(left) <= 16 else [*left[:16], f"{len(left) - 16} more"])
            self.notes.append(f"not in a model file, so that steps are evaluated without: {shown}")


def _within(data: Any, name: str) -> Any:
    """The value of a key in a mapping; None if `data` has another type or lacks the key."""
    return data.get(name) if isinstance(data, dict) else None


def _shortened(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in the order of models, without those that equal their defaults."""
    defaults = {field.name: field.default for field in fields(ModelShape) if field.init}
    always = ("gated_mlp", "activation", "normalization", "position_embedding", "biases", "dropout",
              "tied_embeddings", "seq_len", "vocab_size")  # fmt: skip
    defaults_said = {name: settings[name] for name in defaults if name in settings}
    biases = {
        name for name in ("qkv_bias", "out_bias", "mlp_bias") if defaults_said.get(name) == defaults_said.get("biases")
    }
    return {
        name: value
        for name, value in defaults_said.items()
        if name in always or (value != defaults[name] and name not in biases)
    }


def _billions(parameters: float) -> str:
    """A count of parameters for people.

    >>> _billions(405_853_388_800.0), _billions(124_439_808.0)
    ('405.9 billion parameters', '124.4 million parameters')
    """
    scale, word = (1e9, "billion") if parameters >= 1e9 else (1e6, "million")
    return f"{parameters / scale:.1f} {word} parameters"
