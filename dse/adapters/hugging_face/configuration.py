"""`config.json` of a Hugging Face model -> the fields of a model file.

`families.yaml` lists which keys of an architecture give which fields, and which values of keys are refused.
`numerics.yaml` lists constants of a model's functions, from which no cost follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

from costmodel.errors import VERY_CLOSE, DseError
from costmodel.formats.input_files import Section, Source, data_beside, read_json
from costmodel.formats.model_file import ImportedModel, read_model
from costmodel.training.dimensions import MOST_LAYERS, USUAL, plain
from costmodel.training.model import ModelShape


@dataclass(frozen=True, slots=True)
class Family:
    """Rules for reading the configurations of an architecture."""

    title: str
    keys: Mapping[str, str]  #: field of a model -> key; several, by "|": whichever there is
    fixed: Mapping[str, Any]  #: fields that all models of the family share
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: key -> value where a file is silent
    window: str = "sliding_window"  #: key of the keys that a query sees
    window_switch: str = ""  #: key that must be true for the window to count
    full_every: int | str = 0  #: every so many layers see all keys where others have a window; or its key
    sparse_step: str = ""  #: key: every so many layers have experts
    once: tuple[str, ...] = ()  #: keys that a model file can only say to be 1, or absent


@cache
def families() -> Mapping[str, Family]:
    """`model_type` of a configuration -> its family, from `families.yaml`."""
    data = data_beside(__file__, "families.yaml")
    return {name: Family(**{**entry, "once": tuple(entry.get("once", ()))}) for name, entry in data.items()}


#: Other words for the same -> the family's own; `_text` behind a word says the same.
ALIASES: Final = {
    "gemma3": "gemma3_text",
    **dict.fromkeys(("kimi_k2", "kimi_k25", "glm4_moe_lite"), "deepseek_v3"),
    **dict.fromkeys(("granite", "smollm3", "helium", "phi3"), "llama"),
    **dict.fromkeys(("ministral", "ministral3"), "mistral"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), "qwen2"),
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "granitemoeshared": "granitemoe",
}
_INDEXED: Final = "attention over keys that an indexer picks"
_MIXED: Final = "layers of Mamba, attention and MLPs in an order of their own"
_UNLIKE: Final = "layers whose heads differ from one another"
#: `model_type` -> what of it no kind of kernel here says.
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _INDEXED),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), "compressed keys, and several residual streams"),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl"), "attention over blocks of keys that an indexer picks"),
    **dict.fromkeys(("nemotron_h", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "granitemoehybrid"), _MIXED),
    **dict.fromkeys(("mamba", "mamba2", "rwkv", "lfm2"), "layers without attention"),
    **dict.fromkeys(("gemma4", "gemma3n", "mimo_v2_flash", "step3p7", "step3p5", "nemotron-nas"), _UNLIKE),
    **dict.fromkeys(("kimi_linear", "kimi_k3"), "Kimi delta attention"),
    **dict.fromkeys(("minimax", "minimax_text_01"), "lightning attention"),
    **dict.fromkeys(("bloom", "mpt"), "positions by ALiBi"),
    **dict.fromkeys(("t5", "bart", "bert", "roberta", "whisper"), "an encoder"),
}


CONSTANTS: Final[dict[str, Any]] = data_beside(__file__, "numerics.yaml")
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = CONSTANTS["families"]
_KEYS: Final[Mapping[str, str]] = CONSTANTS["keys"]
_OF_EXPERTS: Final[Mapping[str, str]] = CONSTANTS["of_experts"]
_SCALING: Final[Mapping[str, str]] = CONSTANTS["scaling"]
_SCALINGS: Final[Mapping[str, int]] = CONSTANTS["scalings"]


def read_numerics(value: Callable[[str], Any], family: str, *, experts: bool) -> dict[str, Any]:
    """Fields of `Numerics` that a configuration gives and that differ from the defaults.

    `value` returns the value of a key, or None; "|" separates several keys, and a point precedes those of sections.
    `family` is the title of the model's family.
    """
    numerics: dict[str, Any] = {**_FAMILIES.get(family, {})}
    for name, key in {**_KEYS, **(_OF_EXPERTS if experts else {})}.items():
        numerics |= _number(name, value(key))
    scaling = value("rope_scaling|rope_parameters")
    scaling_section = scaling if isinstance(scaling, dict) else {}
    word = scaling_section.get("rope_type", scaling_section.get("type"))
    if isinstance(word, str) and word in _SCALINGS:
        numerics["rotary_scaling"] = word
        for name, key in [*_SCALING.items()][: _SCALINGS[word]]:
            numerics |= _number(name, scaling_section.get(key))
    if experts and value("scoring_func") == "sigmoid":
        numerics["router_score"] = "sigmoid"
    if experts and value("norm_topk_prob") is False:
        numerics["router_pre_softmax"] = True
    if experts and value("seq_aux") is True:
        numerics["router_balance"] = "seq_aux_loss"
    if value("use_qk_norm") is False:
        numerics.pop("qk_l2_norm", None)
    return {name: plain(value_of) for name, value_of in numerics.items() if value_of != getattr(USUAL, name)}


def _number(name: str, value: Any) -> dict[str, float]:
    """A field, if its value is a number from 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {name: float(value)} if is_number and 0 <= value < 1e12 else {}


