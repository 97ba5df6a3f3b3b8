"""How many parameters of a rank AICB's generator counts [AICB]_.

Two matrices in an MLP whether gated or not, two or four word tables, tables of words and positions on every
stage, a shared expert twice: the count decides the sizes of messages, so it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.profiles.simai.aicb_run import GeneratorRun, Release

#: Release -> copies of the word table that it counts.
WORD_TABLES: Final[Mapping[str, int]] = {
    "2024-10": 2,
    "2024-11": 4,
    "2024-12": 4,
    "2025-01": 4,
    "2025-09": 4,
}


def parameters(run: GeneratorRun, release: Release) -> tuple[FloatArray, FloatArray]:
    """Parameters of a rank as the generator counts them: without experts, and of its experts. [-]"""
    hidden, shared, latent = run.hidden_size, run.sequence_parallel > 0, run.is_latent
    vocabulary = padded_vocabulary(run, run.make_vocab_size_divisible_by * run.tp) / run.tp
    norms = np.where(shared, 2 * hidden, 0.0)
    layer = np.where(latent, latent_attention(run), attention(run)) + norms
    sparse = run.num_experts > 0
    shared_expert = np.where(latent & (run.num_shared_experts > 0), mlp(run), 0.0)
    of_experts = np.where(latent, 3.0, 2.0) * hidden * run.ffn_hidden_size / run.tp
    of_experts = np.where(sparse, np.floor(run.num_experts / run.ep) * of_experts + shared_expert, 0.0)
    head = vocabulary * (hidden + np.where(run.add_bias_linear > 0, 1.0, 0.0))
    tables = WORD_TABLES[release] * vocabulary * hidden + run.seq_len * hidden + np.where(shared, head, 0.0)
    leading, layers = run.leading_layers, run.stage_layers
    dense = (
        layers * layer + leading * mlp(run) + (layers - leading) * np.where(sparse, shared_expert, mlp(run))
    )
    return dense + tables, (layers - leading) * of_experts


def padded_vocabulary(run: GeneratorRun, multiple: FloatArray) -> FloatArray:
    """Entries of the word table, a multiple of what ranks can share out. [-]"""
    padded: FloatArray = np.ceil(run.vocab_size / multiple) * multiple
    return padded


def attention(run: GeneratorRun) -> FloatArray:
    """Parameters of attention. Heads are as wide as whole numbers allow. [-]"""
    heads, hidden, tp = run.num_attention_heads, run.hidden_size, run.tp
    width = np.where(heads > 0, np.floor(hidden / np.maximum(heads, 1)) * heads, hidden)
    return 4 * hidden * width / tp + biases(run, split=3 * width, whole=hidden)


def latent_attention(run: GeneratorRun) -> FloatArray:
    """Parameters of latent attention, the norms of its latents with scale and offset. [-]"""
    hidden, heads, tp = run.hidden_size, run.num_attention_heads, run.tp
    queries = heads * (run.qk_nope_head_dim + run.qk_rope_head_dim)
    keys_values, context = heads * (run.qk_nope_head_dim + run.v_head_dim), heads * run.v_head_dim
    latents = run.q_lora_rank + run.kv_lora_rank + run.qk_rope_head_dim
    ups = run.q_lora_rank * queries + run.kv_lora_rank * keys_values + context * hidden
    norms = 2 * (run.q_lora_rank + run.kv_lora_rank)
    own = biases(run, split=queries + keys_values, whole=latents + hidden)
    return hidden * latents + ups / tp + norms + own


def mlp(run: GeneratorRun) -> FloatArray:
    """Parameters of an MLP. [-]"""
    ffn, hidden = run.ffn_hidden_size, run.hidden_size
    return 2 * hidden * ffn / run.tp + biases(run, split=ffn, whole=hidden)


def biases(run: GeneratorRun, *, split: FloatArray, whole: FloatArray) -> FloatArray:
    """Biases of products, of outputs that are shared out and of those that every rank has. [-]"""
    own: FloatArray = np.where(run.add_bias_linear > 0, split / run.tp + whole, 0.0)
    return own
