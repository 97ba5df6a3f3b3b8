"""LoRA and QLoRA: trained parameters against published counts, memory and time by laws, and ranks that compute."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, resolve_tiling, step
from costmodel.kernels.adapters import NF4_BYTES, adapter_exchanges, adapter_products
from costmodel.kernels.products import gemm_reloads
from costmodel.training.run import Run, rank_run
from dse.reporting.answers import trained_parameters
from tests.support.cases import cases

SYSTEM = load_system("h100_80g_dgx")
ON_ONE = {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "recompute": "full"}
ON_EIGHT = {"dp": 8, "micro_batch_size": 1, "gradient_accumulation_steps": 4, "zero": 1, "overlap_grad_reduce": 1}

# model, design, parameters that `print_trainable_parameters` of PEFT prints, or that papers state
PUBLISHED = cases(__file__, "PUBLISHED")


@pytest.mark.parametrize(("model", "design", "printed"), PUBLISHED)
def test_adapters_have_the_published_number_of_parameters(model, design, printed):
    assert trained_parameters(load_model(model), DesignPoints.of(**design)).tolist() == [printed]


@pytest.mark.parametrize("targets", ["all_linear", "attention", "mlp"])
def test_adapters_of_fused_products_follow_the_formula(targets):
    """Megatron-Bridge: r (in + out) of linear_qkv, linear_proj, linear_fc1 and linear_fc2 of each layer."""
    model, rank = load_model("llama3_8b"), 12
    hidden, queries, keys, ffn = 4096, 4096, 1024, 14336
    attention = (hidden + queries + 2 * keys) + (queries + hidden)
    mlp = (hidden + 2 * ffn) + (ffn + hidden)
    entries = {"attention": attention, "mlp": mlp, "all_linear": attention + mlp}[targets]
    assert trained_parameters(model, DesignPoints.of(lora_rank=rank, lora_targets=targets)).tolist() == [
        32 * rank * entries
    ]


def test_weights_in_nf4_have_4_127_bits_and_are_dequantized_in_each_pass():
    """Dettmers et al. 2023, section 3: 4 bits, 8 bits over 64 weights and 32 bits over 64 x 256."""
    assert pytest.approx(4.127, abs=5e-4) == 8 * NF4_BYTES
    model = load_model("llama3_8b")
    plain, packed = (
        step(model, SYSTEM, DesignPoints.of(**ON_ONE, lora_rank=16, quantized_base=base)) for base in ("none", "nf4")
    )
    linear = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    assert plain.weights_memory - packed.weights_memory == pytest.approx(linear * (2 - 4.127 / 8), rel=1e-4)
    rate = SYSTEM.dram.bandwidth * SYSTEM.dram.efficiency
    passes = 8 * 3 * linear * (2 + 4.127 / 8) / rate  # forward, again, and backward of eight micro-batches
    launches = 8 * 3 * 32 * 4 * SYSTEM.chip.kernel_launch
    assert packed.step_time - plain.step_time == pytest.approx(passes + launches, rel=0.01)


@pytest.mark.parametrize("sharding", ["megatron", "megatron_sp"])
@pytest.mark.parametrize(("by", "name"), [("column", "qkv"), ("row", "projection")])
def test_ranks_that_compute_adapters_are_one_rank_together(by, name, sharding):
    """Outputs, gradients and messages with A and B split as in Megatron-Bridge (peft/utils.py, ParallelLinearAdapter).

    Gradients of inputs are added to the summands of a frozen product split by columns, which sequence parallelism adds
    up later; without it both are added up.
    """
    tp, model = 4, replace(load_model("llama3_8b"), hidden_size=64.0, head_size=2.0, seq_len=16.0)
    run = rank_run(Run(model, SYSTEM, DesignPoints.of(tp=tp, sharding=sharding, lora_rank=8)))
    kernel = next(kernel for layer in model.kinds for kernel in layer.kernels if kernel.name == name)
    k, n = (int(model.features[word]) for word in (kernel.reads, kernel.makes))
    rng, sent = np.random.default_rng(7), []
    x, a, b, dy = (rng.normal(size=size) for size in ((16, k), (k, 8), (8, n), (16, n)))

    def split(whole, axis=1):
        return np.split(whole, tp, axis=axis)

    def exchanged(way, collective, whole):
        sent.append((way, collective, 2 * whole.size))
        return whole

    of_b = split(b)
    if by == "column":
        of_a = split(a)
        thin = exchanged("forward", "all_gather", np.concatenate([x @ part for part in of_a], axis=1))
        y, given = np.concatenate([thin @ part for part in of_b], axis=1), dy
        summands = [g @ part.T for g, part in zip(split(given), of_b, strict=True)]
        d_thin = split(exchanged("backward", "all_reduce", sum(summands)))
        d_a = np.concatenate([x.T @ g for g in d_thin], axis=1)
        summands = [g @ part.T for g, part in zip(d_thin, of_a, strict=True)]
        d_x = sum(summands) if sharding == "megatron_sp" else exchanged("backward", "all_reduce", sum(summands))
    else:
        of_a = split(a, axis=0)
        summands = [part @ of_rank for part, of_rank in zip(split(x), of_a, strict=True)]
        thin = exchanged("forward", "all_reduce", sum(summands))
        y = exchanged("forward", "all_gather", np.concatenate([thin @ part for part in of_b], axis=1))
        given = exchanged("backward", "all_gather", dy) if sharding == "megatron_sp" else dy
        summands = [g @ part.T for g, part in zip(split(given), of_b, strict=True)]
        d_thin = exchanged("backward", "all_reduce", sum(summands))
        d_a = np.concatenate([part.T @ d_thin for part in split(x)])
        d_x = np.concatenate([d_thin @ part.T for part in of_a], axis=1)
    d_b = np.concatenate([thin.T @ g for g in split(given)], axis=1)
    expected = x @ a @ b, dy @ b.T @ a.T, x.T @ dy @ b.T, (x @ a).T @ dy
    for actual, of_one in zip((y, d_x, d_a, d_b), expected, strict=True):
        np.testing.assert_allclose(actual, of_one, rtol=1e-9, atol=1e-9)
    messages = [(way, name, np.asarray(size).item()) for way, name, size in adapter_exchanges(run, kernel)]
    assert sorted(sent) == sorted(message for message in messages if message[2])
    sizes = [(*np.ravel(size[2]), *np.ravel(size[1])) for _, size, _ in adapter_products(run, kernel)]
    assert sizes == [of_a[0].shape, of_b[0].shape]


# NVIDIA-NeMo/Megatron-Bridge 067f987d, docs/performance-summary.md, LoRA of Llama 3 70B on 8 GPUs, 4,096 tokens packed;
# perf_recipes/llama: rank 16 on linear_qkv. Tokens per second and GPU, model TFLOP/s per GPU.
BRIDGE = cases(__file__, "BRIDGE")


@pytest.mark.parametrize(("name", "precision", "sizes", "tokens", "tflops"), BRIDGE)
def test_published_adapters_of_llama_3_70b_run_as_fast_as_printed(name, precision, sizes, tokens, tflops):
    """Never slower and at most 22 % faster, and all fit. FLOP are those of packs of short documents, within 1 %."""
    model = replace(load_model("llama3_70b"), seq_len=4096.0, document_len=256.0)
    system = load_system(name)
    design = DesignPoints.of(
        **sizes, vpp=20, micro_batch_size=1, gradient_accumulation_steps=32 / sizes["dp"], lora_rank=16,
        lora_targets="qkv", precision=precision, sharding="megatron_sp", zero=1, overlap_grad_reduce=1,
        cross_entropy="te", gradient_reduction="bf16",
    )  # fmt: skip
    actual = step(model, system, design)
    assert 0.98 < actual.tokens_per_second_per_gpu / tokens < 1.22
    assert actual.peak_memory < system.dram.capacity
    assert actual.model_flops / (32 * 4096) == pytest.approx(1e12 * tflops / tokens, rel=0.01)


def test_explicit_tiles_of_adapters_take_the_same_time():
    model = load_model("llama3_8b")
    free = DesignPoints.of(**ON_EIGHT, tp=2, lora_rank=16)
    tiled = resolve_tiling(model, SYSTEM, free)
    assert {"qkv_lora_a_tile_m", "mlp_up_lora_b_weight_gradient_tile_n"} <= {*tiled.tile_edges}
    assert step(model, SYSTEM, tiled).step_time == step(model, SYSTEM, free).step_time
    tables = gemm_reloads(rank_run(Run(model, SYSTEM.sliced(tiled.world_size), tiled)))
    assert "qkv_lora_a" in {label.name for label in tables.gemms.labels}