#: Keys that change what a model says, or how it is stored or run, and not what a step of training costs.
WITHOUT_COST: Final = frozenset(
    {
        *("architectures", "model_type", "auto_map", "transformers_version", "torch_dtype", "dtype"),
        *("_name_or_path", "use_cache", "_commit_hash", "task_specific_params", "return_dict"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "n_ctx", "pretraining_tp"),
        *("max_position_embeddings", "initializer_range", "initializer_factor"),
        *("gradient_checkpointing", "output_router_logits", "quantization_config", "topk_method", "ep_size"),
    }
)  # fmt: skip

#: Tokens of a sequence where a configuration allows more: pre-training seldom takes longer ones.
USUAL_SEQ_LEN: Final = 8192
#: Largest size that is taken for one.
LARGEST: Final = 1e9
#: Keys that a configuration must give, where its family has them.
NEEDED: Final = ("num_hidden_layers", "n_layer", "hidden_size", "n_embd", "num_attention_heads", "n_head",
                 "intermediate_size", "vocab_size", "num_experts", "n_routed_experts", "num_experts_per_tok",
                 "moe_intermediate_size", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "d_model",
                 "n_heads", "n_layers", "num_local_experts", "intermediate_size_mlp",
                 "attn_config.kv_n_heads", "ffn_config.ffn_hidden_size", "ffn_config.moe_num_experts",
                 "ffn_config.moe_top_k")  # fmt: skip
#: Words of `transformers` -> activations of models.
ACTIVATIONS: Final = {"silu": "silu", "swish": "silu", "relu2": "squared_relu"}
_KINDS: Final = get_type_hints(ModelShape)


def import_model(path: Path, *, name: str = "", seq_len: float | None = None) -> ImportedModel:
    """The model that a Hugging Face configuration describes.

    Raises `DseError` with one line for each mistake in the file.

    Parameters
    ----------
    path : Path
        A `config.json`, or the folder of one.
    name : str, optional
        Of the model; by default that of the file, or of its folder.
    seq_len : float, optional
        Length of a training sequence; by default what the model was first trained for, or
        `USUAL_SEQ_LEN`. [tokens]
    """
    path = path / "config.json" if path.is_dir() else path
    reader = _ConfigurationReader(read_json(path, "the object of a config.json"), name or _name_of(path), seq_len)
    return reader.imported(path.name)


def _name_of(path: Path) -> str:
    """Name of a model by its file, or by the folder of a file that is called as all are."""
    stem = path.resolve().parent.name if path.stem in ("config", "params") else path.stem
    return "".join(letter if letter.isalnum() else "_" for letter in stem).strip("_").lower() or "model"


