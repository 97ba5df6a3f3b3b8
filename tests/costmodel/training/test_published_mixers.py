"""Mixers of 2025 and 2026: parameters, FLOP, bytes and exchanges, by arithmetic from their publications."""

import json
from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, step
from costmodel.kernels.kernel_tables import transformer_pointwise
from costmodel.kernels.products import fused_attention
from costmodel.steps.micro_batch.micro_batch import cost_table
from costmodel.steps.micro_batch.rank_memory import layer_memory
from dse.adapters.hugging_face.configuration import import_model
from tests.support.cases import cases
from tests.support.hugging_face_configs import PUBLISHED
from tests.support.runs import ranks_of

SYSTEM = load_system("h100_80g_dgx")


def imported(name, tmp_path, **options):
    """The model of a configuration."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[name][0]))
    return import_model(path, **options).model


def seen(tokens: int, most: int) -> float:
    """Keys that a query sees on average if it sees at most so many of those before it, and its own."""
    return sum(min(number, most) for number in range(1, tokens + 1)) / tokens


# DeepSeek Sparse Attention, arXiv 2512.02556: 64 heads of 128 score all keys, 2,048 are seen by 128 heads.


@pytest.mark.parametrize("tokens", [1024, 8192])
def test_an_indexer_and_the_keys_that_it_picks_have_the_published_parameters_and_work(tokens):
    sparse, dense = (
        replace(model, seq_len=tokens, mtp_layers=0)
        for model in (load_model("deepseek_v3_2"), load_model("deepseek_v3"))
    )
    indexer = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    assert sparse.num_parameters - dense.num_parameters == 61 * indexer
    core = 128 * (192 + 128)
    more = 61 * (indexer - 2 * 128 + 64 * 128 * tokens / 2 + core * (seen(tokens, 2048) - tokens / 2))
    assert sparse.forward_flops(causal=True) - dense.forward_flops(causal=True) == pytest.approx(2 * more, rel=1e-12)


@pytest.mark.parametrize(("name", "heads", "tokens"), [("deepseek_v3_2", 64, 65536), ("glm_5", 32, 4096)])
def test_an_indexer_and_its_loss_take_the_flop_of_megatron_bridge(name, heads, tokens):
    """Scores of all keys before a query; gradients, and scores of the core as a target, of those picked."""
    model = replace(load_model(name), seq_len=tokens, mtp_layers=0)
    gemms = cost_table(ranks_of(model, DesignPoints.of(tp=1))).gemms
    indexers = [n for n, label in enumerate(gemms.labels) if label.kernel == "indexer"]  # of both kinds of layers
    flops = (2 * gemms.m * gemms.n * gemms.k * gemms.count)[0, indexers].sum() / len(model.kinds)
    all_keys, picked = (tokens + 1) / 2, 2048 - 2048 * 2047 / (2 * tokens)
    scores = heads * 128 * (2 * all_keys + 4 * picked)
    assert flops == pytest.approx(tokens * (scores + 2 * picked * model.num_attention_heads * 576), rel=1e-3)


def test_sparse_latent_attention_runs_in_the_width_of_latents():
    """Queries of 512 + 64, outputs of 512, one latent for all heads, padded to 64 of a rank, as FlashMLA runs it."""
    model = replace(load_model("deepseek_v3_2"), seq_len=8192)
    run = ranks_of(model, DesignPoints.of(tp=[1, 2, 4, 8]))
    [core] = {kernel for layer in model.kinds for kernel in layer.kernels if kernel.is_core}
    work = fused_attention(run, core, "forward")
    heads = np.array([128, 64, 64, 64])
    assert work.flops == pytest.approx(2 * heads * (576 + 512) * 8192 * seen(8192, 2048), rel=1e-12)


def test_ranks_of_a_sequence_gather_latents_whole():
    """576 + 128 features of a token, for any number of tensor-parallel ranks; dense latent attention shares heads."""
    design = DesignPoints.of(tp=[1, 4], cp=2, cp_communication="all_gather")
    times = {}
    for name in ("deepseek_v3_2", "deepseek_v3"):
        model = replace(load_model(name), seq_len=131072, num_layers=4, mtp_layers=0)
        times[name] = step(model, SYSTEM, design).cp_communication_time
        layer = next(iter(model.kinds))
        if name == "deepseek_v3_2":
            alone = layer_memory(ranks_of(model, DesignPoints.of(tp=[1, 4])), layer).working
            assert np.all(layer_memory(ranks_of(model, design), layer).working - alone / 2 > 0)
    one, four = times["deepseek_v3_2"]
    assert four == pytest.approx(one, rel=0.1)  # whole for each rank
    assert times["deepseek_v3"][0] > 30 * one  # 128 heads of 192 + 128


def test_layers_that_share_picks_have_no_indexer(tmp_path):
    """GLM-5.2: an indexer in every fourth layer, and in the first three."""
    five, later = load_model("glm_5"), imported("GLM-5.2", tmp_path)
    assert five.num_parameters - later.num_parameters == 57 * (2048 * 32 * 128 + 6144 * (128 + 32) + 2 * 128)


# DeepSeek-V4, by huggingface/transformers models/deepseek_v4 and csa.py of Megatron Core: queries see a window of 128
# and entries of 4 tokens, 512 or 1,024 of which an indexer picks, or all entries of 128 tokens.


@pytest.mark.parametrize(("name", "heads"), [("deepseek_v4_flash", 64), ("deepseek_v4_pro", 128)])
def test_compressed_attention_has_the_parameters_and_work_of_its_modules(name, heads):
    model, d = load_model(name), 512
    h, rank, topk = model.hidden_size, model.q_lora_rank, model.index_topk
    products = h * rank + rank * heads * d + h * d + heads * d * 1024 + heads // 8 * 1024 * h
    small = rank + d + heads  # norms and sinks
    of_branches = 2 * (24 * 4 * h + 24 + 3) + 2 * h  # hyper-connections and norms
    indexer = rank * 64 * 128 + h * 64 + 2 * h * 2 * 128
    sizes = {0: (0, 0), 4: (2 * h * 2 * d + indexer, 4 * 2 * d + d + 4 * 2 * 128 + 128), 128: (2 * h * d, 128 * d + d)}
    experts = 3 * h * model.moe_ffn_hidden_size * (model.num_experts + 1) + h * model.num_experts
    tokens = model.seq_len
    for layer in model.kinds:
        of_layer = dict(layer.stream.sizes)
        ratio = of_layer.get("compress_ratio", 0)
        matrices, others = sizes[ratio]
        bias = model.num_experts if of_layer.get("router_bias", True) else 0
        assert model.layer_parameters(layer) == products + small + matrices + others + of_branches + experts + bias
        entries = [min(number // ratio, topk if ratio == 4 else number) for number in range(1, 8193)] if ratio else [0]
        core = 2 * heads * d * (seen(8192, 128) + np.mean(entries))
        scores = 64 * 128 * tokens / 2 / 4 if ratio == 4 else 0.0
        mixer = sum(model.multiply_adds(kernel, causal=True) for kernel in layer.blocks[0].kernels)
        assert mixer == pytest.approx(products + matrices + core + scores, rel=2e-3)  # entries behind the last count


def test_a_token_behind_a_million_takes_the_published_share_of_flops():
    """DeepSeek-V4-Pro needs 27 % of the FLOPs of a token of DeepSeek-V3.2 behind a million others (abstract)."""
    alone = {"seq_len": 1.0, "context_len": 2.0**20 - 1, "mtp_layers": 0.0}
    four, three = (replace(load_model(name), **alone) for name in ("deepseek_v4_pro", "deepseek_v3_2"))
    assert four.forward_flops(causal=True) / three.forward_flops(causal=True) == pytest.approx(0.27, abs=0.005)


def test_compressed_keys_of_ranks_that_share_a_sequence_are_few():
    """Per token 512 / 4 and an indexer's 128 / 4, or 512 / 128; DeepSeek-V3.2 sends 576 and 128."""
    model = replace(load_model("deepseek_v4_flash"), seq_len=131072)
    sent = {layer: sum(kernel.kind.exchanged.keys_values(model.of_kernel(kernel)) for kernel in layer.kernels
                       if kernel.kind.exchanged.keys_values) for layer in model.kinds}  # fmt: skip
    boundary = 512 * 128 / 131072
    assert {*sent.values()} == {boundary, boundary + 512 / 4 + 128 / 4, boundary + 512 / 128}


