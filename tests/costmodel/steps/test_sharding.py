"""Splits of the kernels of a layer: what they mean, what they cost, and which is best."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system
from costmodel.steps.micro_batch.exchanges import sent_bytes
from costmodel.steps.micro_batch.rank_memory import layer_memory
from costmodel.steps.transformer import resolve_sharding, step
from costmodel.training.blocks import DECODER, assignments_of
from costmodel.training.design import sharding_column
from tests.support.cases import by_table, cases
from tests.support.runs import ranks_of
from tests.support.sharded_layer import MODEL, ShardedLayer, check_ranks, shapes

#: All ways to split the kernels of a layer, and the number of each.
EVERY = assignments_of((DECODER,))
NUMBERS = np.arange(EVERY.count)
#: Named assignment -> how it splits each kernel.
NAMED = {name: EVERY.words(number) for name, number in EVERY.named.items()}


def assigned(numbers=NUMBERS, **layout) -> DesignPoints:
    """Designs of one layout, one for each assignment."""
    columns = {sharding_column(kernel): EVERY.place(numbers, kernel) for kernel in EVERY.options}
    return DesignPoints.of(sharding="sample", **columns, **layout)


@pytest.fixture(scope="module")
def gpt3_175b():
    return load_model("gpt3_175b")


def test_there_are_1728_assignments():
    """Of nine kernels with two or three options each, and each has a number of its own."""
    options = [*EVERY.options.values()]
    assert EVERY.count == np.prod([len(choices) for choices in options]) == 1728
    assert [tuple(EVERY.words(number).values()) for number in NUMBERS] == [*itertools.product(*options)]
    assert [EVERY.number(EVERY.words(number)) for number in NUMBERS] == NUMBERS.tolist()


def test_megatrons_assignments_are_those_of_its_papers():
    """Shoeybi et al. 2019; Korthikanti et al. 2022 split what was replicated by the sequence."""
    first = cases(__file__, "SHOEYBI")
    second = {kernel: "sequence" if way == "replicated" else way for kernel, way in first.items()}
    assert {"megatron": first, "megatron_sp": second} == NAMED


def test_ranks_that_exchange_what_an_assignment_says_compute_what_one_chip_does():
    """Outputs, gradients of inputs and of weights; gathered inputs kept in shards.

    Of every 13th assignment, in which any three kernels meet with all of their options.
    """
    numbers, tp = NUMBERS[::13], 4
    for three in itertools.combinations(EVERY.options, 3):
        met = {tuple(EVERY.place(numbers, kernel)[row] for kernel in three) for row in range(numbers.size)}
        assert len(met) == math.prod(len(EVERY.options[kernel]) for kernel in three)
    rng = np.random.default_rng(tp)
    weights = {name: rng.normal(size=shape) for name, shape in shapes(DECODER).items()}
    alone = ShardedLayer(ranks_of(MODEL, assigned(NUMBERS[:1], tp=1)), weights)
    runs = (ranks_of(MODEL, assigned(np.array([number]), tp=tp)) for number in numbers)
    check_ranks(alone, (ShardedLayer(run, weights) for run in runs), rng)


def test_the_whole_layer_alone_is_what_it_says():
    """The layer of one rank against a line of algebra."""
    rng = np.random.default_rng(5)
    w = {name: rng.normal(size=shape) for name, shape in shapes(DECODER).items()}
    x = rng.normal(size=(4, 8))
    qkv = ((x - x.mean(1, keepdims=True)) @ w["qkv"]).reshape(4, 4, 3, 3)
    context = (qkv[:, :, 0] + 2 * qkv[:, :, 1] + 3 * qkv[:, :, 2]).reshape(4, 12)
    middle = x + context @ w["projection"]
    expected = middle + ((middle - middle.mean(1, keepdims=True)) @ w["mlp_up"]) ** 2 @ w["mlp_down"]
    actual = ShardedLayer(ranks_of(MODEL, assigned(NUMBERS[:1], tp=1)), w).forward(x)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("switch", [False, True])
def test_named_assignments_are_rows_of_the_table(switch, gpt, toy_system):
    """By name, by Megatron's switch, and kernel by kernel: one price."""
    name = "megatron_sp" if switch else "megatron"
    layout = {"tp": [2, 4, 8], "pp": 2, "micro_batch_size": 2, "gradient_accumulation_steps": 6}
    by_name = step(gpt, toy_system, DesignPoints.of(sharding=name, **layout))
    by_switch = step(gpt, toy_system, DesignPoints.of(sequence_parallel=switch, **layout))
    splits = {sharding_column(kernel): option for kernel, option in NAMED[name].items()}
    by_kernel = step(gpt, toy_system, DesignPoints.of(sharding="sample", **splits, **layout))
    for column, values in by_name.columns().items():
        assert np.array_equal(values, getattr(by_switch, column)), column
        assert np.array_equal(values, getattr(by_kernel, column)), column


