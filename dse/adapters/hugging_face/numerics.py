"""Numerics of Hugging Face configurations: constants of a model's functions, from which no cost follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from costmodel.training.numerics import USUAL, plain

_GEMMA: Final = {"zero_centered_norms": True, "gate": "geglu", "embedding_scale": True}
_SIGMOID: Final = {"router_score": "sigmoid"}
_CENTERED: Final = {"zero_centered_norms": True}
_GLOBAL: Final = {"router_balance": "global_aux_loss"}
_INTERLEAVED: Final = {"rotary_interleaved": True}
#: Title of a family -> fields that all of its models share.
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    **dict.fromkeys(("Gemma", "Gemma 2", "Gemma 3"), _GEMMA),
    **dict.fromkeys(("DeepSeek-V3", "GLM-4.5", "dots.llm1", "MiniMax-M2"), _SIGMOID),
    **dict.fromkeys(("Qwen3.5", "Qwen3.5-MoE", "Nemotron"), _CENTERED),
    **dict.fromkeys(("Command R", "Command A"), _INTERLEAVED),
    "Qwen3-MoE": _GLOBAL,
    "Qwen3-Next": {**_CENTERED, **_GLOBAL},
    "Llama 4": {**_SIGMOID, **_INTERLEAVED, "no_rope_every": 4.0, "qk_l2_norm": True, "router_balance": "seq_aux_loss"},
    "gpt-oss": {"gate": "quick_geglu", "glu_clamp": 7.0, "glu_offset": 1.0},
    "Grok-1": {"gate": "geglu", "embedding_scale": True, "router_pre_softmax": True},
    "GPT-NeoX": {"rotary_percent": 0.25},
}
#: Field -> keys: whichever there is.
_KEYS: Final = {
    "rotary_base": "rope_theta|rotary_emb_base|attn_config.rope_theta|rope_parameters.rope_theta"
    "|rope_parameters.full_attention.rope_theta",
    "local_rotary_base": "rope_local_base_freq|rope_parameters.sliding_attention.rope_theta",
    "rotary_percent": "partial_rotary_factor|rotary_pct|rope_parameters.partial_rotary_factor",
    "norm_epsilon": "rms_norm_eps|layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps",
    "no_rope_every": "no_rope_layer_interval",
    "glu_clamp": "swiglu_limit",
    "attention_scale": "query_pre_attn_scalar",
    "attention_softcap": "attn_logit_softcapping|max_attn_value",
    "logit_softcap": "final_logit_softcapping",
}
_OF_EXPERTS: Final = {
    "router_scaling": "routed_scaling_factor",
    "router_aux_loss": "router_aux_loss_coef|aux_loss_alpha|ffn_config.moe_loss_weight",
}
#: Keys of the section that stretches rotary positions.
_SCALING: Final = {
    "rotary_scaling_factor": "factor",
    "original_positions": "original_max_position_embeddings",
    "rotary_low_freq_factor": "low_freq_factor",
    "rotary_high_freq_factor": "high_freq_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_mscale": "mscale",
    "yarn_mscale_all_dim": "mscale_all_dim",
}
#: Ways of stretching -> the numbers that each has.
_SCALINGS: Final = {"linear": 1, "llama3": 4, "yarn": 8}


def read_numerics(value: Callable[[str], Any], family: str, *, experts: bool) -> dict[str, Any]:
    """Fields of `Numerics` that a configuration gives and that differ from the defaults.

    `value` returns the value of a key, or None; "|" separates several keys, and a point precedes those of sections.
    `family` is the title of the model's family.
    """
    found: dict[str, Any] = {**_FAMILIES.get(family, {})}
    for name, key in {**_KEYS, **(_OF_EXPERTS if experts else {})}.items():
        found |= _number(name, value(key))
    scaling = value("rope_scaling|rope_parameters")
    own = scaling if isinstance(scaling, dict) else {}
    word = own.get("rope_type", own.get("type"))
    if isinstance(word, str) and word in _SCALINGS:
        found["rotary_scaling"] = word
        for name, key in [*_SCALING.items()][: _SCALINGS[word]]:
            found |= _number(name, own.get(key))
    if experts and value("scoring_func") == "sigmoid":
        found["router_score"] = "sigmoid"
    if experts and value("norm_topk_prob") is False:
        found["router_pre_softmax"] = True
    if experts and value("seq_aux") is True:
        found["router_balance"] = "seq_aux_loss"
    if value("use_qk_norm") is False:
        found.pop("qk_l2_norm", None)
    return {name: plain(own) for name, own in found.items() if own != getattr(USUAL, name)}


def _number(name: str, value: Any) -> dict[str, float]:
    """A field, if its value is a number from 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {name: float(value)} if is_number and 0 <= value < 1e12 else {}