# Kimi delta attention, arXiv 2510.26692: 32 heads of 128, decays and gates by products of rank 128.


def test_kimi_linear_has_the_published_parameters_and_work():
    model, h, d = load_model("kimi_linear_48b_a3b"), 2304, 32 * 128
    kda = h * (3 * d + 32) + 2 * (h * 128 + 128 * d) + d * h
    mla = h * 32 * 192 + h * 576 + 512 * 32 * 256 + 32 * 128 * h
    expert = 3 * h * 1024
    layers = 20 * kda + 7 * mla + 26 * (257 * expert + 256 * h) + 3 * h * 9216
    small = 20 * (4 * 3 * d + 32 + d + 128) + 7 * 512 + 27 * 2 * h + h + 26 * 256
    assert model.num_parameters == layers + small + 2 * 163840 * h
    of_token = 20 * (kda + 4 * 3 * d + 4 * 32 * 128**2) + 7 * (mla + 32 * (192 + 128) * model.seq_len / 2)
    of_token += 26 * 9 * expert + 3 * h * 9216 + 163840 * h
    assert model.forward_flops(causal=True) == pytest.approx(2 * of_token, rel=1e-12)


# Lightning attention, arXiv 2501.08313: 64 heads of 128 in seven layers of eight; 456 billion parameters, 45.9 active.


