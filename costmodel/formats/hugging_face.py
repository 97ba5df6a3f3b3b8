"""`config.json` of a Hugging Face model -> the fields of a model file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from costmodel.errors import DseError
from costmodel.formats.model_file import read_model
from costmodel.formats.strict_yaml import Section, Source, read_text
from costmodel.training.dimensions import MOST_LAYERS
from costmodel.training.model import ModelShape


@dataclass(frozen=True, slots=True)
class Family:
    """How the configurations of an architecture are read."""

    title: str
    keys: Mapping[str, str]  #: field of a model -> key; several, by "|": whichever there is
    fixed: Mapping[str, Any]  #: fields that all models of the family share
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: key -> value where a file is silent
    window_switch: str = ""  #: key that must be true for `sliding_window` to count
    full_every: int | str = 0  #: every so many layers see all keys where others have a window; or its key
    sparse_step: str = ""  #: key: every so many layers have experts
    once: tuple[str, ...] = ()  #: keys that a model file can only say to be 1, or absent


_SIZES: Final = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads",
    "head_size": "head_dim",
    "ffn_hidden_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings",
}
_BIASES: Final = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_EXPERTS: Final = {
    "num_experts": "num_experts|num_local_experts",
    "moe_topk": "num_experts_per_tok|experts_per_token",
    "moe_ffn_hidden_size": "moe_intermediate_size",
}
_LATENT: Final = {
    **{key: word for key, word in _SIZES.items() if key != "head_size"},
    **{key: key for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")},
    "v_head_dim": "v_head_dim",
    **_EXPERTS,
    "num_experts": "n_routed_experts",
    "shared_ffn_hidden_size": "n_shared_experts",
    "first_dense_layers": "first_k_dense_replace",
    "routing_groups": "n_group",
    "routing_group_topk": "topk_group",
}

_LLAMA: Final = {
    "gated_mlp": True,
    "normalization": "rms_norm",
    "position_embedding": "rotary",
    "biases": False,
    "dropout": False,
}
_GPT: Final = {"gated_mlp": False, "normalization": "layer_norm", "biases": True}
_SILU: Final = {"hidden_act": "silu", "tie_word_embeddings": False}
_GELU: Final = {"hidden_act": "gelu", "tie_word_embeddings": True, "head_dim": 256}
_GEMMA: Final = {**_SIZES, **_BIASES, "activation": "hidden_activation|hidden_act"}
_QWEN: Final = {**_LLAMA, "qkv_bias": True}
_QWEN_WINDOW: Final = {**_SILU, "use_sliding_window": False}

#: `model_type` of a configuration -> its family.
FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("Llama", {**_SIZES, **_BIASES, "mlp_bias": "mlp_bias"}, _LLAMA, _SILU),
    "gpt2": Family(
        "GPT-2",
        {
            "num_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "ffn_hidden_size": "n_inner",
            "vocab_size": "vocab_size",
            "learned_positions": "n_positions",
            "activation": "activation_function",
            "tied_embeddings": "tie_word_embeddings",
            "dropout": "resid_pdrop",
        },
        {**_GPT, "position_embedding": "learned"},
        {"activation_function": "gelu", "tie_word_embeddings": True, "n_positions": 1024, "resid_pdrop": 0.1},
    ),
    "gpt_neox": Family(
        "GPT-NeoX",
        {
            **{key: word for key, word in _SIZES.items() if key not in ("num_query_groups", "head_size")},
            **_BIASES,
            "parallel_block": "use_parallel_residual",
            "parallel_norms": "use_parallel_residual",
            "dropout": "hidden_dropout",
        },
        {**_GPT, "position_embedding": "rotary"},
        {
            "hidden_act": "gelu",
            "tie_word_embeddings": False,
            "attention_bias": True,
            "use_parallel_residual": True,
            "hidden_dropout": 0.0,
        },
    ),
    "mistral": Family("Mistral", _SIZES, _LLAMA, {**_SILU, "num_key_value_heads": 8}),
    "mixtral": Family(
        "Mixtral",
        {**_SIZES, **_EXPERTS, "moe_ffn_hidden_size": "intermediate_size"},
        _LLAMA,
        {**_SILU, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen2": Family("Qwen2", _SIZES, _QWEN, _QWEN_WINDOW, window_switch="use_sliding_window"),
    "qwen2_moe": Family(
        "Qwen2-MoE",
        {**_SIZES, **_EXPERTS, "shared_ffn_hidden_size": "shared_expert_intermediate_size"},
        {**_QWEN, "shared_expert_gate": True},
        {**_QWEN_WINDOW, "decoder_sparse_step": 1},
        window_switch="use_sliding_window",
        sparse_step="decoder_sparse_step",
    ),
    "qwen3": Family(
        "Qwen3",
        {**_SIZES, **_BIASES},
        {**_LLAMA, "qk_norm": True},
        {**_QWEN_WINDOW, "head_dim": 128},
        window_switch="use_sliding_window",
    ),
    "qwen3_moe": Family(
        "Qwen3-MoE",
        {**_SIZES, **_BIASES, **_EXPERTS},
        {**_LLAMA, "qk_norm": True},
        {**_QWEN_WINDOW, "decoder_sparse_step": 1},
        window_switch="use_sliding_window",
        sparse_step="decoder_sparse_step",
    ),
    "gemma": Family("Gemma", _GEMMA, _LLAMA, _GELU),
    "gemma2": Family("Gemma 2", _GEMMA, {**_LLAMA, "norms_per_layer": 4}, _GELU, full_every=2),
    "gemma3_text": Family(
        "Gemma 3",
        _GEMMA,
        {**_LLAMA, "norms_per_layer": 4, "qk_norm": True},
        {
            **_GELU,
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "max_position_embeddings": 131072,
        },
        full_every="sliding_window_pattern",
    ),
    "deepseek_v2": Family(
        "DeepSeek-V2", _LATENT, {**_LLAMA, "attention": "mla"}, _SILU, once=("moe_layer_freq",)
    ),
    "deepseek_v3": Family(
        "DeepSeek-V3",
        {**_LATENT, "mtp_layers": "num_nextn_predict_layers"},
        {**_LLAMA, "attention": "mla", "router_bias": True},
        _SILU,
        once=("moe_layer_freq",),
    ),
    "gpt_oss": Family(
        "gpt-oss",
        {**_SIZES, **_BIASES, **_EXPERTS, "moe_ffn_hidden_size": "intermediate_size"},
        {**_LLAMA, "biases": True, "sinks": True, "router_bias": True},
        {**_SILU, "attention_bias": True, "head_dim": 64},
        full_every=2,
    ),
}
#: Other words for the same -> the family's own.
ALIASES: Final = {"gemma3": "gemma3_text", "kimi_k2": "deepseek_v3"}

#: Keys that change what a model says, or how it is stored or run, and not what a step of training costs.
WITHOUT_COST: Final = frozenset(
    {
        *("architectures", "model_type", "auto_map", "transformers_version", "torch_dtype", "dtype"),
        *("_name_or_path", "use_cache", "_commit_hash", "task_specific_params", "return_dict"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "n_ctx", "pretraining_tp"),
        *("max_position_embeddings", "initializer_range", "initializer_factor"),
        *("gradient_checkpointing", "output_router_logits"),
    }
)  # fmt: skip

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
    """Kind of a JSON value, in words."""
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
        """The data of a model file for an imported model."""
        texts = {"schema": "model/v1", "title": self._title(), "description": description, "source": source}
        return {**texts, **_shortened(found)}

    def _title(self) -> str:
        """Title of the model, where the configuration has one."""
        called = self.outer.data.get("_name_or_path")
        return called.rsplit("/")[-1] if isinstance(called, str) and called.strip("/. ") else self.name

    def _called(self) -> str:
        """Type of the model, as the configuration has it."""
        return f"model_type {self.section.data.get('model_type', self.family.title)}"

    def _value(self, key: str) -> Any:
        """Value of a key in the configuration, or the default of `transformers`; None without either."""
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
        """A value that is a whole number."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= most or value != int(value):
            shown = repr(value) if len(repr(value)) < 40 else f"{repr(value)[:36]}..."
            self.section.mistake(key, f"{shown}: expected a whole number up to {most:,.0f}")
            return 1
        return int(value)

    def _activation(self, key: str, value: Any) -> str:
        """The activation function that a configuration names."""
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
