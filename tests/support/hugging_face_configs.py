"""Published configurations of Hugging Face models: the facts that fix their sizes, and their parameters.

Counts are those that the weights' metadata give (safetensors), but where a comment says otherwise;
Transformers 5.23 makes models of as many parameters from these configurations.
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.paths import TEST_DATA

LLAMA = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": False, "vocab_size": 128256,
         "num_key_value_heads": 8, "max_position_embeddings": 131072, "attention_bias": False,
         "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 8192}}  # fmt: skip
QWEN = {"hidden_act": "silu", "tie_word_embeddings": False, "vocab_size": 151936, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": 28, "max_position_embeddings": 32768}  # fmt: skip
DEEPSEEK = {"hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1,
            "max_position_embeddings": 163840,
            "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 4096}}  # fmt: skip
GPT_OSS = {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
           "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "attention_bias": True,
           "sliding_window": 128, "experts_per_token": 4, "tie_word_embeddings": False,
           "max_position_embeddings": 131072}  # fmt: skip
#: Delta nets but for every fourth layer, and a gate behind attention.
DELTA = {"hidden_act": "silu", "attention_bias": False, "head_dim": 256, "linear_conv_kernel_dim": 4,
         "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_value_head_dim": 128,
         "max_position_embeddings": 262144, "full_attention_interval": 4, "mlp_only_layers": []}  # fmt: skip
LLAMA_4 = {"model_type": "llama4_text", "hidden_act": "silu", "head_dim": 128, "num_key_value_heads": 8,
           "intermediate_size_mlp": 16384, "vocab_size": 202048, "attention_chunk_size": 8192,
           "num_experts_per_tok": 1, "no_rope_layers": [], "max_position_embeddings": 1048576}  # fmt: skip


def sizes(layers: int, hidden: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    """The four sizes that all but GPT-2 call by the same names, and more."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        **more,
    }