def test_minimax_01_has_the_published_parameters(tmp_path):
    model, h, d = imported("MiniMax-01", tmp_path), 6144, 64 * 128
    lightning = 5 * h * d + d
    attention = 2 * h * d + 2 * h * 8 * 128
    experts = 32 * 3 * h * 9216 + 32 * h
    assert model.num_parameters == 70 * lightning + 10 * attention + 80 * (experts + 2 * h) + h + 2 * 200064 * h
    assert model.num_parameters / 1e9 == pytest.approx(456, abs=0.5)
    assert (model.active_parameters - 2 * 200064 * h) / 1e9 == pytest.approx(45.9, abs=0.05)
    [layer] = [layer for layer in model.kinds if any(kernel.kind.name == "lightning" for kernel in layer.kernels)]
    core = next(kernel for kernel in layer.kernels if kernel.kind.name == "lightning")
    run = ranks_of(model, DesignPoints.of(tp=4))
    work = sum(m * n * k * product.batch for product in core.kind.products(run, core) for m, n, k in [product.size])
    of_token = 64 / 4 * (2 * 128 * 128 + 2 * 128 * 128)  # in chunks of 128: scores, outputs; states, their outputs
    assert work == pytest.approx(8192 * of_token)


# Gemma 4: values are keys in full layers of wider heads, two norms for each MLP; small ones have layer embeddings.


def test_gemma_4_has_the_parameters_of_its_layers(tmp_path):
    model, h = load_model("gemma_4_26b_a4b"), 2816
    window = h * 16 * 256 * 2 + 2 * h * 8 * 256 + 2 * 256
    full = h * 16 * 512 * 2 + h * 2 * 512 + 2 * 512
    mlp = 3 * h * 2112 + 128 * 3 * h * 704 + 128 * h + h + 128
    assert model.num_parameters == 25 * window + 5 * full + 30 * (mlp + 7 * h) + 262144 * h + h
    small, h, p = imported("Gemma 4 E2B", tmp_path), 1536, 256
    per_layer = 35 * (3 * h * p + h) + 35 * 262144 * p + p
    without = replace(small, per_layer_embedding=0)
    assert small.num_parameters - without.num_parameters == per_layer
    assert small.forward_flops(causal=True) - without.forward_flops(causal=True) == 2 * 35 * 3 * h * p


