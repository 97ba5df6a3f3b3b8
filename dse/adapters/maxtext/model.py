"""Models as keys of MaxText's configurations, and keys as models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from math import lcm
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import data_beside
from costmodel.formats.model_file import load_model, model_names
from costmodel.training.dimensions import Numerics
from costmodel.training.model import ModelShape
from dse.launches.launch import NotExpressible

#: Keys of the program and fields of models, by `keys.yaml`, which says what each table is.
KEYS: Final[Mapping[str, Any]] = data_beside(__file__, "keys.yaml")
SIZES: Final[Mapping[str, str]] = KEYS["sizes"]
EXPERTS: Final[Mapping[str, str]] = KEYS["experts"]
GROUPS: Final = {"n_routing_groups": "routing_groups", "topk_routing_group": "routing_group_topk"}
LATENT: Final = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
DEFAULTS: Final[Mapping[str, Any]] = KEYS["defaults"]
NUMERICS: Final[Mapping[str, str]] = KEYS["numerics"]
#: Keys that MaxText takes of one block alone.
OF_ONE_BLOCK: Final = {"local_rope_max_timescale": "gemma3", "partial_rotary_factor": "qwen3_next"}
ROPES: Final = {"none": "default", "linear": "default", "llama3": "llama3.1", "yarn": "yarn"}
YARN: Final[Mapping[str, str]] = KEYS["yarn"]
#: Llama 3.1's scaling, whose constants stand in MaxText's code.
LLAMA: Final = {"rotary_scaling_factor": 8.0, "original_positions": 8192.0}
GATES: Final = {"swiglu": "silu", "geglu": "gelu"}


PATTERNS: Final[Mapping[str, Any]] = KEYS["patterns"]
BESIDE: Final[Mapping[str, Mapping[str, Any]]] = KEYS["beside"]
#: Numerics that such a block has by itself.
IMPLIED: Final[Mapping[str, Mapping[str, Any]]] = {
    "gemma2": {"zero_centered_norms": True, "embedding_scale": True},
    "gemma3": {"zero_centered_norms": True, "embedding_scale": True},
    "gpt_oss": {"gate": "quick_geglu", "glu_offset": 1.0},
    "llama4": {"rotary_interleaved": True},
    "qwen3_next": {"zero_centered_norms": True},
}


def model_keys(model: ModelShape) -> dict[str, Any]:
    """The model in MaxText's keys. Raises `NotExpressible` if MaxText has none for such layers."""
    keys: dict[str, Any] = {key: int(getattr(model, field)) for key, field in SIZES.items() if getattr(model, field)}
    if model.num_experts:
        keys |= {key: int(getattr(model, field)) for key, field in EXPERTS.items()}
        keys["shared_experts"] = int(model.shared_ffn_hidden_size // model.moe_ffn_hidden_size)
        keys["routed_bias"] = model.router_bias and block(model) == "deepseek"
        if _experts_alone(model):  # where MaxText wants the same
            keys["base_mlp_dim"] = keys["base_moe_mlp_dim"]
        groups = {key: int(getattr(model, field)) for key, field in GROUPS.items()}
        keys |= groups if model.routing_groups else {}
        if block(model) == "qwen3_moe":
            keys["norm_topk_prob"] = not model.numerics.router_pre_softmax
    if model.attention == "mla":
        keys |= {"attention_type": "mla", **{name: int(getattr(model, name)) for name in LATENT}}
    gate = GATES.get(model.numerics.gate, "silu")
    learned = model.position_embedding == "learned"
    if (style := block(model)) in PATTERNS:
        keys |= {key: int(getattr(model, field)) for key, field in PATTERNS[style][1].items()}
    if style == "gemma2":  # a layer there is one with a window and one without
        keys["base_num_decoder_layers"] = int(model.num_layers // 2)
    if style == "llama4":
        cycle = lcm(int(model.full_attention_every), int(model.moe_layer_freq))
        keys |= {"inhomogeneous_layer_cycle_interval": cycle, "use_qk_norm": model.numerics.qk_l2_norm}
    keys.setdefault("use_qk_norm", model.qk_norm)
    numerics = _numerics_keys(model.numerics, latent=model.attention == "mla")
    keys |= {key: value for key, value in numerics.items() if OF_ONE_BLOCK.get(key, style) == style}
    return keys | {
        "mlp_activations": [gate, "linear"] if model.gated_mlp else [model.activation],
        "decoder_block": style,
        "logits_via_embedding": model.tied_embeddings,
        "enable_dropout": model.dropout,
        "attention_bias": bool(model.qkv_bias),
        "trainable_position_size": int(model.learned_positions or model.seq_len) if learned else -1,
        **BESIDE.get(style, {}),
    }


def _experts_alone(model: ModelShape) -> bool:
    """True if all layers have experts."""
    return model.num_experts > 0 and not model.first_dense_layers and model.moe_layer_freq == 1


def _numerics_keys(numerics: Numerics, *, latent: bool) -> dict[str, Any]:
    """Constants of functions; of the scaled rotations only what MaxText reads for them."""
    said = {key: getattr(numerics, field) for key, field in NUMERICS.items()}
    plain = {key: int(v) if float(v).is_integer() else v for key, v in said.items()}
    kept = ("rope_max_timescale", "normalization_layer_epsilon", "routed_scaling_factor")
    keys = {key: value for key, value in plain.items() if value or key in kept}
    if not latent:  # without a loss it balances experts of DeepSeek's block alone
        keys.pop("routed_bias_update_rate", None)
    keys["rope_type"] = ROPES[numerics.rotary_scaling]
    if numerics.router_score != "softmax":
        keys["routed_score_func"] = numerics.router_score
    if numerics.glu_clamp:
        keys["mlp_activations_limit"] = numerics.glu_clamp
    if numerics.rotary_scaling == "linear":
        keys["rope_linear_scaling_factor"] = numerics.rotary_scaling_factor
    if numerics.rotary_scaling == "yarn":
        keys |= {key: int(getattr(numerics, field)) for key, field in YARN.items() if key != "mscale"}
        positions = numerics.rotary_scaling_factor * numerics.original_positions
        keys |= {"mscale": numerics.yarn_mscale, "max_position_embeddings": int(positions)}
    if latent or numerics.rotary_scaling == "yarn":
        keys["rope_interleave"] = numerics.rotary_interleaved
    return keys


def block(model: ModelShape) -> str:
    """MaxText's decoder block of a model. Raises `NotExpressible` if it has none."""
    several = model.window or model.linear_attention != "none"
    for style, (same, _) in PATTERNS.items() if several else ():
        if all(getattr(model, field) == value for field, value in same.items()):
            return style
    if model.layers or several or model.parallel_block:
        raise NotExpressible(f"model {model.name}: dse writes no decoder block of MaxText with its layers")
    if model.attention == "mla":
        return "deepseek"
    if model.position_embedding == "learned":
        return "gpt3"
    if model.num_experts:
        return "qwen3_moe" if model.qk_norm else "mixtral"
    return "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama2"


def model_losses(model: ModelShape) -> list[str]:
    """Fields of a model that its keys do not give back, as `field=value`."""
    back = keys_model(model_keys(model), model.name)
    silent = {"name", "title", "numerics", "features", "layers", "vocab_multiple"}
    silent |= {"activation"} if model.gated_mlp else set()
    silent |= set() if model.numerics.router_aux_loss else {"router_balance"}
    silent |= {"ffn_hidden_size"} if _experts_alone(model) else set()
    pairs = [
        *((field.name, model, back) for field in fields(model) if field.name not in silent),
        *((field.name, model.numerics, back.numerics) for field in fields(Numerics) if field.name not in silent),
    ]
    return [
        f"model: {name}={getattr(one, name)}"
        for name, one, other in pairs
        if getattr(one, name) != getattr(other, name)
    ] + ([f"model: vocab_multiple={model.vocab_multiple:g}"] if model.vocab_multiple > 1 else [])


def keys_model(keys: Mapping[str, Any], name: str) -> ModelShape:
    """The model that keys describe, with the defaults of base.yml.

    Raises `DseError` if it is one of MaxText's by name that is not known, or of a decoder block that is not.
    """
    known = str(keys.get("model_name", "default"))
    if known != "default" and "base_emb_dim" not in keys:
        return _named(known, keys)
    given = {**DEFAULTS, **keys}
    style = str(given["decoder_block"])
    plain_blocks = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek", "gpt3")
    blocks = (*plain_blocks, *PATTERNS)
    if style not in blocks:
        raise DseError(f"decoder_block {style}: not known{suggestion(style, blocks)}")
    sizes: dict[str, Any] = {field: _number(given.get(key, 0)) for key, field in SIZES.items()}
    plain = style == "gpt3"
    first = str(given["mlp_activations"][0])
    gated = len(given["mlp_activations"]) > 1
    latent = given.get("attention_type") == "mla" or style == "deepseek"
    positions = _number(given.get("trainable_position_size", -1))
    same, own_keys = PATTERNS.get(style, ({}, {}))
    pattern = {**same, **{field: _number(given.get(key, 0)) for key, field in own_keys.items()}}
    sizes["num_layers"] *= 2 if style == "gemma2" else 1
    if latent:
        sizes |= {"attention": "mla", **{rank: _number(given.get(rank, 0)) for rank in LATENT}}
    shape: dict[str, Any] = {
        "name": name,
        "gated_mlp": gated,
        "activation": "silu" if gated else first,
        "normalization": "layer_norm" if plain else "rms_norm",
        "position_embedding": "learned" if positions > 0 else "rotary",
        "learned_positions": positions if positions > 0 and positions != sizes["seq_len"] else 0.0,
        "biases": plain,
        "qkv_bias": True if given.get("attention_bias") and not plain and style != "gpt_oss" else None,
        "dropout": bool(given["enable_dropout"]),
        "tied_embeddings": bool(given.get("logits_via_embedding")),
        "qk_norm": (bool(given.get("use_qk_norm")) and style != "llama4") or style.startswith("qwen3"),
        "numerics": _read_numerics(given, first if gated else "silu"),
    }
    return ModelShape(**{**shape, **sizes, **_read_experts(given), **pattern})


def _named(known: str, keys: Mapping[str, Any]) -> ModelShape:
    """A model that ships, by the name that MaxText has for it."""
    for shipped in model_names():
        if shipped.replace("_", "") == re.sub(r"[\W_]", "", known.lower()):
            model = load_model(shipped)
            assert isinstance(model, ModelShape)
            length = _number(keys.get("max_target_length", DEFAULTS["max_target_length"]))
            return replace(model, seq_len=length)
    raise DseError(f"model_name {known}: unknown; copy the keys of configs/models/{known}.yml into the file")


def _read_experts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of experts; nothing where there is one."""
    if _number(given["num_experts"]) <= 1:
        return {}
    fields = {field: _number(given.get(key, 0)) for key, field in EXPERTS.items()}
    fields |= {field: max(_number(given.get(key, 0)), 0.0) for key, field in GROUPS.items()}
    fields["shared_ffn_hidden_size"] = _number(given.get("shared_experts", 0)) * fields["moe_ffn_hidden_size"]
    return {**fields, "router_bias": bool(given.get("routed_bias"))}


def _read_numerics(given: Mapping[str, Any], gate: str) -> Numerics:
    """Constants of functions."""
    usual = Numerics()
    plain: dict[str, Any] = {f: _number(given.get(key) or getattr(usual, f)) for key, f in NUMERICS.items()}
    rope = str(given.get("rope_type", "default"))
    factor = _number(given.get("rope_linear_scaling_factor", 1.0))
    scaling: dict[str, Any] = {"rotary_scaling": "linear", "rotary_scaling_factor": factor} if factor != 1 else {}
    if rope == "llama3.1":
        scaling = {"rotary_scaling": "llama3", **LLAMA}
    elif rope == "yarn":
        usually = {"rope_factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32}
        values = {f: _number(given.get(key, usually.get(key, 1))) for key, f in YARN.items()}
        scaling = {"rotary_scaling": "yarn", **values}
    latent, style = given.get("attention_type") == "mla" or rope == "yarn", str(given["decoder_block"])
    scaling |= {"gate": "geglu" if gate == GATES["geglu"] else "swiglu"}
    scaling |= {"rotary_interleaved": bool(given.get("rope_interleave", True)) if latent else False}
    if style == "llama4":
        scaling |= {"no_rope_every": _number(given.get("nope_layer_interval", 0))}
        scaling |= {"qk_l2_norm": bool(given.get("use_qk_norm"))}
    return Numerics(
        **{**plain, **scaling, **IMPLIED.get(style, {})},
        glu_clamp=max(_number(given.get("mlp_activations_limit", 0.0)), 0.0),
        router_score="sigmoid" if given.get("routed_score_func") == "sigmoid" else "softmax",
        router_balance="seq_aux_loss" if int(given["num_experts"]) > 1 else "aux_loss",  # layers/moe.py
        router_pre_softmax=given["decoder_block"] == "qwen3_moe" and not given.get("norm_topk_prob", False),
    )


def _number(value: Any) -> float:
    """A number, which files may write as 500_000."""
    if isinstance(value, str):
        value = value.replace("_", "")
    if isinstance(value, bool) or value is None:
        raise DseError(f"{value!r}: expected a number")
    return float(value)
