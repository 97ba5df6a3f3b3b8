"""Experts with a capacity, exchanges beside a shared expert, grouped products; vocabularies and streams."""

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, ModelShape, load_model, load_system, step
from costmodel.kernels.kernel_cost import pointwise_time
from costmodel.kernels.kernel_tables import Gemms, Label, Pointwise, parts_of, transformer_gemms
from costmodel.kernels.products import gemm_cost
from costmodel.steps import breakdown as assembly
from costmodel.steps.micro_batch import micro_batch as microbatch
from costmodel.steps.micro_batch.micro_batch import DIRECTIONS, cost_table, micro_batches
from costmodel.steps.pipeline.stages import pipeline_stages, rank_layers
from tests.support.cases import by_table, cases
from tests.support.runs import designs, ranks_of


@pytest.fixture(scope="module")
def mixtral() -> ModelShape:
    """Eight experts, of which a token meets two."""
    return replace(load_model("mixtral_8x7b"), num_layers=8.0)


@pytest.fixture(scope="module")
def shared() -> ModelShape:
    """160 experts beside a shared one."""
    return load_model("deepseek_v2_lite")


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.25, 2.0])
@pytest.mark.parametrize("layout", [{"dp": 8, "ep": 8}, {"tp": 2, "dp": 8, "ep": 4, "etp": 2, "sequence_parallel": 1}])
def test_an_expert_has_so_many_times_its_share_of_what_ranks_around_it_send(factor, layout, mixtral):
    """ceil(cf k tokens / E), with the tokens of the ep x etp ranks that send to it."""
    run = ranks_of(mixtral, designs(mixtral, **layout, capacity_factor=factor))
    tokens = layout["ep"] * layout.get("etp", 1) * mixtral.seq_len / layout.get("tp", 1)
    expected = math.ceil(factor * (mixtral.moe_topk * tokens / mixtral.num_experts))
    assert run.expert_rows == expected
    gemms = transformer_gemms(run)
    rows = {label.of_pass: gemms.m[0, i] for i, label in enumerate(gemms.labels) if label.name == "expert_up"}
    assert rows["forward"] == rows["activation_gradient"] == expected


def test_a_shared_expert_hides_exchanges_and_gives_up_cores(shared, h100):
    """A hidden exchange takes multiprocessors from the kernels beside it, as every collective does."""
    columns = {"dp": 16, "ep": 16, "micro_batch_size": 4}
    plain, beside = (
        micro_batches(ranks_of(shared, designs(shared, **columns, overlap_shared_expert=on), h100)) for on in (0, 1)
    )
    run = ranks_of(shared, designs(shared, **columns), h100)
    layer = next(layer for layer in shared.kinds if any(k.of_experts for k in layer.kernels))
    index = [*shared.kinds].index(layer)
    table, names = cost_table(run), ("shared_up", "shared_activation", "shared_down")
    part = parts_of(shared)[index]
    taken = h100.chip.collective_cores / h100.chip.cores
    for direction, passes in DIRECTIONS.items():
        window = sum(table.kernels_time(part, names, of_pass) for of_pass in passes)
        whole, left = (getattr(costs, direction)[index].ep_time for costs in (plain, beside))
        hidden = np.minimum(whole, window)
        assert hidden > 0
        assert left == pytest.approx(whole - hidden * (1 - taken))


@pytest.mark.parametrize("multiple", [1, 64, 128, 1000])
def test_a_padded_vocabulary_is_a_multiple_on_every_rank(multiple, gpt):
    """Megatron-LM: to a multiple of `make_vocab_size_divisible_by` x tp."""
    tp = np.array([1.0, 2.0, 4.0, 8.0])
    model = replace(gpt, vocab_multiple=float(multiple))
    held = ranks_of(model, DesignPoints.of(tp=tp)).vocabulary_share * tp
    assert held.tolist() == [math.ceil(gpt.vocab_size / (multiple * n)) * multiple * n for n in tp]
    assert model.num_parameters == gpt.num_parameters
    assert model.forward_flops(causal=True) == gpt.forward_flops(causal=True)


def grouped(rows, wide, deep, experts, output_bytes=2.0) -> Gemms:
    """Products of experts with some rows each, in one launch; (points,) arrays."""
    columns = [
        np.asarray(values, dtype=float)[:, np.newaxis] for values in np.broadcast_arrays(rows, wide, deep, experts)
    ]
    m, n, k, batch = columns
    label = Label("expert_up", "forward", "layer")
    ones = np.ones_like(m)
    return Gemms(labels=(label,), m=m, n=n, k=k, batch=batch, output_bytes=output_bytes * ones, count=ones)


