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


@pytest.mark.parametrize("by", ["column", "row"])
def test_ranks_that_compute_add_up_to_one_rank(by):
    """Each rank multiplies matrices of the sizes in the tables, and exchanges messages of the sizes there."""
    tp, model, rng = 4, load_model("llama3_8b"), np.random.default_rng(7)
    run = rank_run(Run(model, SYSTEM, DesignPoints.of(tp=tp, sharding="megatron_sp", lora_rank=8)))
    [layer] = model.kinds
    kernel = next(k for k in layer.kernels if k.name == ("qkv" if by == "column" else "projection"))
    shapes = {name[-1]: [int(np.asarray(size).item()) for size in sizes]
              for name, sizes, _ in adapter_products(run, kernel)}  # fmt: skip
    (tokens, rank_a, k), (_, made, rank) = shapes["a"], shapes["b"]
    few = 16  # tokens that are computed, of those in the tables
    whole_k, whole_n = int(model.features[kernel.reads]), int(model.features[kernel.makes])
    x, a, b = rng.normal(size=(few, whole_k)), rng.normal(size=(whole_k, rank)), rng.normal(size=(rank, whole_n))
    messages = {(way, name): float(np.asarray(size).flat[0]) for way, name, size in adapter_exchanges(run, kernel)}
    if by == "column":
        parts = [x @ a[:, index * rank_a : (index + 1) * rank_a] for index in range(tp)]
        thin = np.concatenate(parts, axis=1)
        assert k == whole_k
        assert messages["forward", "all_gather"] == 2 * tokens * thin.shape[1]
    else:
        parts = [x[:, index * k : (index + 1) * k] @ a[index * k : (index + 1) * k] for index in range(tp)]
        thin = np.sum(parts, axis=0)
        assert rank_a == rank
        assert messages["forward", "all_reduce"] == 2 * tokens * thin.shape[1]
        assert messages["forward", "all_gather"] == 2 * tokens * whole_n
    outputs = [thin @ b[:, index * made : (index + 1) * made] for index in range(tp)]
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), x @ a @ b, rtol=1e-9, atol=1e-9)


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