# A layer of Megatron's moves its activation in two all-reduces each way; in sequence parallelism each becomes
# a reduce-scatter and an all-gather, and two inputs are gathered once more [Korthikanti2022]. PyTorch keeps gathered
# inputs: its CommDebugMode counts two gathers and two scatters of a tensor-parallel MLP.
@by_table("name", "passes", "kept")
def test_bytes_of_megatrons_assignments(name, passes, kept, gpt, toy_system):
    """In units of the activation times (t - 1) / t: an all-reduce sends two."""
    design = DesignPoints.of(tp=[2, 8], micro_batch_size=3, sharding=name)
    keeping = toy_system.with_quantities({"software_kept_gathers": float(kept > 0)})
    megatron, run = (ranks_of(gpt, design, system) for system in (toy_system, keeping))
    sent = [sent_bytes(run, edge) for edge in DECODER.edges]
    unit = 2 * 3 * gpt.seq_len * gpt.hidden_size * (1 - 1 / design.tp)
    for direction, expected in enumerate(passes):
        assert sum(message[direction] for message in sent) == pytest.approx(expected * unit)
    assert layer_memory(run, DECODER).kept - layer_memory(megatron, DECODER).kept == pytest.approx(kept * unit)


@pytest.mark.parametrize("model_name", ["gpt", "llama"])
@by_table("layout")
def test_solving_finds_what_trying_everything_finds(layout, model_name, request, toy_system):
    """Of all 1,728 none is faster; the host is left out, since its waiting is not a sum over kernels."""
    model = request.getfixturevalue(model_name)
    system = toy_system.with_quantities({"host_dispatch": 0.0})
    layout = {**layout, "pp": 2, "gradient_accumulation_steps": 4}
    every = step(model, system, assigned(**layout))
    actual = step(model, system, DesignPoints.of(sharding="solve", **layout))
    assert actual.peak_memory[0] < system.dram.capacity
    assert actual.step_time[0] == pytest.approx(every.step_time.min(), rel=1e-12)


@pytest.mark.parametrize("model_name", ["gpt", "llama"])
def test_solving_for_bytes_finds_what_trying_everything_finds(model_name, request, toy_system):
    model = request.getfixturevalue(model_name)
    layout = {"tp": [2, 4], "micro_batch_size": 2}
    solved = resolve_sharding(model, toy_system, DesignPoints.of(sharding="solve_bytes", **layout))
    for row, tp in enumerate(layout["tp"]):
        assert layer_bytes(model, solved)[row] == layer_bytes(model, assigned(tp=tp, micro_batch_size=2)).min()


def layer_bytes(model, design):
    """Bytes that a rank sends for one layer, forward and backward."""
    return sum(sum(sent_bytes(ranks_of(model, design), edge)) for edge in DECODER.edges)


def splits(model, design, row=0) -> dict[str, str]:
    """Kernel -> its split, of one design."""
    return EVERY.words(ranks_of(model, design).design.assignment[row])


def test_the_fastest_is_megatrons_second_where_links_are_wide(gpt3_175b, a100):
    """GPT-3 on A100s, within a node: kernels between products are shared out, and the same bytes move."""
    design = DesignPoints.of(tp=[2, 4], pp=8, dp=2, gradient_accumulation_steps=16, sharding="solve")
    solved = resolve_sharding(gpt3_175b, a100, design)
    assert splits(gpt3_175b, solved) == splits(gpt3_175b, solved, 1) == NAMED["megatron_sp"]