def test_layers_that_see_the_keys_of_others_make_none(tmp_path):
    """Gemma 4 E2B: the last 20 layers have queries alone, and MLPs of twice the width."""
    model, h = imported("Gemma 4 E2B", tmp_path), 1536
    shared = [layer for layer in model.kinds if dict(layer.stream.sizes).get("reuses_keys")]
    sizes = {model.layer_parameters(layer) for layer in shared}
    others = 4 * h + 3 * h * 256 + h + 3 * h * 2 * 6144
    assert sizes == {others + 2 * h * 8 * size + size for size in (256, 512)}


def test_attention_beside_mamba_has_the_parameters_and_work_of_both(tmp_path):
    """Falcon-H1 34B, arXiv 2507.22448: 20 heads of attention and 32 of Mamba-2 behind one norm, no norm of outputs."""
    model, h = imported("Falcon-H1 34B", tmp_path), 5120
    channels = 4096 + 2 * 2 * 256
    mamba = h * (4096 + channels + 32) + 5 * channels + 3 * 32 + 4096 * h
    attention = h * (20 + 2 * 4) * 128 + 20 * 128 * h
    assert model.num_parameters == 72 * (mamba + attention + 3 * h * 21504 + 2 * h) + h + 2 * 261120 * h
    design = DesignPoints.of(tp=[1, 2], cp=[1, 2], sequence_parallel=1)
    costs = step(replace(model, num_layers=2, layer_order=model.layer_order[:2]), SYSTEM, design)
    assert costs.cp_communication_time[1] > 0
    assert np.isfinite(costs.step_time).all()


def test_a_short_convolution_has_its_taps_and_passes_the_last_tokens_on(tmp_path):
    """LFM2: three products of the hidden size into the gates and the input, 3 taps, one product out."""
    model, h = imported("LFM2 1.2B", tmp_path), 2048
    [layer] = [layer for layer in model.kinds if any(kernel.kind.name == "convolution" for kernel in layer.kernels)]
    assert model.layer_parameters(layer) == 4 * h * h + 3 * h + 3 * h * 8192 + 2 * h
    core = next(kernel for kernel in layer.kernels if kernel.kind.name == "convolution")
    assert core.kind.exchanged.state(model, 2.0) == 2 * 2 * h


def test_a_selective_scan_has_the_parameters_and_states_of_each_feature(tmp_path):
    """Jamba, arXiv 2403.19887: Mamba-1 but for every eighth layer, steps of 8,192 features from 256."""
    model, h, d, n, rank = imported("Jamba v0.1", tmp_path), 4096, 8192, 16, 256
    mixers = [next(k.kind.name for k in layer.kernels if k.is_core or k.kind.exchanged.state) for layer in model.kinds]
    assert sorted(mixers) == ["attention", "mamba1", "mamba1"]
    mamba = 2 * h * d + d * (rank + 2 * n) + rank * d + d * h + d * (4 + 1 + n + 2) + rank + 2 * n
    attention, expert = 2 * h * h + 2 * h * 8 * 128, 3 * h * 14336
    layers = 28 * mamba + 4 * attention + 16 * (16 * expert + 16 * h) + 16 * expert + 32 * 2 * h
    assert model.num_parameters == layers + h + 2 * 65536 * h
    core = next(k for layer in model.kinds for k in layer.kernels if k.kind.name == "mamba1")
    assert core.kind.exchanged.state(model, 2.0) == 4 * d * n + 2 * 3 * d


def test_layers_of_an_architecture_search_have_their_groups_and_widths(tmp_path):
    """Llama 3.3 Nemotron Super 49B: 49 layers with attention, MLPs of 0.5 to 5.25 times 2/3 of the hidden size."""
    model = imported("Llama 3.3 Nemotron Super 49B", tmp_path)
    assert sum(count for layer, count in model.kinds.items() if any(k.is_core for k in layer.kernels)) == 49
    widths = {dict(layer.stream.sizes)["ffn_hidden_size"] for layer in model.kinds}
    assert widths == {2816, 5632, 7168, 14336, 17920, 28672}


