"""Tables of Hugging Face architectures: which keys of a `config.json` give which fields of a model."""

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
    window: str = "sliding_window"  #: key of the keys that a query sees
    window_switch: str = ""  #: key that must be true for the window to count
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
#: Experts as DeepSeek-V3 has them, beside attention of other kinds.
_ROUTED: Final = {
    **_EXPERTS,
    "num_experts": "n_routed_experts",
    "shared_ffn_hidden_size": "n_shared_experts",
    "first_dense_layers": "first_k_dense_replace",
    "routing_groups": "n_group",
    "routing_group_topk": "topk_group",
    "mtp_layers": "num_nextn_predict_layers|num_mtp_layers",
}
_LATENT: Final = {
    **{key: word for key, word in _SIZES.items() if key != "head_size"},
    **{key: key for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")},
    "v_head_dim": "v_head_dim",
    **_ROUTED,
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
_QKV: Final = {"qkv_bias": "attention_bias"}
_GEMMA: Final = {**_SIZES, **_BIASES, "activation": "hidden_activation|hidden_act"}
_QWEN: Final = {**_LLAMA, "qkv_bias": True}
_QWEN_WINDOW: Final = {**_SILU, "use_sliding_window": False}
#: Mixers that are delta nets but for every fourth, as Qwen3-Next has them.
_DELTA: Final = {
    "linear_key_heads": "linear_num_key_heads",
    "linear_value_heads": "linear_num_value_heads",
    "linear_head_dim": "linear_key_head_dim",
    "linear_conv_kernel": "linear_conv_kernel_dim",
    "mtp_layers": "mtp_num_hidden_layers",
}
_DELTA_SIZES: Final = {
    **_SILU,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
_QWEN3_NEXT: Final = {
    **_LLAMA,
    "qk_norm": True,
    "attention_output_gate": True,
    "linear_attention": "gated_delta_net",
}
_COHERE: Final = {
    **_LLAMA,
    "normalization": "layer_norm_no_bias",
    "parallel_block": True,
    "norms_per_layer": 1,
    "wide_qk_norm": True,
}
_COHERE_USUAL: Final = {"hidden_act": "silu", "tie_word_embeddings": True}
_WIDE_NORMS: Final = {"qk_norm": True, "wide_qk_norm": True}

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
        "DeepSeek-V2",
        {key: word for key, word in _LATENT.items() if key != "mtp_layers"},
        {**_LLAMA, "attention": "mla"},
        _SILU,
        once=("moe_layer_freq",),
    ),
    "deepseek_v3": Family(
        "DeepSeek-V3",
        _LATENT,
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
    "qwen3_next": Family(
        "Qwen3-Next",
        {
            **_SIZES,
            **_BIASES,
            **_EXPERTS,
            **_DELTA,
            "shared_ffn_hidden_size": "shared_expert_intermediate_size",
        },
        {**_QWEN3_NEXT, "shared_expert_gate": True},
        {**_DELTA_SIZES, "decoder_sparse_step": 1},
        sparse_step="decoder_sparse_step",
    ),
    "qwen3_5": Family("Qwen3.5", {**_SIZES, **_BIASES, **_DELTA}, _QWEN3_NEXT, _DELTA_SIZES),
    "qwen3_5_moe": Family(
        "Qwen3.5-MoE",
        {
            **{key: word for key, word in _SIZES.items() if key != "ffn_hidden_size"},
            **_BIASES,
            **_EXPERTS,
            **_DELTA,
            "ffn_hidden_size": "moe_intermediate_size",  # of no layer
            "shared_ffn_hidden_size": "shared_expert_intermediate_size",
        },
        {**_QWEN3_NEXT, "shared_expert_gate": True},
        _DELTA_SIZES,
    ),
    "llama4": Family(
        "Llama 4",
        {
            **_SIZES,
            **_BIASES,
            **_EXPERTS,
            "ffn_hidden_size": "intermediate_size_mlp",
            "moe_ffn_hidden_size": "intermediate_size",
            "shared_ffn_hidden_size": "intermediate_size",
        },
        {**_LLAMA, "window_kind": "chunked"},
        {**_SILU, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
        window="attention_chunk_size",
        full_every="no_rope_layer_interval",
        sparse_step="interleave_moe_layer_step",
    ),
    "glm4": Family(
        "GLM-4", {**_SIZES, **_QKV}, {**_LLAMA, "norms_per_layer": 4}, _SILU | {"attention_bias": True}
    ),
    "glm4_moe": Family(
        "GLM-4.5",
        {**_SIZES, **_QKV, **_ROUTED, "qk_norm": "use_qk_norm"},
        {**_LLAMA, "router_bias": True},
        _SILU,
    ),
    "dots1": Family(
        "dots.llm1",
        {**_SIZES, **_BIASES, **_ROUTED},
        {**_LLAMA, "qk_norm": True, "router_bias": True},
        _SILU,
        window_switch="use_sliding_window",
    ),
    "dbrx": Family(
        "DBRX",
        {
            "num_layers": "n_layers",
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_query_groups": "attn_config.kv_n_heads",
            "ffn_hidden_size": "ffn_config.ffn_hidden_size",
            "vocab_size": "vocab_size",
            "activation": "ffn_config.ffn_act_fn.name",
            "tied_embeddings": "tie_word_embeddings",
            "num_experts": "ffn_config.moe_num_experts",
            "moe_topk": "ffn_config.moe_top_k",
            "moe_ffn_hidden_size": "ffn_config.ffn_hidden_size",
        },
        {**_LLAMA, "normalization": "layer_norm_no_bias"},
        {"ffn_config.ffn_act_fn.name": "silu", "tie_word_embeddings": False},
    ),
    "minimax_m2": Family(
        "MiniMax-M2",
        {
            **_SIZES,
            **_EXPERTS,
            "moe_ffn_hidden_size": "intermediate_size",
            "shared_ffn_hidden_size": "shared_intermediate_size",
            "mtp_layers": "num_mtp_modules",
        },
        {**_LLAMA, **_WIDE_NORMS, "router_bias": True},
        _SILU,
    ),
    "mimo": Family(
        "MiMo",
        {**_SIZES, "mtp_layers": "num_nextn_predict_layers"},
        _QWEN,
        _QWEN_WINDOW,
        window_switch="use_sliding_window",
    ),
    "olmo2": Family("OLMo 2", {**_SIZES, **_BIASES}, {**_LLAMA, **_WIDE_NORMS}, _SILU),
    "olmo3": Family("OLMo 3", {**_SIZES, **_BIASES}, {**_LLAMA, **_WIDE_NORMS}, _SILU, full_every=4),
    "olmoe": Family(
        "OLMoE",
        {**_SIZES, **_BIASES, **_EXPERTS, "moe_ffn_hidden_size": "intermediate_size"},
        {**_LLAMA, **_WIDE_NORMS},
        _SILU,
    ),
    "cohere": Family("Command R", {**_SIZES, **_BIASES, "qk_norm": "use_qk_norm"}, _COHERE, _COHERE_USUAL),
    "cohere2": Family(
        "Command A",
        {**_SIZES, **_BIASES},
        _COHERE,
        {**_COHERE_USUAL, "sliding_window_pattern": 4},
        full_every="sliding_window_pattern",
    ),
    "nemotron": Family(
        "Nemotron",
        {**_SIZES, **_BIASES, "mlp_bias": "mlp_bias"},
        {**_LLAMA, "gated_mlp": False, "normalization": "layer_norm"},
        {"hidden_act": "relu2", "tie_word_embeddings": False},
    ),
    "starcoder2": Family(
        "StarCoder2",
        {**_SIZES, "biases": "use_bias", "dropout": "residual_dropout"},
        {"gated_mlp": False, "normalization": "layer_norm", "position_embedding": "rotary"},
        {"hidden_act": "gelu", "tie_word_embeddings": True, "use_bias": True, "residual_dropout": 0.0},
    ),
    "granitemoe": Family(
        "Granite MoE",
        {
            **_SIZES,
            **_BIASES,
            **_EXPERTS,
            "moe_ffn_hidden_size": "intermediate_size",
            "shared_ffn_hidden_size": "shared_intermediate_size",
        },
        _LLAMA,
        _SILU,
    ),
    "seed_oss": Family(
        "Seed-OSS",
        {
            **_SIZES,
            "qkv_bias": "attention_bias",
            "out_bias": "attention_out_bias",
            "mlp_bias": "mlp_bias",
            "dropout": "residual_dropout",
        },
        {key: word for key, word in _LLAMA.items() if key != "dropout"},
        {**_SILU, "attention_bias": True, "residual_dropout": 0.1},
    ),
    "arcee": Family(
        "Arcee",
        {**_SIZES, **_BIASES, "mlp_bias": "mlp_bias"},
        {**_LLAMA, "gated_mlp": False},
        {"hidden_act": "relu2", "tie_word_embeddings": False},
    ),
    "ernie4_5": Family(
        "ERNIE 4.5",
        {**_SIZES, "biases": "use_bias"},
        {key: word for key, word in _LLAMA.items() if key != "biases"},
        {**_SILU, "tie_word_embeddings": True, "use_bias": False},
    ),
    "ernie4_5_moe": Family(
        "ERNIE 4.5 MoE",
        {
            **_SIZES,
            "biases": "use_bias",
            "num_experts": "moe_num_experts",
            "moe_topk": "moe_k",
            "moe_ffn_hidden_size": "moe_intermediate_size",
            "shared_ffn_hidden_size": "moe_num_shared_experts",
            "first_dense_layers": "moe_layer_start_index",
        },
        {**{key: word for key, word in _LLAMA.items() if key != "biases"}, "router_bias": True},
        {**_SILU, "tie_word_embeddings": True, "use_bias": False},
        once=("moe_layer_interval",),
    ),
    "hunyuan_v1_dense": Family(
        "Hunyuan", {**_SIZES, **_BIASES}, {**_LLAMA, "qk_norm": True}, {**_SILU, "use_qk_norm": True}
    ),
    "internlm2": Family("InternLM 2", {**_SIZES, "qkv_bias": "bias", "out_bias": "bias"}, _LLAMA, _SILU),
    "internlm3": Family(
        "InternLM 3",
        {**_SIZES, "qkv_bias": "qkv_bias", "out_bias": "bias", "mlp_bias": "bias"},
        _LLAMA,
        _SILU,
    ),
    "exaone4": Family("EXAONE 4", _SIZES, {**_LLAMA, "qk_norm": True}, _SILU, full_every=4),
    "stablelm": Family(
        "StableLM",
        {**_SIZES, "qkv_bias": "use_qkv_bias", "parallel_block": "use_parallel_residual"},
        {**_LLAMA, "normalization": "layer_norm"},
        {**_SILU, "use_qkv_bias": False, "use_parallel_residual": False},
    ),
    "grok-1": Family(
        "Grok-1",
        {**_SIZES, **_EXPERTS, "moe_ffn_hidden_size": "intermediate_size"},
        {**_LLAMA, "norms_per_layer": 4},
        {"hidden_act": "gelu", "tie_word_embeddings": True},
    ),
}
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
    **dict.fromkeys(
        ("nemotron_h", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "granitemoehybrid"), _MIXED
    ),
    **dict.fromkeys(("mamba", "mamba2", "rwkv", "lfm2"), "layers without attention"),
    **dict.fromkeys(("gemma4", "gemma3n", "mimo_v2_flash", "step3p7", "step3p5", "nemotron-nas"), _UNLIKE),
    **dict.fromkeys(("kimi_linear", "kimi_k3"), "Kimi delta attention"),
    **dict.fromkeys(("minimax", "minimax_text_01"), "lightning attention"),
    **dict.fromkeys(("bloom", "mpt"), "positions by ALiBi"),
    **dict.fromkeys(("t5", "bart", "bert", "roberta", "whisper"), "an encoder"),
}
