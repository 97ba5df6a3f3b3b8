"""Families of Hugging Face models: which key of a `config.json` is which field of a model.

Defaults are those of the configuration classes of `transformers`, which files leave out at will.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


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
