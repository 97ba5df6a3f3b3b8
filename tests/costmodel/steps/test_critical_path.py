"""1F1B pipelines in closed form: as long as a simulation of every pass, however a design is stated."""

from itertools import pairwise

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, model_names, step
from costmodel.columns import concatenated
from costmodel.steps.pipeline.simulation import Sizes, one_forward_one_backward_time
from costmodel.steps.pipeline.stages import chunk_sizes, pipeline_stages, rank_layers
from costmodel.steps.stage_memory import held_micro_batches
from costmodel.training.design import LAYOUTS
from costmodel.training.model import ModelShape
from tests.support.cases import by_table
from tests.support.pipelines import pipeline_times

POINTS = 12


def random_pipeline(rng):
    """Sizes of a pipeline, and shares of work of its ranks: even inner ranks, layers, or anything."""
    p, v = int(rng.integers(1, 17)), int(rng.choice([1, 2, 3, 4, 6]))
    v = v if p > 1 else 1
    m = p * int(rng.integers(1, 6)) if v > 1 else int(rng.integers(1, 50))
    scale = np.ones((p, POINTS))
    kind = rng.integers(3)
    if kind == 0:
        scale[0], scale[-1] = rng.uniform(0.7, 1.4, (2, POINTS))
    else:
        scale *= rng.integers(1, 5, scale.shape) if kind == 1 else rng.uniform(0.2, 2.0, scale.shape)
    return p, v, m, scale


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_chain_is_the_time_of_a_simulation_of_every_pass(seed):
    rng = np.random.default_rng(seed)
    p, v, m, scale = random_pipeline(rng)
    forward, backward = rng.uniform(0.5, 1, POINTS), rng.uniform(0.5, 3, POINTS)
    shortest = np.minimum(forward, backward) * scale.min(axis=0)
    message = shortest * rng.choice([0.0, 0.1, 1.0], POINTS) * (v > 1)
    one = np.ones(POINTS)
    sizes = Sizes(np.arange(p)[:, np.newaxis] * one, p * one, v * one, m * v * one)
    actual = one_forward_one_backward_time(forward * scale, backward * scale, message=message, sizes=sizes)
    expected = pipeline_times(
        schedule="1f1b", pp=p, vpp=v, gradient_accumulation_steps=m, forward_time=forward,
        input_gradient_time=backward, weight_gradient_time=0.0, message_time=message, stage_scale=scale.T,
    ).makespan  # fmt: skip
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def stated_otherwise(model, design):
    """Designs with the same layers on every chunk, stated by other columns.

    By the layers of the first and the last stage, by a text for all chunks, by a group size, and for one
    stage by counting table and head as layers.
    """
    sizes = chunk_sizes(model.num_layers, design)[0]
    first, last = (rank_layers(model, design)[0, rank, :-3].sum() for rank in (0, int(design.pp.item()) - 1))
    text = "|".join("t" * int(layers) for layers in sizes[0])
    ways = [
        {"first_stage_layers": first}, {"last_stage_layers": last},
        {"first_stage_layers": first, "last_stage_layers": last}, {"pipeline_layout": LAYOUTS.index(f"E{text}L")},
        {"group_size": design.pp.item()}, {"count_embedding": 1, "count_loss": 1},
    ]  # fmt: skip
    for way in ways:
        other = design.with_columns({name: np.full(1, float(value)) for name, value in way.items()})
        if np.array_equal(chunk_sizes(model.num_layers, other)[0], sizes):
            yield way, other


def random_design(rng, model):
    """A design of a model: 1F1B with or without chunks, experts, overlap, recomputation and ZeRO."""
    pp = float(rng.choice([1, 2, 3, 4, 8]))
    vpp = float(rng.choice([1, 2, 3])) if pp > 1 else 1.0
    columns = {
        "tp": rng.choice([1, 2, 4]), "dp": 8, "pp": pp, "vpp": vpp, "zero": rng.integers(0, 4),
        "gradient_accumulation_steps": pp * rng.integers(1, 5), "micro_batch_size": rng.choice([1, 2]),
        "recompute": rng.integers(0, 3), "overlap_p2p": rng.integers(0, 2), "overlap_grad_reduce": 1,
        "sequence_parallel": 1,
    }  # fmt: skip
    if model.num_experts:
        columns |= {"ep": 4, "overlap_ep": rng.integers(0, 2)}
    return DesignPoints.of(blocks=model.blocks, **columns)