@pytest.mark.parametrize("name", ["h100_80g_dgx", "gb200_186g_nvl72", "mi300x_192g"])
def test_more_rows_columns_or_experts_never_take_less_time(name):
    """Waves of tiles quantise the time of grouped products: it has steps, but all of them upwards."""
    system, rng = load_system(name), np.random.default_rng(4)
    shape = [rng.integers(1, 24, 4000) * 64, rng.integers(1, 40, 4000) * 128, rng.integers(1, 60, 4000) * 128]
    shape.append(rng.integers(1, 33, 4000))
    for axis in (0, 1, 3):
        wider = [*shape]
        wider[axis] = shape[axis] + rng.integers(1, 9, 4000) * (1 if axis == 3 else 64)
        less, more = (gemm_cost(grouped(*sizes), system, element_bytes=2.0).time for sizes in (shape, wider))
        assert (more >= less).all()
    rows = np.arange(64, 4097, 64)
    steps = gemm_cost(grouped(rows, 4096, 7168, 4), system, element_bytes=2.0).time[:, 0]
    assert (np.diff(steps) >= 0).all()
    assert (np.diff(steps) == 0).any() or (np.diff(steps) > 2 * np.diff(steps).mean()).any()


def mixed_designs(model, points):
    """Designs of which many have kernels in common."""
    rng = np.random.default_rng(6)
    options = {
        "tp": (1, 2, 4), "pp": (1, 2, 3, 5, 8, 13), "vpp": (1, 2), "dp": (8, 16), "ep": (1, 4, 8),
        "cp": (1, 2), "zero": (0, 1, 2, 3), "micro_batch_size": (1, 2), "gradient_accumulation_steps": (4, 8),
        "recompute": (0, 1, 2), "dispatcher": (0, 1, 2), "overlap_shared_expert": (0, 1),
        "capacity_factor": (0, 1.5),
    }  # fmt: skip
    return designs(model, **{name: rng.choice(values, points) for name, values in options.items()})


def test_designs_cost_the_same_in_chunks_that_are_ordered_and_kernels_that_are_shared(shared, h100, monkeypatch):
    points = mixed_designs(shared, 400)
    whole = step(shared, h100, points).columns()
    monkeypatch.setattr(assembly, "CHUNK", 48)
    monkeypatch.setattr(microbatch, "KERNEL_CHUNK", 7)
    pieces = step(shared, h100, points).columns()
    alone = [step(shared, h100, points.take(np.array([row]))).columns() for row in range(0, 400, 40)]
    for name, values in whole.items():
        np.testing.assert_array_equal(values, pieces[name], err_msg=name)
        np.testing.assert_array_equal(values[::40], [one[name][0] for one in alone], err_msg=name)


@by_table("name", "passes", "size", "back")
def test_passes_over_experts_move_tensors_unless_products_fuse_them(h100, name, passes, size, back):
    """Biases: 28 bytes of an output forward, 18 and 12 backward. Clamps: 8 and 10 of both halves of an activation."""
    model, quantity = load_model(name), f"software_expert_{passes}_passes"
    apart, fused = (
        step(model, h100.with_quantities({quantity: number}), designs(model, ep=8, dp=8)) for number in (1.0, 0.0)
    )
    forward = (apart.forward_time - fused.forward_time).item()
    outputs = model.num_layers * model.seq_len * model.moe_topk * model.hidden_size
    assert forward == pytest.approx(size * outputs / h100.dram.bandwidth.item(), rel=0.35)
    backward = (apart.backward_time - fused.backward_time).item()
    assert backward == pytest.approx(forward * back / max(size, 1), rel=0.02)


def test_hosts_launch_casts_expert_by_expert(h100):
    """Two casts forward, two casts and four transposed copies backward, half of a launch for each further expert."""
    model = load_model("qwen3_30b_a3b")
    slow = h100.with_quantities({"host_dispatch": 1e-2})  # no kernel is longer
    systems = [slow.with_quantities({"software_expert_casts": work}) for work in (0.5, 0.0)]
    design = designs(model, ep=8, dp=8, precision="fp8_blockwise")
    apart, together = (step(model, system, design) for system in systems)
    further = 0.5 * (model.num_experts / 8 - 1) * 1e-2 * model.num_layers
    assert (apart.forward_time - together.forward_time).item() == pytest.approx(2 * further)
    assert (apart.backward_time - together.backward_time).item() == pytest.approx(6 * further)