def nearest_types(word: str, data: Mapping[str, Any]) -> list[str]:
    """Up to three supported `model_type`: near by name, then those whose keys a configuration has."""
    close = get_close_matches(word, [*families(), *ALIASES], n=1, cutoff=VERY_CLOSE)
    alike = {}
    for name, family in families().items():
        keys = {key for alternatives in family.keys.values() for key in alternatives.split("|")}
        present = len(keys & {*data})
        alike[name] = -present, present and len((keys & {*NEEDED}) - {*data})
    return [*dict.fromkeys([*close, *sorted(alike, key=lambda name: alike[name])])][:3]


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
        if self.section is not section or "vision_config" in section.data:
            self.notes.append("only the language model is read: what sees or hears beside it is left out")
        self.family = self._family()
        self.read: set[str] = {*self.family.once, self.family.window_switch}

    def _family(self) -> Family:
        """The family of the model, by its type or else by its architecture."""
        known = {**{word: word for word in families()}, **ALIASES}
        types = [section.data.get("model_type") for section in (self.section, self.outer)]
        words = [word for word in types if isinstance(word, str)]
        classes = self.outer.data.get("architectures")
        class_name = str(classes[0]) if isinstance(classes, list) and classes else ""
        flat = {word.replace("_", ""): word for word in known}
        short = class_name.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
        for word in [*words, flat.get(short, "")]:
            for name in (word, word.removesuffix("_text")):
                if name in known:
                    return families()[known[name]]
                if name in REFUSED:
                    raise DseError(f"{self.outer.source.name}: model_type: {word!r} is not supported: it has "
                                   f"{REFUSED[name]}")  # fmt: skip
        called = next(iter(words), class_name)
        near = ", ".join(nearest_types(called, self.section.data))
        raise DseError(
            f"{self.outer.source.name}: "
            + (f"model_type: {called!r} is not supported" if called else "model_type: missing")
            + f"; the nearest of {len(known)} that are: {near}. Write one of them if the architecture is the "
            "same, or edit a built-in model: `dse list model llama3_8b`"
        )

    def imported(self, file: str) -> ImportedModel:
        """The model and its fields."""
        fields_of_model = {**self.family.fixed, **self._fields()}
        fields_of_model |= (
            self._windows(fields_of_model) | self._linear(fields_of_model) | self._layers_of_experts(fields_of_model)
        )
        fields_of_model["seq_len"] = self.asked_seq_len or self._seq_len()
        numerics = read_numerics(self._value, self.family.title, experts=fields_of_model.get("num_experts", 0) > 0)
        self.section.source.finish()
        self._note_unread()
        source = f"Hugging Face configuration {file}, {self._called()}"
        shortened = _shortened(fields_of_model) | ({"numerics": numerics} if numerics else {})
        shape = self._shape(shortened, source)
        written = self._written(shortened, source, f"{self.family.title}, {_billions(shape.num_parameters)}")
        return ImportedModel(shape, written, tuple(self.notes))

    def _shape(self, found: Mapping[str, Any], source: str) -> ModelShape:
        """The model of some fields."""
        section = Section(Source(self.section.source.name), (), {"schema": "model/v1", "source": source, **found})
        model = read_model(section, self.name)
        section.source.finish()
        assert isinstance(model, ModelShape)
        return model

    def _written(self, found: Mapping[str, Any], source: str, description: str) -> dict[str, Any]:
        """The data of a model file for an imported model."""
        texts = {"schema": "model/v1", "title": self._title(), "description": description, "source": source}
        return {**texts, **found}

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
        self.read |= {name.partition(".")[0] for name in names}
        for section in (self.section, self.outer):
            for name in names:
                value = _inner(section.data, name.split("."))
                if value is not None and (section is self.section or name.startswith("tie_")):
                    return value
        silent = [self.family.defaults[name] for name in names if name in self.family.defaults]
        return silent[0] if silent else None

    def _fields(self) -> dict[str, Any]:
        """Fields that keys of the configuration give."""
        experts: dict[str, Any] = {}
        for name, key in self.family.keys.items():
            value = self._value(key)
            if value is None:
                if key.split("|")[0] in NEEDED:
                    self.section.mistake(None, f"{key.split('|')[0]}: missing")
                continue
            experts[name] = self._read(name, key.split("|")[0], value)
        if experts.get("routing_groups") == 1:
            experts = {name: value_of for name, value_of in experts.items() if not name.startswith("routing_")}
        heads = max(experts.get("num_attention_heads", 1), 1)
        if experts.get("kv_lora_rank") and experts.get("hidden_size", 1) % heads:
            experts["head_size"] = experts.get("qk_nope_head_dim", 1)  # latent attention has sizes of its own
        if "shared_ffn_hidden_size" in experts and "shared_experts" in self.family.keys["shared_ffn_hidden_size"]:
            experts["shared_ffn_hidden_size"] *= experts.get("moe_ffn_hidden_size", 0)
        return experts

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
        window, switch = self._value(self.family.window), self.family.window_switch
        every = self.family.full_every
        every = self._whole(every, self._value(every)) if isinstance(every, str) else every
        if switch and self._value(switch) is not True:
            self.read |= {"max_window_layers", "layer_types"}
            return {}
        layers = int(found.get("num_layers", 1))
        types, rotated = self._value("layer_types"), self._value("no_rope_layers")
        if window is None:
            return {}
        if rotated and not types and isinstance(rotated, list):
            types = ["chunked_attention" if one else "full_attention" for one in rotated]
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
        size = self._whole(self.family.window, window)
        return {} if every == 1 else {"window": size, "full_attention_every": every}

    def _linear(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Which layers have full attention, where the others have none."""
        if found.get("linear_attention", "none") == "none":
            return {}
        every = self._whole("full_attention_interval", self._value("full_attention_interval"))
        if isinstance(types := self._value("layer_types"), list):
            every = _period([kind == "full_attention" for kind in types])
            if every < 0 or len(types) != found.get("num_layers"):
                self.section.mistake("layer_types", "a model file can only say every so many layers")
        if self._value("linear_value_head_dim") != self._value("linear_key_head_dim"):
            self.section.mistake("linear_value_head_dim", "a model file can only say that of keys")
        return {"full_attention_every": every}

    def _layers_of_experts(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Which layers have experts, where not all have."""
        for key in self.family.once:
            if self._value(key) not in (None, 1):
                self.section.mistake(key, f"{self._value(key)!r}: a model file can only say 1")
        fields: dict[str, Any] = {}
        if self.family.sparse_step:
            fields["moe_layer_freq"] = self._whole(self.family.sparse_step, self._value(self.family.sparse_step))
        step, layers = fields.get("moe_layer_freq", 1), found.get("num_layers", 1)
        expected = list(range(max(step, 1) - 1, layers, max(step, 1)))
        if self._value("moe_layers") not in (None, [], expected):
            self.section.mistake("moe_layers", "a model file can only say every so many layers")
        dense = self._value("mlp_only_layers") or []
        if isinstance(kinds := self._value("mlp_layer_types"), list):
            dense = [index for index, kind in enumerate(kinds) if kind == "dense"]
        places = len(dense) if isinstance(dense, list) else 0
        if dense and (dense != list(range(places)) or fields.get("moe_layer_freq", 1) != 1):
            self.section.mistake("mlp_only_layers", f"{str(dense)[:60]}: a model file can only say the first ones")
        return fields | ({"first_dense_layers": places} if places else {})

    def _seq_len(self) -> int:
        """Length of a sequence in pre-training, as far as the configuration tells."""
        scaling = self._value("rope_scaling|rope_parameters")
        scaling_section = scaling if isinstance(scaling, dict) else {}
        longest = self._value("max_position_embeddings|n_positions|max_seq_len")
        first = scaling_section.get("original_max_position_embeddings") or longest
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
        if left:
            shown = ", ".join(left if len(left) <= 16 else [*left[:16], f"{len(left) - 16} more"])
            self.notes.append(f"not in a model file, which prices a step without: {shown}")


def _inner(data: Mapping[str, Any], names: Sequence[str]) -> Any:
    """A value within mappings within mappings, None where there is none.

    >>> _inner({"attn_config": {"kv_n_heads": 8}}, ["attn_config", "kv_n_heads"])
    8
    """
    for name in names[:-1]:
        inner = data.get(name)
        data = inner if isinstance(inner, dict) else {}
    return data.get(names[-1])


def _period(full: Sequence[bool]) -> int:
    """Which every-th layer has full attention: 0 none, 1 all; -1 where there is no such number.

    >>> _period([False, True, False, True]), _period([True, True]), _period([True, False])
    (2, 1, -1)
    """
    every = full.index(True) + 1 if any(full) else 0
    expected = [every > 0 and layer % every == 0 for layer in range(1, len(full) + 1)]
    return every if expected == list(full) else -1


def _shortened(found: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in the order of models, without those that say what is so anyway."""
    defaults = {field.name: field.default for field in fields(ModelShape) if field.init}
    always = ("gated_mlp", "activation", "normalization", "position_embedding", "biases", "dropout",
              "tied_embeddings", "seq_len", "vocab_size")  # fmt: skip
    defaults_said = {name: found[name] for name in defaults if name in found}
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
