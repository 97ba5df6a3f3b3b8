"""States of data parallelism and optimizers: bytes kept, bytes sent, what hides, what hosts hold."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from costmodel import DesignPoints, ModelShape, load_model, load_system, model_names, step
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.kernels.kernel_tables import WeightMatrix, orthogonal_products, weight_matrices
from costmodel.steps.micro_batch.micro_batch import MicroBatch
from costmodel.steps.micro_batch.rank_memory import PartMemory
from costmodel.steps.optimizer import iteration_costs
from costmodel.steps.parameter_states import owned_matrices
from costmodel.steps.pipeline.pipeline_step import offloaded_activations, transfer_waits
from costmodel.steps.pipeline.stages import Stage
from costmodel.steps.update import Unit, pass_exposure
from costmodel.training.ranks import Group, Sharing
from tests.support.cases import by_table, cases
from tests.support.runs import designs, run_of

WEIGHT, GRADIENT = 2, 4  # bytes


@pytest.fixture
def small() -> ModelShape:
    """Eight layers of Llama 3 8B."""
    return replace(load_model("llama3_8b"), num_layers=8.0)


# --- Bytes of states -------------------------------------------------------------------------------------

#: NVIDIA/Megatron-LM, docs of the distributed optimizer and of the precision-aware one: bytes of a parameter
#: among D replicas. Zero 0 shares out nothing.
BYTES = [
    # moments, remainders, whole, sharded
    ("fp32", 0, 18, lambda d: 6 + 12 / d),
    ("bf16", 0, 14, lambda d: 6 + 8 / d),
    ("fp32", 1, 16, lambda d: 6 + 10 / d),
    ("bf16", 1, 12, lambda d: 6 + 6 / d),
]


def state_memory(model, system, **columns):
    """Bytes of weights, gradients and optimizer states."""
    b = step(model, system, DesignPoints.of(blocks=model.blocks, **columns))
    return (b.weights_memory + b.gradients_memory + b.optimizer_memory).item()


@pytest.mark.parametrize(("moments", "remainders", "whole", "sharded"), BYTES)
@pytest.mark.parametrize("replicas", [1, 2, 8, 64])
def test_bytes_of_a_parameter_are_those_of_megatrons_optimizers(
    moments, remainders, whole, sharded, replicas, small, h100
):
    how = {"dp": replicas, "moments": moments, "store_param_remainders": remainders}
    kept = [state_memory(small, h100, zero=zero, **how) / small.num_parameters for zero in (0, 1)]
    assert kept == pytest.approx([whole, sharded(replicas)])


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_muon_keeps_eight_bytes_of_matrices_and_twelve_of_all_else(replicas, small, h100):
    """Owners have equal shares where replicas divide eight layers; tables, head and norms have Adam."""
    matrices = small.num_layers * sum(map(small.weights, small.sequence[0][0].kernels))
    others = small.num_parameters - matrices
    kept = state_memory(small, h100, dp=replicas, zero=1, optimizer="muon")
    assert kept == pytest.approx(6 * small.num_parameters + (8 * matrices + 12 * others) / replicas)


def test_working_memory_is_two_layers_of_what_is_shared_out(small, h100):
    """Of gradients in stage 2; of weights too in stage 3, unless they stay whole after the forward pass."""
    layer = small.layer_parameters(small.sequence[0][0])
    plain, gradients, both, kept = (
        step(small, h100, DesignPoints.of(dp=8, zero=zero, reshard_after_forward=again)).buffers_memory.item()
        for zero, again in ((1, 1), (2, 1), (3, 1), (3, 0))
    )
    assert gradients - plain == pytest.approx(2 * GRADIENT * layer)
    assert both - plain == pytest.approx(2 * (GRADIENT + WEIGHT) * layer)
    assert kept == gradients


# --- Copies of the states --------------------------------------------------------------------------------


def test_shares_are_neighbours_and_copies_are_not():
    whole = Group(np.array([12.0, 12.0, 12.0, 4.0]), np.full(4, 2.0))
    sharing = Sharing.of(whole, np.array([1.0, 4.0, 12.0, 8.0]))
    assert sharing.shards.size.tolist() == [12, 3, 1, 1]
    assert sharing.shards.stride.tolist() == [2, 2, 2, 2]
    assert sharing.copies.size.tolist() == [1, 4, 12, 4]  # of 8 copies of 4 ranks, 4
    assert sharing.copies.stride.tolist() == [24, 6, 2, 2]


def test_copies_exchange_gradients_and_weights_that_they_divide(small, links):
    """Shares of a node of 8, a copy on each of 2 nodes: only exchanges of copies leave the node.

    Copies all-reduce gradients. Where they divide the optimizer's states, they reduce-scatter them, and gather weights
    before both passes of the first micro-batch (Megatron-FSDP, `all_gather_params`).
    """
    m, copies = 4, 2
    inside, outside = (
        links.with_quantities({f"{tier}_energy": 0.0}) for tier in ("fabric", "node")
    )  # fmt: skip
    base = {"dp": 16, "gradient_accumulation_steps": m, "shard_replicas": copies}
    parameters, of_passes = small.num_parameters, m * (GRADIENT + 2 * WEIGHT)
    for zero, outer, sent, between in (
        (1, "no_shard", GRADIENT + WEIGHT, 2 * GRADIENT),
        (2, "no_shard", m * GRADIENT + WEIGHT, 2 * GRADIENT),
        (3, "no_shard", of_passes, 2 * GRADIENT),
        (3, "optim", of_passes, GRADIENT + 2 * WEIGHT),
    ):
        design = DesignPoints.of(**base, zero=zero, outer_dp_sharding_strategy=outer)
        node, fabric = ((step(small, system, design).link_energy / 16).item() for system in (inside, outside))
        assert node == pytest.approx(parameters * sent * 7 / 8)
        assert fabric == pytest.approx((copies - 1) / copies * parameters * between / 8)


def test_experts_have_copies_of_their_own(experts, h100):
    """Of 4 replicas of an expert 2 copies: shares of 2, beside shares of 8 of all else; 12 of 18 bytes are halved."""
    base = {"dp": 16, "ep": 4, "zero": 3}
    owned = 3 * experts.hidden_size * experts.moe_ffn_hidden_size * experts.num_experts * experts.num_layers / 4
    kept = [
        state_memory(experts, h100, **base, shard_replicas=copies, outer_dp_sharding_strategy=outer)
        for copies, outer in ((1, "optim"), (2, "no_shard"), (2, "optim"))
    ]
    assert kept[1] == pytest.approx(((kept[0] - 18 * owned / 4) * 16) / 8 + 18 * owned / 2)
    assert kept[2] == pytest.approx(kept[1] * 12 / 18)


# --- What hides ------------------------------------------------------------------------------------------


def exposed_by_events(exchange, compute):
    """Layers one after the other: each waits for its own weights, gathered while the layer before ran."""
    link, chip = exchange[0], exchange[0]  # the first gather
    for time, following in zip(compute, [*exchange[1:], 0.0], strict=True):
        link, chip = max(link, chip) + following, max(chip, link) + time
    return max(chip, link) - sum(compute)


@pytest.mark.parametrize("exchange", [0.5, 1.0, 2.0, 3.5])
def test_of_each_layer_is_exposed_what_is_longer_than_the_layer(exchange):
    """Against an event by event account: the first gather, and of others what is longer than a layer."""
    layers, compute = 6, 2.0
    units = [Unit((), {"forward": np.array([compute])}, np.array([float(layers)]), is_layer=True)]
    exposed, hidden = pass_exposure(units, [np.array([exchange])], "forward")
    assert exposed + (hidden / layers) == pytest.approx(exposed_by_events([exchange] * layers, [compute] * layers))
    assert exposed + hidden == pytest.approx(layers * exchange)


GRID = cases(__file__, "GRID")


def grid(**columns):
    """Every combination of `GRID`, beside columns that all share."""
    names, rows = [*GRID], np.array([*product(*GRID.values())], dtype=float)
    return DesignPoints.of(dp=16, **dict(zip(names, rows.T, strict=True)), **columns)


def test_exposed_exchanges_are_part_of_those_sent_and_shrink_with_bandwidth(small, h100):
    """On slow links and on fast ones; gathered weights hide where they may, and gradients do. No cores are taken."""
    times = []
    for factor in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0):
        rates = {name: factor * h100.quantities()[name] for name in ("node_bandwidth", "fabric_bandwidth")}
        system = h100.with_quantities({**rates, "dp_collective_cores": 0.0})
        designs = [grid(overlap_grad_reduce=on, overlap_param_gather=too) for on, too in ((1, 1), (1, 0), (0, 1))]
        costs = [step(small, system, design) for design in designs]
        hidden, half, whole = (cost.dp_communication_time for cost in costs)
        assert np.all((hidden > 0) & (hidden <= half + 1e-12 * whole) & (half <= whole * (1 + 1e-12)))
        times.append(np.stack([cost.step_time for cost in costs]))
    for slower, faster in pairwise(times):
        assert np.all(faster <= slower * (1 + 1e-12))


def test_weights_that_stay_are_gathered_once_where_micro_batches_interleave(small, links):
    """m P wp where passes of a micro-batch follow one another; P wp where several are under way."""
    m = 4

    def gathered(**columns):
        base = {"dp": 8, "gradient_accumulation_steps": m, **columns}
        kept, resharded = (
            step(small, links, DesignPoints.of(**base, zero=3, reshard_after_forward=again)).link_energy
            for again in (0, 1)
        )
        return ((resharded - kept) / base["dp"] / base.get("pp", 1)).item()

    first = [0.0, 0.0]
    for index, pp in enumerate((1, 4)):
        layers = small.num_layers / pp
        parameters = layers * small.layer_parameters(small.sequence[0][0]) + small.embedding_parameters * (pp == 1)
        parameters += small.head_parameters + small.norm_parameters  # of the last stage, which is done last
        first[index] = parameters * WEIGHT * 7 / 8
    assert gathered() == pytest.approx(first[0] * m)
    assert gathered(pp=4) == pytest.approx(first[1] * (2 * m - 1))


def test_a_chunk_hides_its_last_gradients_behind_the_next_forward_pass(h100):
    """Llama 3.1 405B on 16,384 H100s, stage 2: layers of chunks of their own wait least."""
    model = load_model("llama3_405b")
    design = DesignPoints.of(
        tp=8, pp=16, vpp=[1, 2, 4, 8], dp=128, gradient_accumulation_steps=16, zero=2, sequence_parallel=1,
        overlap_grad_reduce=1,
    )  # fmt: skip
    exposed = step(model, h100, design).dp_communication_time
    assert np.all(np.diff(exposed) <= 0)
    assert exposed[-1] < 0.8 * exposed[0]


# --- Optimizers ------------------------------------------------------------------------------------------


def test_flops_of_an_orthogonal_step_by_hand():
    """A matrix of 3 x 5: 4 n^2 q + 2 n^3 = 4 * 9 * 5 + 2 * 27 = 234, in each of five steps."""
    matrix = WeightMatrix("w", 0, 3.0, 5.0, 1.0, of_experts=False, whole=False)
    gemms = orthogonal_products([matrix])
    assert (2 * gemms.m * gemms.n * gemms.k).sum() == 234
    system = load_system("a100_80g_dgx").with_quantities({"energy_per_flop": 1.0})
    [cost] = iteration_costs([matrix], system)
    assert cost.compute_energy == pytest.approx(5 * 234)


def test_large_matrices_run_at_the_rate_of_products(h100):
    """8192 x 8192: five steps at 60 to 87 % of the peak."""
    matrix = WeightMatrix("w", 0, 8192.0, 8192.0, 1.0, of_experts=False, whole=False)
    [cost] = iteration_costs([matrix], h100)
    assert 0.6 < 5 * 6 * 8192**3 / cost.time / h100.chip.peak_flop_rate < 0.87


@pytest.mark.parametrize("owners", [1, 2, 3, 5, 7, 16, 64, 512])
def test_the_fullest_owner_is_the_first_whom_matrices_are_dealt(owners, small):
    """Against dealing them out one by one, the largest first."""
    design = DesignPoints.of(dp=owners, zero=1, optimizer="muon")
    stage = Stage((small.num_layers * np.ones(1), np.ones(1), np.ones(1)), np.zeros(1))
    matrices = weight_matrices(small)
    actual = owned_matrices(run_of(small, design), stage, matrices)
    deck = [matrix.size for matrix in matrices for _ in range(int(small.num_layers))]
    assert deck == sorted(deck, reverse=True)
    fullest = max(sum(deck[owner::owners]) for owner in range(owners))
    load = sum(owned.item() * matrix.size for matrix, (_, owned) in zip(matrices, actual, strict=True))
    assert load == fullest
    assert sum(deck) / owners <= load


@pytest.mark.parametrize("name", [name for name in model_names() if not name.startswith("lstm")])
def test_matrices_of_muon_are_all_weights_of_layers(name):
    """All but vectors, such as the gates of shared experts; also where outputs of attention are in groups."""
    model = load_model(name)
    counts, copies = [*model.kinds.values(), 0.0, 0.0, 1.0], {True: model.num_experts, False: 1.0}
    in_matrices = sum(m.size * m.repeats * copies[m.of_experts] * counts[m.part] for m in weight_matrices(model))
    layers = [*model.kinds.items(), *([(model.mtp_layer, model.mtp_layers)] if model.mtp_layers else [])]
    weights = sum(count * sum(map(model.weights, layer.kernels)) for layer, count in layers)
    assert weights * (1 - 1e-5) < in_matrices <= weights * (1 + 1e-12)


@by_table("columns", "copies", "size")
def test_traffic_of_an_update(small, h100, columns, copies, size):
    """Bytes of a parameter of one of 8 replicas, beyond those of an update in fp32 by software that copies nothing."""
    plain, other = (
        step(small, h100.with_quantities({"software_update_copies": number}), DesignPoints.of(**design)).optimizer_time
        for number, design in ((0, {"dp": 8, "zero": 1}), (copies, {"dp": 8, "zero": 1} | columns))
    )
    moved = (other - plain).item() * float(h100.dram.bandwidth * h100.dram.efficiency)
    assert moved == pytest.approx(size * small.num_parameters)


# --- Hosts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_process", "used"), [(np.inf, 76.8e9), (1e12, 76.8e9), (18e9, 18e9)])
def test_time_of_an_offloaded_update(small, h100, of_process, used):
    """Gradients down, weights up; 28 bytes of a parameter read and written by the host, none by the chip."""
    machine = h100.with_quantities({"software_host_update_bandwidth": of_process})
    chip, host = step(small, machine, DesignPoints.of(dp=8, zero=1, offload_optimizer=[0, 1])).optimizer_time
    a_parameter = (GRADIENT + WEIGHT) / 64e9 + 28 / used - 28 / float(h100.dram.bandwidth * h100.dram.efficiency)
    assert host - chip == pytest.approx(a_parameter * small.num_parameters / 8 - float(h100.chip.kernel_launch))


@by_table("columns", "part", "waits")
def test_transfers_hide_behind_their_layer(small, h100, columns, part, waits):
    """Of each layer, and in each direction, 3 ms of activations or of shards over 64 GB/s hide behind its pass."""
    forward, backward, empty = (KernelCost(time=np.array([time])) for time in (2e-3, 4e-3, 0.0))
    costs = MicroBatch((forward, empty, empty), (backward, empty, empty), (empty,), (empty,))
    layer = PartMemory(**{name: np.array([size]) for name, size in part.items()})
    run = run_of(small, DesignPoints.of(**columns), h100.with_quantities({"software_offloaded_shards": 4.0}))
    moved = offloaded_activations(run, costs, [layer, PartMemory(), PartMemory()])
    assert moved.forward[0].total_time == pytest.approx([2e-3 + wait for wait in waits])
    assert not moved.backward[0].offload_time.any()
    assert state_memory(small, run.system, dp=8, zero=3, offload_optimizer=1) == 0


@pytest.mark.parametrize(("dense", "waits"), [(10.0, 28 / 58), (40.0, 0.0)])
def test_layers_of_other_kinds_hide_transfers_of_modules(dense, waits):
    """58 layers with experts take 4 s and transfers 5 s; three dense layers move nothing. Whole layers wait alone."""
    model = load_model("deepseek_v3")
    run = run_of(model, designs(model, offload_expert_fc1=[1, 0]))
    actual = transfer_waits(run, [np.zeros(2), np.full(2, 5.0)], [np.full(2, dense), np.full(2, 4.0)])
    np.testing.assert_allclose(actual, [[0, 0], [waits, 1]])


def test_layers_without_recomputation_move_all_their_activations_and_wait_without_it(small, h100):
    """Over a slow link, a model that recomputes half of its layers takes the mean of all and none of them."""
    slow = h100.with_quantities({"host_link_bandwidth": 1e8})

    def step_time(recompute: str, layers: int) -> float:
        design = DesignPoints.of(
            recompute=recompute, recompute_layers=layers, recompute_method="block", offload_activations=1
        )
        return float(step(small, slow, design).step_time[0])

    half = small.num_layers // 2
    assert step_time("full", half) == pytest.approx((step_time("full", 0) + step_time("none", 0)) / 2, rel=1e-3)