def alternating(layers: int) -> list[str]:
    """Kinds of layers: windows and full attention in turn."""
    return ["sliding_attention", "full_attention"] * (layers // 2)


#: Model -> its configuration, its parameters, and the shipped model that is the same, where one is.
PUBLISHED: dict[str, tuple[dict[str, Any], int, str]] = {
    "Llama 3.1 405B": (LLAMA | sizes(126, 16384, 128, 53248), 405_853_388_800, "llama3_405b"),
    "Llama 3.1 70B": (LLAMA | sizes(80, 8192, 64, 28672), 70_553_706_496, "llama3_70b"),
    "Llama 3 8B": (LLAMA | sizes(32, 4096, 32, 14336), 8_030_261_248, "llama3_8b"),
    "Llama 3.2 1B": (
        LLAMA | sizes(16, 2048, 32, 8192, tie_word_embeddings=True, head_dim=64), 1_235_814_400, ""
    ),
    "Llama 2 7B": (
        {"model_type": "llama", **sizes(32, 4096, 32, 11008), "vocab_size": 32000,
         "max_position_embeddings": 4096}, 6_738_415_616, "llama2_7b"
    ),
    "GPT-2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "n_ctx": 1024,
         "vocab_size": 50257, "activation_function": "gelu_new", "resid_pdrop": 0.1}, 124_439_808, ""
    ),
    "GPT-2 XL": (
        {"architectures": ["GPT2LMHeadModel"], "n_layer": 48, "n_embd": 1600, "n_head": 25,
         "n_positions": 1024, "vocab_size": 50257}, 1_557_611_200, ""
    ),
    "Pythia 6.9B": (
        {"model_type": "gpt_neox", **sizes(32, 4096, 32, 16384), "vocab_size": 50432, "hidden_act": "gelu",
         "use_parallel_residual": True, "max_position_embeddings": 2048, "rotary_pct": 0.25,
         "tie_word_embeddings": False}, 6_857_302_016, ""
    ),
    "GPT-NeoX 20B": (
        {"architectures": ["GPTNeoXForCausalLM"], **sizes(44, 6144, 64, 24576), "vocab_size": 50432,
         "hidden_act": "gelu_fast", "max_position_embeddings": 2048}, 20_554_567_680, ""
    ),
    "Mistral 7B v0.1": (
        {"model_type": "mistral", **sizes(32, 4096, 32, 14336), "vocab_size": 32000, "num_key_value_heads": 8,
         "sliding_window": 4096, "max_position_embeddings": 32768}, 7_241_732_096, "mistral_7b"
    ),
    "Mistral Nemo 12B": (
        {"model_type": "mistral", **sizes(40, 5120, 32, 14336), "vocab_size": 131072, "head_dim": 128,
         "num_key_value_heads": 8, "sliding_window": None}, 12_247_782_400, ""
    ),
    "Mixtral 8x7B": (
        {"model_type": "mixtral", **sizes(32, 4096, 32, 14336), "vocab_size": 32000, "num_key_value_heads": 8,
         "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
         "max_position_embeddings": 32768}, 46_702_792_704, "mixtral_8x7b"
    ),
    "Mixtral 8x22B": (
        {"model_type": "mixtral", **sizes(56, 6144, 48, 16384), "vocab_size": 32000, "num_key_value_heads": 8,
         "num_local_experts": 8, "num_experts_per_tok": 2}, 140_620_634_112, "mixtral_8x22b"
    ),
    "Qwen2 0.5B": (
        QWEN | sizes(24, 896, 14, 4864, model_type="qwen2", num_key_value_heads=2, tie_word_embeddings=True),
        494_032_768, ""
    ),
    "Qwen2.5 7B": (
        QWEN | sizes(28, 3584, 28, 18944, model_type="qwen2", num_key_value_heads=4, vocab_size=152064),
        7_615_616_512, "qwen2_5_7b"
    ),
    "Qwen2.5 72B": (
        QWEN | sizes(80, 8192, 64, 29568, model_type="qwen2", num_key_value_heads=8, vocab_size=152064),
        72_706_203_648, "qwen2_5_72b"
    ),
    "Qwen1.5 MoE A2.7B": (
        QWEN | sizes(24, 2048, 16, 5632, model_type="qwen2_moe", num_key_value_heads=16, num_experts=60,
                     num_experts_per_tok=4, moe_intermediate_size=1408, decoder_sparse_step=1,
                     shared_expert_intermediate_size=5632), 14_315_784_192, ""
    ),
    "Qwen2 57B-A14B": (
        QWEN | sizes(28, 3584, 28, 18944, model_type="qwen2_moe", num_key_value_heads=4, num_experts=64,
                     num_experts_per_tok=8, moe_intermediate_size=2560, decoder_sparse_step=1,
                     shared_expert_intermediate_size=20480), 57_408_658_944, "qwen2_57b_a14b"
    ),
    "Qwen3 0.6B": (
        QWEN | sizes(28, 1024, 16, 3072, model_type="qwen3", num_key_value_heads=8, head_dim=128,
                     tie_word_embeddings=True), 596_049_920, ""
    ),
    "Qwen3 8B": (
        QWEN | sizes(36, 4096, 32, 12288, model_type="qwen3", num_key_value_heads=8, head_dim=128),
        8_190_735_360, "qwen3_8b"
    ),
    "Qwen3 30B-A3B": (
        QWEN | sizes(48, 2048, 32, 6144, model_type="qwen3_moe", num_key_value_heads=4, head_dim=128,
                     num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
                     decoder_sparse_step=1, mlp_only_layers=[]), 30_532_122_624, "qwen3_30b_a3b"
    ),
    "Qwen3 235B-A22B": (
        QWEN | sizes(94, 4096, 64, 12288, model_type="qwen3_moe", num_key_value_heads=4, head_dim=128,
                     num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536,
                     decoder_sparse_step=1, mlp_only_layers=[]), 235_093_634_560, "qwen3_235b_a22b"
    ),
    "Gemma 7B": (
        {"model_type": "gemma", **sizes(28, 3072, 16, 24576), "num_key_value_heads": 16, "head_dim": 256,
         "vocab_size": 256000, "hidden_act": "gelu", "max_position_embeddings": 8192}, 8_537_680_896, ""
    ),
    "Gemma 2 9B": (
        {"model_type": "gemma2", **sizes(42, 3584, 16, 14336), "num_key_value_heads": 8, "head_dim": 256,
         "vocab_size": 256000, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
         "max_position_embeddings": 8192}, 9_241_705_984, ""
    ),
    "Gemma 3 1B": (
        {"model_type": "gemma3_text", **sizes(26, 1152, 4, 6912), "num_key_value_heads": 1, "head_dim": 256,
         "vocab_size": 262144, "sliding_window": 512, "sliding_window_pattern": 6,
         "max_position_embeddings": 32768}, 999_885_952, ""
    ),
    # The language model alone, by our formulas; the 4,300,079,472 of its weights hold what sees, too.
    "Gemma 3 4B": (
        {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}}, 3_880_263_168, ""
    ),
    "DeepSeek-V2": (
        DEEPSEEK | sizes(60, 5120, 128, 12288, model_type="deepseek_v2", vocab_size=102400, q_lora_rank=1536,
                         num_key_value_heads=128, n_routed_experts=160, n_shared_experts=2, n_group=8,
                         topk_group=3, num_experts_per_tok=6, moe_intermediate_size=1536,
                         first_k_dense_replace=1), 235_741_434_880, "deepseek_v2"
    ),
    "DeepSeek-V2-Lite": (
        DEEPSEEK | sizes(27, 2048, 16, 10944, model_type="deepseek_v2", vocab_size=102400, q_lora_rank=None,
                         num_key_value_heads=16, n_routed_experts=64, n_shared_experts=2, n_group=1,
                         topk_group=1, num_experts_per_tok=6, moe_intermediate_size=1408,
                         first_k_dense_replace=1), 15_706_484_224, "deepseek_v2_lite"
    ),
    # Without multi-token prediction, which has 11.5 billion beside.
    "DeepSeek-V3": (
        DEEPSEEK | sizes(61, 7168, 128, 18432, model_type="deepseek_v3", vocab_size=129280, q_lora_rank=1536,
                         num_key_value_heads=128, n_routed_experts=256, n_shared_experts=1, n_group=8,
                         topk_group=4, num_experts_per_tok=8, moe_intermediate_size=2048,
                         first_k_dense_replace=3, num_nextn_predict_layers=1), 671_026_419_200, "deepseek_v3"
    ),
    "gpt-oss-20b": (
        GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32, "layer_types": alternating(24)},
        20_914_757_184, "gpt_oss_20b"
    ),
    "gpt-oss-120b": (
        GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": alternating(36)},
        116_829_156_672, "gpt_oss_120b"
    ),
    "Qwen3-Next 80B-A3B": (
        DELTA | sizes(48, 2048, 16, 5120, model_type="qwen3_next", num_key_value_heads=2, vocab_size=151936,
                      linear_num_value_heads=32, num_experts=512, num_experts_per_tok=10,
                      moe_intermediate_size=512, shared_expert_intermediate_size=512, decoder_sparse_step=1,
                      tie_word_embeddings=False), 79_674_391_296, "qwen3_next_80b_a3b"
    ),
    # Language models alone of those that see.
    "Qwen3-VL 8B": (
        {"model_type": "qwen3_vl", "vision_config": {}, "tie_word_embeddings": False, "text_config": {
            **sizes(36, 4096, 32, 12288, model_type="qwen3_vl_text", num_key_value_heads=8, head_dim=128),
            "vocab_size": 151936, "max_position_embeddings": 262144}}, 8_190_735_360, "qwen3_8b"
    ),
    "Qwen3-VL 30B-A3B": (
        {"model_type": "qwen3_vl_moe", "vision_config": {}, "text_config": {
            **sizes(48, 2048, 32, 6144, model_type="qwen3_vl_moe_text", num_key_value_heads=4, head_dim=128),
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "decoder_sparse_step": 1, "vocab_size": 151936}}, 30_532_122_624, "qwen3_30b_a3b"
    ),
    "Qwen3.5 27B": (
        {"model_type": "qwen3_5", "vision_config": {}, "tie_word_embeddings": False, "text_config": {
            **DELTA, **sizes(64, 5120, 24, 17408, model_type="qwen3_5_text", num_key_value_heads=4),
            "linear_num_value_heads": 48, "vocab_size": 248320, "mtp_num_hidden_layers": 1,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 16}}, 26_895_998_464, ""
    ),
    "Qwen3.5 122B-A10B": (
        {"model_type": "qwen3_5_moe", "vision_config": {}, "tie_word_embeddings": False, "text_config": {
            **DELTA, "model_type": "qwen3_5_moe_text", "num_hidden_layers": 48, "hidden_size": 3072,
            "num_attention_heads": 32, "num_key_value_heads": 2, "linear_num_value_heads": 64,
            "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
            "shared_expert_intermediate_size": 1024, "vocab_size": 248320}}, 122_111_526_912, ""
    ),
    "Llama 4 Scout": (
        {"model_type": "llama4", "vision_config": {}, "text_config": LLAMA_4 | sizes(
            48, 5120, 40, 8192, num_local_experts=16, interleave_moe_layer_step=1)}, 107_769_861_120,
        "llama_4_scout"
    ),
    "Llama 4 Maverick": (
        LLAMA_4 | sizes(48, 5120, 40, 8192, num_local_experts=128, interleave_moe_layer_step=2,
                        moe_layers=[*range(1, 48, 2)]), 400_711_848_960, "llama_4_maverick"
    ),
    # With the biases of its routers, which Transformers does not count: 14,240.
    "GLM-4.5": (
        {"model_type": "glm4_moe", **sizes(92, 5120, 96, 12288), "num_key_value_heads": 8, "head_dim": 128,
         "attention_bias": True, "use_qk_norm": True, "n_routed_experts": 160, "n_shared_experts": 1,
         "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "first_k_dense_replace": 3, "n_group": 1,
         "topk_group": 1, "vocab_size": 151552, "num_nextn_predict_layers": 1, "hidden_act": "silu",
         "max_position_embeddings": 131072}, 352_797_829_024, "glm_4_5"
    ),
    "DBRX": (
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
         "vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4,
                        "ffn_act_fn": {"name": "silu"}}}, 131_596_523_520, "dbrx"
    ),
    # With the biases of its routers, which Transformers does not count: 15,872.
    "MiniMax-M2": (
        {"model_type": "minimax_m2", **sizes(62, 3072, 48, 1536), "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 200064, "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": True,
         "num_mtp_modules": 3, "shared_intermediate_size": 0, "hidden_act": "silu"}, 228_689_764_864, ""
    ),
    "OLMo 2 7B": (
        {"model_type": "olmo2", **sizes(32, 4096, 32, 11008), "num_key_value_heads": 32, "vocab_size": 100352,
         "max_position_embeddings": 4096, "tie_word_embeddings": False}, 7_298_617_344, ""
    ),
    "Command R": (
        {"model_type": "cohere", **sizes(40, 8192, 64, 22528), "num_key_value_heads": 64,
         "vocab_size": 256000, "hidden_act": "silu", "max_position_embeddings": 8192}, 34_980_831_232, ""
    ),
    # Its paper counts 331.6 billion beside 9.4 billion of embeddings.
    "Nemotron-4 340B": (
        {"model_type": "nemotron", **sizes(96, 18432, 96, 73728), "num_key_value_heads": 8,
         "vocab_size": 256000, "hidden_act": "relu2", "max_position_embeddings": 4096}, 341_029_195_776,
        "nemotron_4_340b"
    ),
    "Llama 2 70B": (
        {"model_type": "llama", **sizes(80, 8192, 64, 28672), "vocab_size": 32000, "num_key_value_heads": 8,
         "max_position_embeddings": 4096}, 68_976_648_192, "llama2_70b"
    ),
    "Qwen3 32B": (
        QWEN | sizes(64, 5120, 64, 25600, model_type="qwen3", num_key_value_heads=8, head_dim=128),
        32_762_123_264, "qwen3_32b"
    ),
    # Its paper counts 256,128 entries of vocabulary, as the shipped file does.
    "Gemma 2 27B": (
        {"model_type": "gemma2", **sizes(46, 4608, 32, 36864), "num_key_value_heads": 16, "head_dim": 128,
         "vocab_size": 256000, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
         "max_position_embeddings": 8192}, 27_227_128_320, ""
    ),
    # With the biases of its routers, which Transformers does not count: 23,040.
    "Kimi K2": (
        DEEPSEEK | sizes(61, 7168, 64, 18432, model_type="kimi_k2", vocab_size=163840, q_lora_rank=1536,
                         num_key_value_heads=64, n_routed_experts=384, n_shared_experts=1, n_group=1,
                         topk_group=1, num_experts_per_tok=8, moe_intermediate_size=2048,
                         first_k_dense_replace=1, num_nextn_predict_layers=0), 1_026_408_232_448, "kimi_k2"
    ),
    # By our formulas; its makers print 314 billion.
    "Grok-1": (
        {"model_type": "grok-1", **sizes(64, 6144, 48, 32768), "num_key_value_heads": 8, "num_experts": 8,
         "num_experts_per_tok": 2, "vocab_size": 131072, "max_position_embeddings": 8192},
        315_684_820_992, "grok_1"
    ),
}  # fmt: skip

#: Those with layers of several kinds.
MIXED: dict[str, tuple[dict[str, Any], int, str]] = {
    name: (row["config"], row["parameters"], row.get("ships", ""))
    for name, row in yaml.safe_load((TEST_DATA / "hugging_face.yaml").read_text()).items()
}
PUBLISHED |= MIXED
