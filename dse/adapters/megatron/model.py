"""Models as settings of Megatron Core, by the names of its configuration and of Megatron-LM's arguments.

One table of names serves flags of Megatron-LM and configurations of Megatron-Bridge. A property of a model without
a setting is a loss, which exports print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.input_files import data_beside
from costmodel.formats.model_file import load_model
from costmodel.training.dimensions import LAYER_LETTERS, MOST_LAYERS, Numerics, plain
from costmodel.training.model import ModelShape
from dse.spaces.sections.frameworks import conditions_met

#: Most products in a pattern.
MOST_PRODUCTS: Final = 50


def pattern(text: str) -> list[int]:
    """A list of 0 and 1 from sums and multiples of lists, as Python writes them.

    Raises `DseError` if the text is something else, or very long.

    >>> pattern("([0]*2+[1]*3)*2")
    [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    """

    def repeated(part: re.Match[str]) -> str:
        return f"[{','.join([part[1]] * min(int(part[2]), longest // max(len(part[1]), 1) + 1))}]"

    marks, longest = "".join(text.split()), 2 * MOST_LAYERS
    for _ in range(MOST_PRODUCTS if len(text) <= MOST_LAYERS and text.count("*") <= MOST_PRODUCTS else 0):
        marks = re.sub(r"\[([01,]*)\]\*(\d{1,5})", repeated, marks)
        marks = re.sub(r"\((\[[01,]*\])\)", r"\1", marks.replace("]+[", ","))
    if len(layers := re.findall("[01]", marks)) <= MOST_LAYERS and re.fullmatch(r"\[(,*[01](?![01]))+,*\]", marks):
        return [int(mark) for mark in layers]
    raise DseError(f"--moe-layer-freq {text[:40]}: expected a number, or a list of layers such as ([0]*3+[1]*58)")


#: Keys of the program and fields of models, from `keys.yaml`, which describes each table.
KEYS: Final[Mapping[str, Any]] = data_beside(__file__, "keys.yaml")
NUMBERS: Final[Mapping[str, str]] = KEYS["numbers"]
LATENT: Final[Mapping[str, str]] = KEYS["latent"]
#: Letters of a pattern of layers that are read and written (hybrid_layer_allocation.py).
HYBRID_LETTERS: Final = "M*-E"
#: Tokens that the convolution of Mamba-2 sees (mamba_mixer.py).
CONVOLUTION: Final = 4.0
#: Switches that are off unless they are set.
SWITCHES: Final[Mapping[str, str]] = KEYS["model_switches"]
NUMERICS: Final[Mapping[str, str]] = KEYS["numerics"]
#: Losses that balance experts, by the tokens that they count together.
BALANCES: Final = ("aux_loss", "seq_aux_loss", "global_aux_loss")


def model_settings(model: ModelShape) -> dict[str, Any]:
    """A model as settings; switches that are off and numbers that are 0 are left out."""
    settings: dict[str, Any] = {s: int(size) for s, field in NUMBERS.items() if (size := getattr(model, field))}
    if model.num_query_groups != model.num_attention_heads and model.attention != "mla":
        settings |= {"group_query_attention": True, "num_query_groups": int(model.num_query_groups)}
    settings["max_position_embeddings"] = int(model.learned_positions or model.seq_len)
    if model.vocab_multiple:
        settings["make_vocab_size_divisible_by"] = int(model.vocab_multiple)
    settings |= {**_positions(model), "normalization": KEYS["norms"][model.normalization]}
    if model.gated_mlp:
        settings["swiglu" if model.numerics.gate == "swiglu" else "quick_geglu"] = True
    elif model.activation == "squared_relu":
        settings["squared_relu"] = True
    if not model.biases:
        settings["add_bias_linear"] = False
        settings |= {"add_qkv_bias": True} if model.qkv_bias else {}
    settings |= {} if model.dropout else {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    settings |= {"untie_embeddings_and_output_weights": True} if not model.tied_embeddings else {}
    settings |= {setting: True for setting, field in SWITCHES.items() if getattr(model, field)}
    if model.attention == "mla":  # the flag adds the norms of the latents, which the model always has
        settings["qk_layernorm"] = True
        if model.hidden_size % model.num_attention_heads == 0:  # else arguments.py asks for it
            del settings["kv_channels"]  # heads have the sizes of `LATENT`
    if not model.num_experts or model.biases:  # biases of other products are those of the router, too
        settings.pop("moe_router_enable_expert_bias", None)
    said = ({"rotary_base": 10000} if model.position_embedding == "rotary" else {}) | model.numerics.said()
    settings |= {setting: said[field] for setting, field in NUMERICS.items() if field in said}
    settings |= {"provider": name} if (name := provider(model)) and name in KEYS["providers"] else {}
    settings |= (KEYS["built_in"][name] or {"built_in": name}) if (name := built_in(model)) else {}
    settings |= {"softmax_type": "learnable"} if model.sinks else {}
    return {**settings, **_layer_settings(model)}


def provider(model: ModelShape) -> str:
    """The provider or specification of Megatron-Bridge for a model that Megatron-LM has no settings for; else ""."""
    met = conditions_met({name: row["models"] for name, row in KEYS["providers"].items()}, model)
    return next(iter(met), KEYS["built_in_providers"].get(built_in(model), ""))


def built_in(model: ModelShape) -> str:
    """The built-in model of `keys.yaml` with the layers of a model; "" if they are of none."""
    return next((name for name in KEYS["built_in"] if _of_layers(load_model(name)) == _of_layers(model)), "")


def _of_layers(model: Any) -> dict[str, Any]:
    return {str(field): getattr(model, field) for field in KEYS["of_built_in"]}


def _with_layers(model: ModelShape, given: Mapping[str, Any]) -> ModelShape:
    """A model with the layers that settings state. Raises `DseError` if no built-in model has them."""
    stated = {s: value for s in KEYS["built_in_alone"] if (value := given.get(s)) not in (None, 0, 1, "")}
    same = (name for name, row in KEYS["built_in"].items() if stated and stated.items() <= row.items())
    if not (name := given.get("built_in", next(same, ""))) and stated:
        raise DseError(f"{next(iter(stated))}: dse reads that of {', '.join(KEYS['built_in'])} alone")
    return replace(model, **_of_layers(load_model(name))) if name else model


def hybrid_pattern(model: ModelShape) -> str:
    """Layers as hybrid models of Megatron-LM write them, and those of multi-token prediction behind "/"; "" for others.

    A layer with a mixer and an MLP is two of Megatron-LM's.

    >>> from costmodel import load_model
    >>> hybrid_pattern(load_model("nemotron_3_super_120b_a12b"))[-9:], hybrid_pattern(load_model("bamba_9b"))[:8]
    ('MEMEME/*E', 'M-M-M-M-')
    """
    orders = (model.layer_order, model.mtp_order or model.layer_order[-1:])
    parts = [[model.letters[letter] for letter in order] for order in orders]
    words = {"".join(LAYER_LETTERS[letter][:2]): letter for letter in HYBRID_LETTERS} | {"": ""}
    stated = all(not sizes and {mixer, mlp} <= words.keys() for part in parts for mixer, mlp, sizes in part)
    if model.layers or not (orders[0] and stated and model.linear_norm and model.linear_conv_kernel == CONVOLUTION):
        return ""
    order, prediction = ("".join(words[mixer] + words[mlp] for mixer, mlp, _ in part) for part in parts)
    return "/".join([order, *[prediction] * int(model.mtp_layers)]) if "M" in order or order == orders[0] else ""


def branches(model: ModelShape) -> int:
    """Layers of Megatron-LM for each layer of the model: 2 where its hybrid models have a mixer and an MLP."""
    return len(hybrid_pattern(model).partition("/")[0]) // int(model.num_layers) or 1


def _positions(model: ModelShape) -> dict[str, Any]:
    """Settings of position embeddings."""
    scaling, rows = model.numerics.rotary_scaling, KEYS["scaled_positions"]
    constants, of_numerics = rows.get(f"{model.attention}_{scaling}", rows[scaling])
    scaled = {setting: plain(getattr(model.numerics, field)) for setting, field in of_numerics.items()}
    return {"position_embedding_type": KEYS["positions"][model.position_embedding], **constants, **scaled}


def _layer_settings(model: ModelShape) -> dict[str, Any]:
    """Settings of the attention and the experts of each layer."""
    settings, every = dict[str, Any](), int(model.full_attention_every)
    if 0 < model.window < model.seq_len or "Gemma" in provider(model):
        settings["window_size"] = f"{model.window - 1:g},0"  # keys before the query's own
        settings |= {"window_attn_skip_freq": every} if every else {}
    if model.linear_attention == "gated_delta_net":
        settings |= {"experimental_attention_variant": model.linear_attention, "linear_attention_freq": every}
        settings |= {setting: int(getattr(model, field)) for setting, field in KEYS["linear"].items()}
        settings["linear_key_head_dim"] = int(model.features["delta_key"])
    if pattern_of_layers := hybrid_pattern(model):
        settings |= {"hybrid_layer_pattern": pattern_of_layers, "is_hybrid_model": True, "spec": [*KEYS["hybrid_spec"]]}
        settings |= _hybrid_layers(settings)
        settings |= {setting: int(getattr(model, field)) for setting, field in KEYS["mamba"].items()}
    if model.index_topk:
        settings |= KEYS["sparse"]
        settings |= {setting: int(getattr(model, field)) for setting, field in KEYS["index"].items()}
    if model.num_residual_streams > 1:
        settings |= {"enable_mhc_connections": True, "mhc_num_residual_streams": int(model.num_residual_streams)}
    if model.attention == "mla":
        settings["multi_latent_attention"] = True
        settings |= {s: int(getattr(model, field)) for s, field in LATENT.items() if getattr(model, field)}
    if model.num_experts:
        settings |= KEYS["experts"]
        dense, freq, layers = map(int, (model.first_dense_layers, model.moe_layer_freq, model.num_layers))
        if dense or freq > 1:
            turns, rest = divmod(layers - dense, freq)
            parts = [f"[0]*{dense}"] * (dense > 0)
            parts += [f"([0]*{freq - 1}+[1])*{turns}" if freq > 1 else f"[1]*{turns}"]
            parts += [f"[0]*{rest}"] * (rest > 0)
            settings["moe_layer_freq"] = f"({'+'.join(parts)})"
    return settings


def model_losses(model: ModelShape) -> tuple[str, ...]:
    """Properties of a model that Megatron Core has no setting for."""
    if built_in(model) and not provider(model):
        return ()
    layers = ["layers"] if (model.layers or model.layer_order) and not hybrid_pattern(model) else []
    unsaid = (name for name in conditions_met(KEYS["lost_numerics"], model) if name in model.numerics.said())
    values = (f"{name}={plain(getattr(model.numerics, name))}" for name in unsaid)
    return (*layers, *conditions_met(KEYS["lost_properties"], model), *values)


#: Settings without defaults.
NEEDED: Final = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def settings_model(settings: Mapping[str, Any], name: str) -> ModelShape:
    """The model that settings describe, with Megatron-LM's defaults.

    Raises `DseError` if a number is missing that has no default, or layers stand as no model here has them.
    """
    settings = {**settings, **_hybrid_layers(settings)}
    missing = [setting for setting in NEEDED if setting not in settings]
    if missing:
        raise DseError(f"it does not say {', '.join(missing)}")
    given = {**KEYS["defaults"], **settings}
    fields: dict[str, Any] = {f: float(given[s]) for s, f in NUMBERS.items() if s in settings}
    gated = bool(given.get("swiglu") or given.get("quick_geglu"))
    fields["activation"] = "squared_relu" if given.get("squared_relu") else "silu" if gated else "gelu"
    if "ffn_hidden_size" not in settings:
        hidden = fields["hidden_size"]
        fields["ffn_hidden_size"] = float(int(4 * hidden * 2 / 3 / 64) * 64) if gated else 4 * hidden
    mla = bool(given.get("multi_latent_attention"))
    if given.get("group_query_attention") and not mla:
        fields["num_query_groups"] = float(given.get("num_query_groups", 1))
    fields |= _experts(given, fields) | _layers(given, fields)
    fields |= {field: bool(given.get(setting)) for setting, field in SWITCHES.items()}
    fields["router_bias"] |= bool(fields.get("num_experts")) and bool(given.get("add_bias_linear", True))
    if mla:
        fields |= {"attention": "mla", "qk_norm": False}
        fields |= {f: float(given.get(s, 0)) for s, f in LATENT.items()}
    positions_word = given.get("position_embedding_type", "learned_absolute")
    learned = positions_word == "learned_absolute"
    positions = float(given.get("max_position_embeddings", fields["seq_len"]))
    biases = bool(given.get("add_bias_linear", True))
    model = ModelShape(
        **{**fields, **_vocabulary(given)},
        name=name,
        gated_mlp=gated,
        normalization="rms_norm" if given.get("normalization") == "RMSNorm" else "layer_norm",
        position_embedding="learned" if learned else "none" if positions_word in ("none", "alibi") else "rotary",
        learned_positions=positions if learned and positions != fields["seq_len"] else 0.0,
        biases=biases,
        qkv_bias=True if given.get("add_qkv_bias") and not biases else None,
        dropout=any(float(given.get(f"{of}_dropout", 0.1)) > 0 for of in ("hidden", "attention")),
        tied_embeddings=not given.get("untie_embeddings_and_output_weights"),
        sinks=given.get("softmax_type") == "learnable",
        numerics=_read_numerics(given, mla=mla),
    )
    return _with_layers(model, settings)


def _read_numerics(given: Mapping[str, Any], *, mla: bool) -> Numerics:
    """Numerics that settings give, with Megatron-LM's defaults."""
    constants = {field: given[setting] for setting, field in NUMERICS.items() if setting in given}
    if constants.get("router_balance", BALANCES[0]) not in BALANCES:
        constants |= {"router_balance": BALANCES[0], "router_aux_loss": 0.0}
    kind, rope = given.get("position_embedding_type"), given.get("rope_type", "yarn" if mla else "rope")
    is_yarn = kind == "yarn" or (mla and rope == "yarn")
    linear = "linear" if "rotary_seq_len_interpolation_factor" in given else "none"
    scaling = "yarn" if is_yarn else "llama3" if given.get("use_rope_scaling") else linear
    of_numerics = KEYS["scaled_positions"][scaling][1]
    constants |= {"rotary_scaling": scaling} | {field: given[s] for s, field in of_numerics.items() if s in given}
    constants |= KEYS["original_positions"].get(f"mla_{scaling}" if mla else scaling, {})
    constants |= {"gate": "quick_geglu"} if given.get("quick_geglu") else {}
    return Numerics(**constants | KEYS["providers"][given.get("provider", "")]["numerics"])


def usual_vocabulary(given: Mapping[str, Any]) -> tuple[float, str]:
    """Entries of a vocabulary that is not stated, those of its tokenizer if it is known, and words for these. [-]"""
    name, kind = shipped.current_name(str(given.get("tokenizer_model")), "models"), str(given.get("tokenizer_type"))
    if name in shipped.names("models"):
        return load_model(name).vocab_size, f", as of {name},"
    return (float(KEYS["tokenizers"][kind]), f", as of {kind},") if kind in KEYS["tokenizers"] else (51200.0, "")


def _vocabulary(given: Mapping[str, Any]) -> dict[str, float]:
    """Entries of the word table, and their multiple; `padded_vocab_size` decides where they differ."""
    table = given.get("padded_vocab_size")
    multiple = float(given.get("make_vocab_size_divisible_by", 1 if table else 128))
    size = float(given.get("vocab_size", table or usual_vocabulary(given)[0]))
    if table and size + -size % max(multiple * given.get("tensor_model_parallel_size", 1), 1) != table:
        size, multiple = float(table), 1.0
    return {"vocab_size": size, "vocab_multiple": 0.0 if multiple == 1 else multiple}


def _experts(given: Mapping[str, Any], fields: Mapping[str, float]) -> dict[str, Any]:
    """Fields of experts that follow from others; nothing where there are none."""
    if not fields.get("num_experts"):
        return dict.fromkeys((f for s, f in NUMBERS.items() if s.startswith("moe_")), 0.0)
    columns: dict[str, Any] = {
        "moe_topk": float(given["moe_router_topk"]),
        "moe_ffn_hidden_size": float(given.get("moe_ffn_hidden_size", fields["ffn_hidden_size"])),
    }
    freq = str(given.get("moe_layer_freq", 1))
    if not (re.fullmatch("[0-9]{1,5}", freq) and 0 < int(freq) <= fields["num_layers"]):
        return {**columns, **_dense_layers(pattern(freq), int(fields["num_layers"]))}
    return {**columns, "moe_layer_freq": float(freq)}


def _dense_layers(layers: list[int], num_layers: int) -> dict[str, float]:
    """`first_dense_layers` and `moe_layer_freq` of a pattern that is 1 where experts are."""
    first = layers.index(1) if 1 in layers else num_layers
    for freq in range(1, first + 2):
        dense = first + 1 - freq
        if layers == [int(layer > dense and (layer - dense) % freq == 0) for layer in range(1, num_layers + 1)]:
            return {"first_dense_layers": float(dense), "moe_layer_freq": float(freq)}
    raise DseError(
        f"moe_layer_freq: {len(layers)} layers; expected {num_layers}: dense ones, then N-th ones with experts"
    )


def _hybrid_layers(settings: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of layers of a hybrid model, which its pattern gives; none of other models."""
    if not (text := settings.get("hybrid_layer_pattern")):
        return {}
    first, *others = str(text).split("/")
    return {"num_layers": len(first.replace("|", ""))} | ({"mtp_num_layers": len(others)} if others else {})


def _hybrid_fields(given: Mapping[str, Any], fields: Mapping[str, float]) -> dict[str, Any]:
    """Fields of a model with a pattern of layers. Raises `DseError` for letters that no layers here have."""
    main, *others = str(given["hybrid_layer_pattern"]).replace("|", "").split("/")
    prediction = others[0] if others else str(given.get("mtp_hybrid_override_pattern", ""))
    if unknown := "".join(sorted({*main, *prediction} - {*HYBRID_LETTERS})):
        raise DseError(f"hybrid_layer_pattern: layers {unknown}: dse reads {' '.join(HYBRID_LETTERS)}")
    columns: dict[str, Any] = {"layer_order": main, "mtp_order": prediction, "linear_conv_kernel": CONVOLUTION}
    heads = 2 * fields["hidden_size"] / max(float(given["mamba_head_dim"]), 1.0)
    sizes = {"mamba_num_heads": heads, **given}
    columns |= {field: float(sizes[s]) for s, field in KEYS["mamba"].items()} if "M" in main + prediction else {}
    return columns | {"moe_layer_freq": 1.0}


def _layers(given: Mapping[str, Any], fields: Mapping[str, float]) -> dict[str, Any]:
    """Fields of the attention of each layer."""
    streams = float(given.get("mhc_num_residual_streams", 4)) if given.get("enable_mhc_connections") else 1.0
    columns: dict[str, Any] = {
        "num_residual_streams": streams,
        **KEYS["providers"][given.get("provider", "")]["fields"],
    }
    if "window_size" in given:
        before = re.findall(r"-?[0-9]+", str(given["window_size"]))
        if not before:
            raise DseError(f"window_size: {given['window_size']!r}: expected keys before and behind")
        columns["window"] = float(before[0]) + 1
        columns["full_attention_every"] = float(given.get("window_attn_skip_freq", 0))
    if given.get("hybrid_layer_pattern"):
        columns |= _hybrid_fields(given, fields)
    if given.get("experimental_attention_variant") in ("gdn", "gated_delta_net"):
        columns["linear_attention"] = "gated_delta_net"
        columns["full_attention_every"] = float(given.get("linear_attention_freq", 1))
        columns |= {field: float(given[s]) for s, field in KEYS["linear"].items() if s in given}
    if given.get("experimental_attention_variant") == "dsa":
        columns |= {field: float(given.get(s, 0)) for s, field in KEYS["index"].items()} | {"index_weights": True}
    return columns
