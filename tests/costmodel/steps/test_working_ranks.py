"""Ranks that share sequences or experts really compute: results of one chip, bytes of the model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from costmodel import DesignPoints, ModelShape, load_system
from costmodel.machine import System
from costmodel.steps.micro_batch.exchanges import context_parallel, expert_parallel
from tests.support.runs import ranks_of
from tests.support.sharded_experts import DISPATCHERS, AllToAll, ExpertRanks, Routing, Weights, dense, dense_gradient
from tests.support.shared_sequence import SharedSequence, Tokens, in_two_chunks
from tests.support.wires import Wires

W = 2  # bytes of an element

GROUPED = ModelShape(num_layers=1, hidden_size=64, num_attention_heads=16, num_query_groups=8, head_size=6, seq_len=32)
LATENT = ModelShape(
    num_layers=1, hidden_size=64, num_attention_heads=8, seq_len=32, attention="mla", kv_lora_rank=16,
    qk_nope_head_dim=5, qk_rope_head_dim=3, v_head_dim=6,
)  # fmt: skip
WINDOWED = replace(GROUPED, window=7.0, full_attention_every=0.0)
MODELS = {"grouped": GROUPED, "latent": LATENT, "windowed": WINDOWED}


@pytest.fixture
def links() -> System:
    """Every byte sent costs a joule, on either tier."""
    return load_system("h100_80g_dgx").with_quantities({"node_energy": 1.0, "fabric_energy": 1.0})


def sequence_of(model: ModelShape, seed: int) -> tuple[Tokens, np.ndarray]:
    """Queries, keys and values of a sequence, and a gradient of what attention makes of them."""
    rng, tokens = np.random.default_rng(seed), int(model.seq_len)
    heads, wide, narrow = int(model.num_attention_heads), int(model.score_size), int(model.value_size)
    groups = heads if model.attention == "mla" else int(model.num_query_groups)
    shapes = ((heads, wide), (groups, wide), (groups, narrow), (heads, narrow))
    queries, keys, values, gradient = (rng.normal(size=(tokens, *shape)) for shape in shapes)
    return Tokens(queries, keys, values, np.arange(float(tokens))), gradient


# cp, tp, how, size of the inner exchange of heads
LAYOUTS = [
    (2, 1, "p2p", 1), (4, 2, "p2p", 1), (8, 1, "p2p", 1),
    (2, 2, "all_gather", 1), (4, 1, "all_gather", 1),
    (2, 1, "a2a", 2), (4, 2, "a2a", 4), (8, 1, "a2a", 8),
    (4, 1, "a2a_p2p", 2), (8, 1, "a2a_p2p", 4), (8, 1, "a2a_p2p", 2), (4, 2, "a2a_p2p", 2),
]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("cp", "tp", "how", "inner"), LAYOUTS)
def test_ranks_that_share_a_sequence_attend_as_one_does_and_send_what_the_model_says(name, cp, tp, how, inner, links):
    """Context, and gradients of queries, keys and values; bytes of every rank, forward and backward."""
    model = MODELS[name]
    whole, gradient = sequence_of(model, cp)
    window = model.window or np.inf
    alone = SharedSequence(Wires(1), [0], 1, gathers=False, window=window)
    context = alone.forward([whole])[0]
    gradients = alone.backward([gradient])[0]
    wires, sent = Wires(tp * cp), []
    groups = []
    for share in range(tp):  # ranks of one share of heads are `tp` apart
        group = [share + tp * i for i in range(cp)]
        groups.append(SharedSequence(wires, group, inner, gathers=how == "all_gather", window=window))

    def of_share(array, share):
        return in_two_chunks(np.split(array, tp, axis=1)[share], cp)

    for share, ranks in enumerate(groups):
        columns = [of_share(array, share) for array in whole[:3]]
        shards = [Tokens(*each) for each in zip(*columns, in_two_chunks(whole.places, cp), strict=True)]
        for found, expected in zip(ranks.forward(shards), of_share(context, share), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    sent.append(wires.sent.sum(axis=1))
    for share, ranks in enumerate(groups):
        found = ranks.backward(of_share(gradient, share))
        for part in range(3):
            for own, expected in zip(found, of_share(gradients[part], share), strict=True):
                np.testing.assert_allclose(own[part], expected, rtol=1e-8, atol=1e-11)
        if name != "windowed":
            assert len({done.seen for done in ranks.done}) == 1  # causal work is shared evenly
    sent.append(wires.sent.sum(axis=1) - sent[0])
    run = ranks_of(model, DesignPoints.of(tp=tp, cp=cp, cp_communication=how, cp_a2a=inner), links)
    for direction, elements in zip(("forward", "backward"), sent, strict=True):
        cost = context_parallel(run, 2 * model.key_value_size, np.zeros(1), direction)
        np.testing.assert_allclose(W * elements, cost.link_energy.item(), rtol=1e-12)


def test_attention_by_blocks_of_keys_is_a_softmax():
    """The whole of one rank against a line of algebra, and its gradients against small steps."""
    whole, gradient = sequence_of(GROUPED, 0)
    repeats = whole.queries.shape[1] // whole.keys.shape[1]

    def attended(q, k, v):
        products = np.einsum("qhd,khd->hqk", q, np.repeat(k, repeats, axis=1)) / np.sqrt(q.shape[2])
        weights = np.exp(products) * np.tri(len(q))
        weights = weights / weights.sum(axis=2, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, np.repeat(v, repeats, axis=1))

    alone = SharedSequence(Wires(1), [0], 1, gathers=False)
    np.testing.assert_allclose(alone.forward([whole])[0], attended(*whole[:3]), rtol=1e-10)
    found = alone.backward([gradient])[0]
    rng = np.random.default_rng(1)
    for part in range(3):
        step = rng.normal(size=whole[part].shape)
        ends = []
        for size in (1e-6, -1e-6):
            moved = [*whole[:3]]
            moved[part] = whole[part] + size * step
            ends.append(attended(*moved))
        slope = ((ends[0] - ends[1]) * gradient).sum() / 2e-6
        assert (found[part] * step).sum() == pytest.approx(slope, rel=1e-6)


EXPERTS, CHOSEN, HIDDEN, WIDTH = 8, 2, 6, 8


def experts_of(**fields) -> ModelShape:
    """Eight experts, of which a token meets two."""
    shape = {"num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": 2, "num_experts": EXPERTS,
             "moe_topk": CHOSEN, "moe_ffn_hidden_size": WIDTH}  # fmt: skip
    return ModelShape(**{**shape, **fields})


def weights_of(seed: int, experts: int = EXPERTS) -> Weights:
    rng = np.random.default_rng(seed)
    return Weights(rng.normal(size=(experts, HIDDEN, WIDTH)), rng.normal(size=(experts, WIDTH, HIDDEN)))


def every_choice(ranks: int, seed: int, experts: int = EXPERTS, chosen: int = CHOSEN) -> Routing:
    """Each choice of experts once on each rank: balanced, and the mean over all routings."""
    choices = np.array([*combinations(range(experts), chosen)])
    shares = np.random.default_rng(seed).random((ranks, *choices.shape))
    return Routing(np.broadcast_to(choices, shares.shape), shares)


def skewed(ranks: int, tokens: int, seed: int) -> Routing:
    """Some experts are chosen more often than others."""
    rng = np.random.default_rng(seed)
    likely = np.arange(1, EXPERTS + 1) / np.arange(1, EXPERTS + 1).sum()
    picked = [[rng.choice(EXPERTS, CHOSEN, replace=False, p=likely) for _ in range(tokens)] for _ in range(ranks)]
    return Routing(np.array(picked), rng.random((ranks, tokens, CHOSEN)))


def check_results(ranks: ExpertRanks, seed: int) -> None:
    """Output and gradient of the tokens, against all experts on one chip."""
    count = (ranks.ep * ranks.etp, ranks.tokens, HIDDEN)
    tokens, gradient = np.random.default_rng(seed).normal(size=(2, *count))
    both = ranks.forward(tokens), ranks.wires.sent.copy(), ranks.backward(gradient)
    np.testing.assert_allclose(both[0], dense(ranks.weights, tokens, ranks.routing), rtol=1e-8, atol=1e-10)
    expected = dense_gradient(ranks.weights, tokens, ranks.routing, gradient)
    np.testing.assert_allclose(both[2], expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(ranks.wires.sent, 2 * both[1])  # the same ways back


def model_bytes(model: ModelShape, node_size: int, ranks: ExpertRanks, how: str, **columns) -> list[float]:
    """Bytes that a rank sends within its node and to others, dispatch and combination together."""
    found = []
    tp = 2 if ranks.etp % 2 == 0 else 1
    shape = replace(model, seq_len=float(ranks.tokens * tp))
    design = DesignPoints.of(
        blocks=shape.blocks, tp=tp, dp=ranks.ep * ranks.etp / tp, ep=ranks.ep, etp=ranks.etp,
        sequence_parallel=tp > 1, dispatcher=how, **columns,
    )  # fmt: skip
    for tier in ("node", "fabric"):
        energies = {f"{name}_energy": float(name == tier) for name in ("node", "fabric")}
        energies["node_in_switch"] = 0.0  # rings
        system = load_system("h100_80g_dgx").with_quantities({"node_size": float(node_size), **energies})
        cost = expert_parallel(ranks_of(shape, design, system))
        found.append(float(np.broadcast_to(cost.link_energy, (1,))[0]))
    return found


PLACES = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (2, 4)]


@pytest.mark.parametrize("how", DISPATCHERS)
@pytest.mark.parametrize("node_size", [2, 4, 8])
@pytest.mark.parametrize(("ep", "etp"), PLACES)
def test_ranks_that_hold_experts_compute_what_one_does_and_send_what_the_model_says(how, ep, etp, node_size):
    """All choices of experts once on each rank: bytes are those of the model, on each tier."""
    node_size = max(node_size, etp)
    ranks = DISPATCHERS[how](ep, etp, weights_of(ep), every_choice(ep * etp, etp), node_size=node_size)
    check_results(ranks, ep + etp)
    sent = [W * own.mean() / 2 for own in ranks.wires.between(node_size)]  # forward and backward alike
    expected = model_bytes(experts_of(), node_size, ranks, how)
    assert sent == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("how", DISPATCHERS)
@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (8, 1), (2, 2), (4, 2)])
def test_unbalanced_tokens_all_arrive(how, ep, etp):
    """And what is sent is received, each row once there and once back."""
    ranks = DISPATCHERS[how](ep, etp, weights_of(1), skewed(ep * etp, 11, ep), node_size=4)
    check_results(ranks, 5)
    assert ranks.wires.sent.sum(axis=1).sum() == ranks.wires.sent.sum(axis=0).sum()


@pytest.mark.parametrize(("ep", "chosen"), [(4, 3), (8, 3), (4, 1), (8, 5)])
def test_tokens_sent_once_to_each_node_and_rank_are_counted_for_any_number_of_experts(ep, chosen):
    routing = every_choice(ep, 1, chosen=chosen)
    ranks = DISPATCHERS["two_hop"](ep, 1, weights_of(2), routing, node_size=2)
    check_results(ranks, 3)
    sent = [W * own.mean() / 2 for own in ranks.wires.between(2)]
    assert sent == pytest.approx(model_bytes(experts_of(moe_topk=chosen), 2, ranks, "two_hop"), rel=1e-12)


@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (2, 2)])
def test_the_fullest_rank_receives_what_the_model_says_of_an_imbalance(ep, etp):
    """All ranks have the same tokens, most for the last experts: others send it r times the mean."""
    one = skewed(1, 24, 7)
    routing = Routing(*(np.repeat(array, ep * etp, axis=0) for array in (one.experts, one.shares)))
    ranks = AllToAll(ep, etp, weights_of(3), routing)
    places = one.experts // (EXPERTS // ep)
    loads = np.bincount(places.ravel(), minlength=ep)
    ranks.arrived(np.zeros((ep * etp, 24, HIDDEN)))
    received = W * ranks.wires.sent.sum(axis=0).max()
    expected = sum(model_bytes(experts_of(), 8, ranks, "all_to_all", imbalance=loads.max() / loads.mean()))
    assert 2 * received == pytest.approx(expected)


@pytest.mark.parametrize("capacity", [2, 4, 6, 9])
@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (2, 2), (8, 1)])
def test_ranks_with_a_capacity_drop_and_pad_and_send_what_the_model_says(capacity, ep, etp):
    """However unbalanced routing is, each expert has its capacity of rows from each rank."""
    tokens = 16
    routing = skewed(ep * etp, tokens, capacity)
    ranks = AllToAll(ep, etp, weights_of(4), routing, capacity=capacity)
    taken = np.zeros_like(routing.shares)
    for rank in ranks.ranks:
        for copy in ranks.copies(rank):
            if copy.token >= 0:
                taken[rank, copy.token] += routing.experts[rank, copy.token] == copy.expert
    kept = replace(ranks, routing=Routing(routing.experts, routing.shares * taken))
    check_results(kept, 6)
    rows = len(kept.kept[0]) / kept.each
    assert rows == capacity * ep * etp
    sent = [W * own / 2 for own in kept.wires.between(8)]
    factor = capacity * EXPERTS / (CHOSEN * tokens)
    expected = model_bytes(experts_of(), 8, kept, "all_to_all", capacity_factor=factor)
    for own, of_model in zip(sent, expected, strict=True):
        np.testing.assert_allclose(own, of_model, rtol=1e-12)
    assert taken.sum() < taken.size or capacity == 9