@pytest.mark.parametrize("model_name", ["gpt", "llama"])
def test_solving_finds_the_fastest_that_fits(model_name, request, toy_system):
    """Memory between what the fastest takes and the least that any takes: of 1,728 none that fits is faster.

    Starting a collective takes long here, so that the fastest has few, and keeps activations whole.
    """
    model = request.getfixturevalue(model_name)
    slow = toy_system.with_quantities({"node_launch": 1e-3, "fabric_launch": 1e-3})
    layout = {"tp": 4, "pp": 2, "micro_batch_size": 6, "gradient_accumulation_steps": 4}
    every = step(model, slow, assigned(**layout))
    least, fastest = every.peak_memory.min(), every.peak_memory[every.step_time.argmin()]
    assert least < 0.99 * fastest
    for share in (-0.1, 0.0, 0.2, 0.5, 0.9, 1.0):
        capacity = least + share * (fastest - least)
        fits = (every.peak_memory <= capacity) | (share < 0)  # where none fits, any may be taken
        system = slow.with_quantities({"dram_capacity": capacity})
        actual = step(model, system, DesignPoints.of(sharding="solve", **layout))
        assert actual.step_time[0] == pytest.approx(every.step_time[fits].min(), rel=1e-12)


def test_only_shares_of_one_size_are_solved_for(gpt, toy_system):
    """A sequence that tp does not divide is not split; where nothing divides, the names are left."""
    uneven = replace(gpt, seq_len=1151.0)
    solved = resolve_sharding(uneven, toy_system, DesignPoints.of(tp=8, sharding="solve"))
    assert "sequence" not in splits(uneven, solved).values()
    for sharding in ("solve", "solve_bytes"):
        odd = resolve_sharding(uneven, toy_system, DesignPoints.of(tp=7, sharding=sharding))
        assert splits(uneven, odd)["qkv"] == "column"


def test_an_exchange_sends_a_share_of_what_a_gathering_does(gpt):
    """Each of t ranks keeps its share of its share and sends the rest: (t - 1) / t^2 of the whole."""
    edge = DECODER.edges[0]
    assert (edge.start.name, edge.end.name) == ("mlp_residual", "attention_norm")
    ways = {"sharding": "sample", "tp": [2, 4, 8], "mlp_residual_sharding": "column"}
    to_shares = DesignPoints.of(**ways, attention_norm_sharding="sequence")
    to_whole = DesignPoints.of(**ways, attention_norm_sharding="replicated")
    exchanged, gathered = (sent_bytes(ranks_of(gpt, design), edge)[0] for design in (to_shares, to_whole))
    assert gathered == pytest.approx((2 * gpt.seq_len * gpt.hidden_size) * (1 - 1 / to_whole.tp))
    assert exchanged == pytest.approx(gathered / to_shares.tp)


# Solved designs and their explicit shardings -------------------------------------------------------------


def check_explicit(model, system, design):
    """Every column, to the last bit."""
    solved = step(model, system, design)
    explicit = step(model, system, resolve_sharding(model, system, design))
    for column, values in explicit.columns().items():
        assert np.array_equal(values, getattr(solved, column)), column


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0, 8.0])
def test_a_solved_design_costs_what_its_explicit_shardings_do(share, schedule, gpt):
    """In memory for all assignments, and for few."""
    rng, points = np.random.default_rng(3), 60
    system = load_system("a100_80g_dgx")
    known = system.quantities()
    opened = {name: known[name] * rng.uniform(0.5, 2, points) for name in ("cores", "dram_bandwidth")}
    opened["dram_capacity"] = share * 1e9 * rng.uniform(0.5, 2, points)
    system = system.with_quantities({**opened, "reserved_memory": 0.0, "host_dispatch": 2e-5})
    design = DesignPoints.of(
        tp=rng.choice([1, 2, 4], points), pp=rng.choice([1, 2], points),
        micro_batch_size=rng.choice([1, 2], points), recompute=rng.choice(["none", "full"], points),
        gradient_accumulation_steps=4, schedule=schedule, sharding="solve",
    )  # fmt: skip
    check_explicit(gpt, system, design)


def test_solved_designs_with_frozen_weights_or_many_experts_cost_what_their_explicit_shardings_do(gpt, experts):
    """Gradients of biases where only some designs of a batch train adapters; casts for each expert of a rank."""
    rng, points = np.random.default_rng(5), 60
    system = load_system("h100_80g_dgx").with_quantities({"software_expert_casts": 0.6, "host_dispatch": 2e-5})
    for model, differing in (
        (gpt, {"lora_rank": rng.choice([0, 16], points)}),
        (experts, {"ep": rng.choice([1, 2, 4], points), "precision": rng.choice(["bf16", "fp8_blockwise"], points)}),
    ):
        design = DesignPoints.of(
            blocks=model.blocks, tp=rng.choice([2, 4], points), dp=4, sharding="solve",
            micro_batch_size=rng.choice([1, 2, 4], points), **differing,
        )  # fmt: skip
        check_explicit(model, system, design)