@pytest.mark.parametrize(("name", "ranks"), [("llama3_8b", {}), ("qwen3_30b_a3b", {"ep": 8, "dp": 8})])
def test_cuda_graphs_are_launched_once_for_a_layer_and_pass_or_for_a_step(name, ranks, h100):
    """The host takes ten seconds for a launch, so that a further layer costs its launches."""
    model, slow = load_model(name), h100.with_quantities({"host_dispatch": 10.0})
    longer = replace(model, num_layers=model.num_layers + 1)
    graphs = ["none", "layers", "full_iteration"]
    times = [
        step(of_size, slow, designs(of_size, **ranks, cuda_graphs=graphs)).step_time for of_size in (model, longer)
    ]
    launches = np.round((times[1] - times[0]) / 10.0)
    assert launches[2] == 0 < launches[1] < launches[0]
    assert (launches[1] == 2) == (not ranks)  # routed experts are launched one by one


@pytest.mark.parametrize("name", ["deepseek_v3", "gemma_3_27b", "llama_4_maverick", "qwen3_next_80b_a3b"])
def test_only_the_foremost_stages_can_be_the_slowest_or_the_fullest(name):
    """Of all stages none is slower, or fuller with the micro-batches that it holds, whatever layers cost."""
    model, rng = load_model(name), np.random.default_rng(8)
    pp, vpp = (rng.choice(values, 60).astype(float) for values in ((1, 2, 3, 4, 7, 8, 16), (1, 2, 3)))
    points = DesignPoints.of(pp=pp, vpp=vpp)
    counts, foremost = rank_layers(model, points), pipeline_stages(model, points).foremost
    assert len(foremost) < counts.shape[1]
    for held in (np.ones((1, counts.shape[1])), np.maximum(pp[:, np.newaxis] - np.arange(counts.shape[1]), 0.0)):
        costs = rng.random(counts.shape[2])
        every = counts @ costs * held
        actual = [
            sum(count * cost for count, cost in zip(stage.counts, costs, strict=True))
            * held[np.arange(60) % len(held), stage.rank.astype(int)]
            for stage in foremost
        ]
        np.testing.assert_allclose(np.max(actual, axis=0), every.max(axis=1), rtol=1e-12)


# -- kernels of experts ----------------------------------------------------------------------------------

# NVIDIA AI Configurator collector, tables at 095f58a: TensorRT-LLM 1.3.0rc20, CUTLASS, bf16, 16,384 tokens,
# experts of all tokens on one chip, balanced; one launch, which fuses the activation.
COLLECTED = cases(__file__, "COLLECTED")


@pytest.mark.parametrize(("name", "index", "median"), [("h100_80g_dgx", 4, 0.05), ("b200_180g_dgx", 5, 0.06)])
def test_sorting_and_products_take_the_time_of_collected_kernels(name, index, median):
    """In a burst: products as fast as one product, tokens sorted and added up again; 12 of 13 shapes."""
    system, one = load_system(name).with_quantities({"sustained": 1.0, "expert_latency": 0.0}), np.ones(1)
    errors = []
    for row in COLLECTED:
        hidden, width, experts, chosen = row[:4]
        copies = 16384 * chosen * one
        products = Gemms.stack([
            (Label("expert", "forward", "layer", runs="grouped"), (copies / experts, n, k, experts, 2.0, 1.0))
            for n, k in ((2 * width, hidden), (hidden, width))
        ])  # fmt: skip
        passes = Pointwise.of_rows([
            (Label(sorts, "forward", "layer", runs="sorting"), copies * hidden, 2, 0.0, 0.0, 1.0)
            for sorts in ("dispatch", "combine")
        ], element_bytes=2.0)  # fmt: skip
        time = gemm_cost(products, system, element_bytes=2.0).time.sum()
        time += pointwise_time(passes, system)[0].sum()
        errors.append(abs(time * 1e6 / row[index] - 1))
    assert np.median(errors) < median
    assert max(errors) < 0.25


# PyTorch issue 163425 (H200, bf16): 1,000 calls of a grouped product of 32 experts, rows of n and k features,
# forward, and both gradients: in one call, and one by one.
PYTORCH = cases(__file__, "PYTORCH")


@pytest.mark.parametrize(("rows", "k", "n", "one_call", "one_by_one"), PYTORCH)
def test_grouped_products_take_the_time_that_pytorch_reports(rows, k, n, one_call, one_by_one):
    """Within 8 %; as one product they would take 9 % less."""
    system, m = load_system("h200_141g_dgx"), rows / 32
    sizes = (("forward", m, n, k), ("activation_gradient", m, k, n), ("weight_gradient", k, n, m))
    table = Gemms.stack([
        (Label("expert", of_pass, "layer", runs="grouped"), (*map(np.atleast_1d, shape), 32.0, 2.0, 1.0))
        for of_pass, *shape in sizes
    ])  # fmt: skip
    times = gemm_cost(table, system, element_bytes=2.0).time[0] * 1e3
    for forward, backward in (one_call, one_by_one):
        assert times[0] == pytest.approx(forward, rel=0.08)
        assert times[1:].sum() == pytest.approx(backward, rel=0.08)