# ai-dynamo/aiconfigurator, linear_attention: chunk_gated_delta_rule of trtllm 1.3.0rc20, and causal_conv1d_fn of sglang
# 0.5.14. Norms and the gate are not in them. [ms]
DELTA_NETS = cases(__file__, "DELTA_NETS")


@pytest.mark.parametrize(("system", "name", "tokens", "rule", "convolution"), DELTA_NETS)
def test_chunks_of_delta_nets_take_their_published_time(system, name, tokens, rule, convolution):
    run = ranks_of(replace(load_model(name), seq_len=tokens), DesignPoints.of(), load_system(system))
    core = cost_table(run).cost("layer 0", "forward", lambda label: (label.kernel or label.name) == "delta")
    assert 1e3 * core.time.item() == pytest.approx(rule + convolution, rel=0.2)


# Hyper-connections, arXiv 2512.24880: weights that read, write and mix n streams, from all of them, for each branch.


def with_streams(streams: int, **changes: float):
    """Llama 3 8B with several residual streams."""
    return replace(load_model("llama3_8b"), num_residual_streams=float(streams), **changes)


def test_hyper_connections_have_the_published_parameters():
    """A branch has (n^2 + 2 n) n h weights, n^2 + 2 n biases and three scales; the head n^2 h, n and one."""
    model, plain = with_streams(4), with_streams(1)
    of_branch, of_head = 24 * 4 * 4096 + 24 + 3, 4 * 4 * 4096 + 4 + 1
    assert model.num_parameters - plain.num_parameters == 2 * 32 * of_branch + of_head
    ahead = replace(model, mtp_layers=1.0).mtp_parameters - replace(plain, mtp_layers=1.0).mtp_parameters
    assert ahead == 2 * of_branch + of_head
    assert plain == load_model("llama3_8b")


@pytest.mark.parametrize("streams", [2, 4])
def test_stages_send_and_checkpoints_keep_all_streams(streams):
    design = DesignPoints.of(tp=2, pp=4, gradient_accumulation_steps=8, recompute="full")
    one, several = (layer_memory(ranks_of(with_streams(n), design), layer).kept
                    for n in (1, streams) for layer in with_streams(n).kinds)  # fmt: skip
    assert several == streams * one
    sent = [ranks_of(with_streams(n), design).activation_bytes() for n in (1, streams)]
    assert sent[1] == streams * sent[0]
    times = [step(with_streams(n), SYSTEM, design).pp_communication_time.item() for n in (1, streams)]
    assert 1 < times[1] / times[0] < streams * 1.01


def test_a_layer_keeps_its_streams_and_the_input_and_output_of_each_branch():
    """In 16 bits (n + 2) h of a branch more, less the h that a norm kept; and its weights twice in fp32."""
    design = DesignPoints.of(micro_batch_size=2)
    kept = [layer_memory(ranks_of(model, design), layer).kept for model in (with_streams(4), with_streams(1))
            for layer in model.kinds]  # fmt: skip
    assert (kept[0] - kept[1]).item() == 2 * (2 * with_streams(1).seq_len) * (2 * (4 + 2 - 1) * 4096 + 8 * 24)


def test_fused_kernels_of_hyper_connections_move_the_published_bytes():
    """Forward 4 h in, h out; then h and 4 h in, 4 h out of a token and branch: reads and mixes of Table 2, fused."""
    table = transformer_pointwise(ranks_of(with_streams(4), DesignPoints.of()))
    widths = table.bytes_moved[0] / (2 * 4096 * with_streams(4).seq_len)
    moved = {label.name: width for label, width in zip(table.labels, widths, strict=True) if label.of_pass == "forward"}
    assert [moved[f"attention_{word}"] for word in ("stream", "residual")] == [4 + 1, 4 + 1 + 4]