#: A transformer of each kind: those of one kind differ in sizes alone.
OF_EACH_KIND = {model.blocks: model.name for model in map(load_model, model_names()) if isinstance(model, ModelShape)}


@pytest.mark.parametrize("name", OF_EACH_KIND.values())
def test_a_design_has_one_price_and_one_memory_however_it_is_stated(name):
    model, system, rng = load_model(name), load_system("h100_80g_dgx"), np.random.default_rng(0)
    pairs = [
        (design, other, way)
        for design in (random_design(rng, model) for _ in range(6))
        for way, other in stated_otherwise(model, design)
    ]
    both = step(model, system, concatenated([pair[index] for index in (0, 1) for pair in pairs]))
    for column, values in both.columns().items():
        np.testing.assert_array_equal(*np.split(values, 2), err_msg=column)
    assert {column for *_, way in pairs for column in way} >= {"pipeline_layout", "group_size"}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_more_work_is_never_faster(zero):
    """Recomputation of modules, then of layers; slower attention: on one stage and on several."""
    system, rng = load_system("trainium2_96g"), np.random.default_rng(zero)
    for name in ("gpt_oss_20b", "deepseek_v2_lite", "llama3_8b"):
        model = load_model(name)
        designs = DesignPoints.of(
            blocks=model.blocks, tp=np.tile(rng.choice([1, 2, 4, 8], 40), 3), dp=16,
            pp=np.tile(rng.choice([1, 2, 4, 8, 16], 40), 3), gradient_accumulation_steps=16, zero=zero,
            overlap_grad_reduce=1, sequence_parallel=1, recompute=np.repeat(["none", "selective", "full"], 40).tolist(),
        )  # fmt: skip
        for less, more in pairwise(np.split(step(model, system, designs).step_time, 3)):
            assert (more >= less * (1 - 1e-12)).all()


def simulated_in_flight(p: int, v: int, m: int, rank: int) -> int:
    """Most chunks whose activations a rank holds in Megatron-LM's schedule, run step by step."""
    chunks = m * v
    ahead = p - rank - 1 if v == 1 else 2 * (p - rank - 1) + (v - 1) * p
    warm_up = min(ahead, chunks)
    held = most = 0
    for turn in ["forward"] * warm_up + ["forward", "backward"] * (chunks - warm_up):
        held += 1 if turn == "forward" else -1
        most = max(most, held)
    return most


@by_table("p", "v", "m")
def test_activations_in_flight_are_those_of_the_schedule_run_step_by_step(p, v, m):
    model = load_model("gpt3_175b")
    design = DesignPoints.of(pp=p, vpp=v, gradient_accumulation_steps=m)
    stages = pipeline_stages(model, design).runs
    for stage, held in zip(stages, held_micro_batches(design, stages), strict=True):
        assert v * held.item() == pytest.approx(simulated_in_flight(p, v, m, int(stage.rank.item())))


def test_a_published_recipe_of_overlapped_exchanges_fits():
    """Megatron-Bridge, card of Qwen3-30B-A3B on 16 H100: 62.166 GiB allocated on rank 0, reserved aside."""
    model, system = load_model("qwen3_30b_a3b"), load_system("h100_80g_dgx")
    recipe = {
        "dp": 16, "ep": 16, "gradient_accumulation_steps": 64, "zero": 1, "dispatcher": "two_hop",
        "overlap_grad_reduce": 1, "overlap_param_gather": 1,
    }  # fmt: skip
    beside, alone = (
        step(model, system, DesignPoints.of(blocks=model.blocks, **recipe, overlap_ep=on)) for on in (1, 0)
    )
    allocated = (beside.peak_memory - beside.reserved_memory).item()
    assert allocated == pytest.approx(66.75e9, rel=0.1)
    assert beside.peak_memory.item() < system.dram.capacity
    assert 0 < (beside.activations_memory - alone.activations_memory).item() < 0.05 * allocated
