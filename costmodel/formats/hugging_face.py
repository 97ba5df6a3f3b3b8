"""`config.json` of a Hugging Face model -> the fields of a model file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from costmodel.errors import DseError
from costmodel.formats.hugging_face_families import ALIASES, FAMILIES, WITHOUT_COST, Family
from costmodel.formats.model_file import read_model
from costmodel.formats.strict_yaml import Section, Source, read_text
from costmodel.training.dimensions import MOST_LAYERS
from costmodel.training.model import ModelShape

#: Tokens of a sequence where a configuration allows more: pre-training seldom takes longer ones.
USUAL_SEQ_LEN: Final = 8192
#: Largest size that is taken for one.
LARGEST: Final = 1e9
#: Keys that a configuration must give, where its family has them.
NEEDED: Final = ("num_hidden_layers", "n_layer", "hidden_size", "n_embd", "num_attention_heads", "n_head",
                 "intermediate_size", "vocab_size", "num_experts", "n_routed_experts", "num_experts_per_tok",
                 "moe_intermediate_size", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")  # fmt: skip
#: Words of `transformers` -> activations of models.
ACTIVATIONS: Final = {"silu": "silu", "swish": "silu", "relu2": "squared_relu"}
_KINDS: Final = get_type_hints(ModelShape)


@dataclass(frozen=True, slots=True)
class Imported:
    """A model read from a configuration."""

    model: ModelShape
    fields: Mapping[str, Any]  #: what its file says
    notes: tuple[str, ...]  #: what the user should know, a line each


def import_model(path: Path, *, name: str = "", seq_len: float | None = None) -> Imported:
    """The model that a Hugging Face configuration describes.

    Parameters
    ----------
    path : Path
        A `config.json`, or the folder of one.
    name : str, optional
        Of the model; by default that of the file, or of its folder.
    seq_len : float, optional
        Length of a training sequence; by default what the model was first trained for, or
        `USUAL_SEQ_LEN`. [tokens]

    Raises
    ------
    DseError
        With one line for each mistake in the file.
    """
    path = path / "config.json" if path.is_dir() else path
    reader = _ConfigurationReader(_opened(path), name or _name_of(path), seq_len)
    return reader.imported(path.name)


def is_configuration(path: Path) -> bool:
    """Whether a path is that of a configuration, by its name, or of a folder with one."""
    return path.suffix == ".json" or (path.is_dir() and (path / "config.json").exists())


def _opened(path: Path) -> Section:
    """The object that a file holds."""
    try:
        data = json.loads(read_text(path, "JSON in UTF-8"))
    except RecursionError:
        raise DseError(f"{path}: not JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise DseError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg.lower()}") from None
    except ValueError as error:
        raise DseError(f"{path}: not JSON: {str(error).split(';')[0].lower()}") from None
    if not isinstance(data, dict):
        raise DseError(f"{path}: expected the object of a config.json, got {_kind(data)}")
    return Section(Source(str(path)), (), data)


def _kind(data: object) -> str:
    """What a JSON value is, in words."""
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(data), "a number")


def _name_of(path: Path) -> str:
    """Name of a model by its file, or by the folder of a file that is called as all are."""
    stem = path.resolve().parent.name if path.stem in ("config", "params") else path.stem
    return "".join(letter if letter.isalnum() else "_" for letter in stem).strip("_").lower() or "model"


class _ConfigurationReader:
    """Reads one configuration; mistakes are noted in its source."""

    def __init__(self, section: Section, name: str, seq_len: float | None) -> None:
        self.notes: list[str] = []
        self.name = name
        self.asked_seq_len = seq_len
        self.outer = section
        self.section = section
        if isinstance(section.data.get("text_config"), dict):
            self.section = Section(section.source, ("text_config",), section.data["text_config"])
            self.notes.append("only the language model is read: what sees or hears beside it is left out")
        self.family = self._family()
        self.read: set[str] = {*self.family.once, self.family.window_switch}

    def _family(self) -> Family:
        """The family of the model, by its type or else by its architecture."""
        known = {**{word: word for word in FAMILIES}, **ALIASES}
        types = [section.data.get("model_type") for section in (self.section, self.outer)]
        for word in types:
            if isinstance(word, str) and word in known:
                return FAMILIES[known[word]]
        classes = self.outer.data.get("architectures")
        own = str(classes[0]) if isinstance(classes, list) and classes else ""
        flat = {word.replace("_", ""): family for word, family in known.items()}
        if (short := own.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()) in flat:
            return FAMILIES[flat[short]]
        called = next((word for word in types if isinstance(word, str)), own)
        raise DseError(
            f"{self.outer.source.name}: "
            + (f"model_type: {called!r} is not supported" if called else "model_type: missing")
            + f"; supported: {', '.join(sorted(known))}"
        )

    def imported(self, file: str) -> Imported:
        """The model and its fields."""
        found = {**self.family.fixed, **self._fields()}
        found |= self._windows(found) | self._layers_of_experts(found)
        found["seq_len"] = self.asked_seq_len or self._seq_len()
        self.section.source.finish()
        self._note_unread()
        source = f"Hugging Face configuration {file}, {self._called()}"
        shape = self._shape(_shortened(found), source)
        written = self._written(found, source, f"{self.family.title}, {_billions(shape.num_parameters)}")
        return Imported(shape, written, tuple(self.notes))

    def _shape(self, found: Mapping[str, Any], source: str) -> ModelShape:
        """The model of some fields."""
        section = Section(
            Source(self.section.source.name), (), {"schema": "model/v1", "source": source, **found}
        )
        model = read_model(section, self.name)
        section.source.finish()
        assert isinstance(model, ModelShape)
        return model

    def _written(self, found: Mapping[str, Any], source: str, description: str) -> dict[str, Any]:
        """What a model file says."""
        texts = {"schema": "model/v1", "title": self._title(), "description": description, "source": source}
        return {**texts, **_shortened(found)}

    def _title(self) -> str:
        """What the model is called, where the configuration knows."""
        called = self.outer.data.get("_name_or_path")
        return called.rsplit("/")[-1] if isinstance(called, str) and called.strip("/. ") else self.name

    def _called(self) -> str:
        """Its type, as the configuration has it."""
        return f"model_type {self.section.data.get('model_type', self.family.title)}"

    def _value(self, key: str) -> Any:
        """What the configuration says of a key, or `transformers` where it is silent; None for nothing."""
        names = key.split("|")
        self.read |= {*names}
        for section in (self.section, self.outer):
            for name in names:
                if section.data.get(name) is not None and (
                    section is self.section or name.startswith("tie_")
                ):
                    return section.data[name]
        silent = [self.family.defaults[name] for name in names if name in self.family.defaults]
        return silent[0] if silent else None

    def _fields(self) -> dict[str, Any]:
        """Fields that keys of the configuration give."""
        found: dict[str, Any] = {}
        for name, key in self.family.keys.items():
            value = self._value(key)
            if value is None:
                if key.split("|")[0] in NEEDED:
                    self.section.mistake(None, f"{key.split('|')[0]}: missing")
                continue
            found[name] = self._read(name, key.split("|")[0], value)
        if found.get("routing_groups") == 1:
            found = {name: own for name, own in found.items() if not name.startswith("routing_")}
        if "shared_ffn_hidden_size" in found and self.family.keys["shared_ffn_hidden_size"][:2] == "n_":
            found["shared_ffn_hidden_size"] *= found.get("moe_ffn_hidden_size", 0)
        return found

    def _read(self, name: str, key: str, value: Any) -> Any:
        """A field's value from that of a key."""
        if name == "activation":
            return self._activation(key, value)
        if name == "dropout":
            return isinstance(value, int | float) and value > 0
        if _KINDS[name] in (bool, bool | None):
            return Section(self.section.source, self.section.at, {key: value}).switch(key, default=False)
        return self._whole(key, value, MOST_LAYERS if name == "num_layers" else LARGEST)

    def _whole(self, key: str, value: Any, most: float = LARGEST) -> int:
        """A whole number."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= most or value != int(value):
            shown = repr(value) if len(repr(value)) < 40 else f"{repr(value)[:36]}..."
            self.section.mistake(key, f"{shown}: expected a whole number up to {most:,.0f}")
            return 1
        return int(value)

    def _activation(self, key: str, value: Any) -> str:
        """An activation function."""
        word = str(value)
        if word in ACTIVATIONS:
            return ACTIVATIONS[word]
        if not word.startswith("gelu"):
            self.notes.append(f"{key}: {word[:40]} is counted as gelu")
        return "gelu"

    def _windows(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Windows of attention, and which layers have none."""
        window, switch = self._value("sliding_window"), self.family.window_switch
        every = self.family.full_every
        every = self._whole(every, self._value(every)) if isinstance(every, str) else every
        if switch and self._value(switch) is not True:
            self.read |= {"max_window_layers", "layer_types"}
            return {}
        layers = int(found.get("num_layers", 1))
        types = self._value("layer_types")
        if window is None:
            return {}
        if switch and not isinstance(types, list):
            first = self._whole("max_window_layers", self._value("max_window_layers") or 0)
            types = ["full_attention"] * min(first, layers) + ["sliding_attention"] * (layers - first)
        if isinstance(types, list):
            full = [kind == "full_attention" for kind in types]
            every = _period(full)
            if len(full) != layers or every < 0:
                self.notes.append("which layers have windows is no pattern that a model file can say: all "
                                  "are counted with full attention")  # fmt: skip
                return {}
        size = self._whole("sliding_window", window)
        return {} if every == 1 else {"window": size, "full_attention_every": every}

    def _layers_of_experts(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Which layers have experts, where not all have."""
        for key in self.family.once:
            if self._value(key) not in (None, 1):
                self.section.mistake(key, f"{self._value(key)!r}: a model file can only say 1")
        fields: dict[str, Any] = {}
        if self.family.sparse_step:
            fields["moe_layer_freq"] = self._whole(
                self.family.sparse_step, self._value(self.family.sparse_step)
            )
        dense = self._value("mlp_only_layers") or []
        if dense and (dense != list(range(len(dense))) or fields.get("moe_layer_freq", 1) != 1):
            self.section.mistake(
                "mlp_only_layers", f"{str(dense)[:60]}: a model file can only say the first ones"
            )
        return fields | ({"first_dense_layers": len(dense)} if dense else {})

    def _seq_len(self) -> int:
        """Length of a sequence in pre-training, as far as the configuration tells."""
        scaling = self._value("rope_scaling")
        own = scaling if isinstance(scaling, dict) else {}
        longest = self._value("max_position_embeddings|n_positions")
        first = own.get("original_max_position_embeddings") or longest
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
        left = [
            key for key in left if key.isidentifier() and self.section.data[key] not in (None, False, 0, [])
        ]
        if left:
            shown = ", ".join(left if len(left) <= 16 else [*left[:16], f"{len(left) - 16} more"])
            self.notes.append(f"not in a model file, which prices a step without: {shown}")


def _period(full: Sequence[bool]) -> int:
    """Which every-th layer has full attention: 0 none, 1 all; -1 where there is no such number.

    >>> _period([False, True, False, True]), _period([True, True]), _period([True, False])
    (2, 1, -1)
    """
    every = full.index(True) + 1 if any(full) else 0
    expected = [every > 0 and place % every == 0 for place in range(1, len(full) + 1)]
    return every if expected == list(full) else -1


def _shortened(found: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in the order of models, without those that say what is so anyway."""
    defaults = {field.name: field.default for field in fields(ModelShape) if field.init}
    always = ("gated_mlp", "activation", "normalization", "position_embedding", "biases", "dropout",
              "tied_embeddings", "seq_len", "vocab_size")  # fmt: skip
    own = {name: found[name] for name in defaults if name in found}
    biases = {name for name in ("qkv_bias", "out_bias", "mlp_bias") if own.get(name) == own.get("biases")}
    return {
        name: value
        for name, value in own.items()
        if name in always or (value != defaults[name] and name not in biases)
    }


def _billions(parameters: float) -> str:
    """A count of parameters for people.

    >>> _billions(405_853_388_800.0), _billions(124_439_808.0)
    ('405.9 billion parameters', '124.4 million parameters')
    """
    scale, word = (1e9, "billion") if parameters >= 1e9 else (1e6, "million")
    return f"{parameters / scale:.1f} {word} parameters"
