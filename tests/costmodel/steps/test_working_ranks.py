"""Bytes of ranks that share sequences or experts, against messages counted one by one."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from costmodel import DesignPoints, ModelShape, load_system
from costmodel.steps.micro_batch.exchanges import context_parallel, expert_parallel
from tests.support.runs import ranks_of

W = 2  # bytes of an element

GROUPED = ModelShape(num_layers=1, hidden_size=64, num_attention_heads=16, num_query_groups=8, head_size=6, seq_len=32)
LATENT = ModelShape(
    num_layers=1, hidden_size=64, num_attention_heads=8, seq_len=32, attention="mla", kv_lora_rank=16,
    qk_nope_head_dim=5, qk_rope_head_dim=3, v_head_dim=6,
)  # fmt: skip
WINDOWED = replace(GROUPED, window=7.0, full_attention_every=0.0)

# cp, tp, how, size of the inner exchange of heads
LAYOUTS = [
    (2, 1, "p2p", 1), (4, 2, "p2p", 1), (8, 1, "p2p", 1), (2, 2, "all_gather", 1), (4, 1, "all_gather", 1),
    (2, 1, "a2a", 2), (4, 2, "a2a", 4), (8, 1, "a2a", 8),
    (4, 1, "a2a_p2p", 1), (4, 1, "a2a_p2p", 4), (4, 1, "a2a_p2p", 2),
    (8, 1, "a2a_p2p", 4), (8, 1, "a2a_p2p", 2), (4, 2, "a2a_p2p", 2),
]  # fmt: skip


@pytest.mark.parametrize("model", [GROUPED, LATENT, WINDOWED], ids=["grouped", "latent", "windowed"])
@pytest.mark.parametrize(("cp", "tp", "how", "inner"), LAYOUTS)
def test_ranks_that_share_a_sequence_send_keys_around_and_heads_to_their_tokens(model, cp, tp, how, inner, links):
    """Inner groups exchange queries, keys, values and context; keys and values pass all outer groups, twice to go back.

    A ring and gathered keys send the same.
    """
    heads, tokens = model.num_attention_heads, model.seq_len / cp
    groups = heads if model.attention == "mla" else model.num_query_groups
    keys_and_values = groups * (model.score_size + model.value_size) / tp
    whole = keys_and_values + heads * (model.score_size + model.value_size) / tp
    run = ranks_of(model, DesignPoints.of(tp=tp, cp=cp, cp_communication=how, cp_a2a=inner), links)
    for direction, passes in (("forward", 1), ("backward", 2)):
        expected = W * tokens * ((inner - 1) / inner * whole + passes * (cp / inner - 1) * keys_and_values)
        cost = context_parallel(run, 2 * model.key_value_size, np.zeros(1), direction)
        assert cost.link_energy.item() == pytest.approx(expected, rel=1e-12)


EXPERTS, CHOSEN, HIDDEN = 8, 2, 6


def experts_of(**fields) -> ModelShape:
    """Eight experts, of which a token meets two."""
    shape = {"num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": 2, "num_experts": EXPERTS,
             "moe_topk": CHOSEN, "moe_ffn_hidden_size": 8}  # fmt: skip
    return ModelShape(**{**shape, **fields})


def every_choice(chosen: int) -> list[tuple[int, ...]]:
    """Tokens of a rank: each choice of experts once, which is balanced, and the mean over all routings."""
    return [*combinations(range(EXPERTS), chosen)]


def dispatched(how: str, ep: int, etp: int, tokens: list[tuple[int, ...]], node_size: int) -> np.ndarray:
    """Rows of `hidden` that each rank sends to each other one, from the experts that each token has chosen.

    Rank `ep_rank * etp + i` holds the i-th share of its experts. Rows for an expert go to the holder with the
    sender's i; then its neighbours that share the expert gather them around a ring. In two hops a token goes once
    to each node, to the rank there with the sender's place, and from that one to each holder.
    """
    ranks = ep * etp
    sent, rows = np.zeros((ranks, ranks)), np.zeros(ranks)
    if how == "all_gather":
        for rank in range(ranks):
            sent[rank, (rank + 1) % ranks] += (ranks - 1) * len(tokens)
        return without_own(sent)
    for rank in range(ranks):
        for token in tokens:
            holders = [expert // (EXPERTS // ep) * etp + rank % etp for expert in token]
            if how == "all_to_all":
                for holder in holders:
                    sent[rank, holder] += 1
            else:
                holders = sorted({*holders})
                ways = [holder - holder % node_size + rank % node_size for holder in holders]
                for way in {*ways}:
                    sent[rank, way] += 1
                for way, holder in zip(ways, holders, strict=True):
                    sent[way, holder] += 1
            for holder in holders:
                rows[holder] += 1
    for first in range(0, ranks, etp):
        for i in range(etp):
            here, target = first + i, first + (i + 1) % etp
            sent[here, target] += rows[first : first + etp].sum() - rows[target]
    return without_own(sent)


def without_own(sent: np.ndarray) -> np.ndarray:
    """Messages without those that a rank keeps."""
    return sent * (1 - np.eye(len(sent)))


def on_tiers(sent: np.ndarray, node_size: int) -> list[float]:
    """Bytes that a rank sends within its node and to others, dispatch and combination together; the mean."""
    node = np.arange(len(sent)) // node_size
    inside = node[:, np.newaxis] == node
    return [2 * W * HIDDEN * (sent * mask).sum() / len(sent) for mask in (inside, ~inside)]


def model_bytes(model: ModelShape, ep: int, etp: int, tokens: int, node_size: int, how: str, **columns) -> list[float]:
    """The same by the cost model."""
    actual = []
    tp = 2 if etp % 2 == 0 else 1
    shape = replace(model, seq_len=float(tokens * tp))
    design = DesignPoints.of(
        blocks=shape.blocks, tp=tp, dp=ep * etp / tp, ep=ep, etp=etp, sequence_parallel=tp > 1, dispatcher=how,
        **columns,
    )  # fmt: skip
    for tier in ("node", "fabric"):
        energies = {f"{name}_energy": float(name == tier) for name in ("node", "fabric")}
        energies["node_in_switch"] = 0.0  # rings
        system = load_system("h100_80g_dgx").with_quantities({"node_size": float(node_size), **energies})
        cost = expert_parallel(ranks_of(shape, design, system))
        actual.append(float(np.broadcast_to(cost.link_energy, (1,))[0]))
    return actual


PLACES = [
    (1, 1, 2), (2, 1, 2), (4, 1, 2), (8, 1, 2), (1, 2, 2), (2, 2, 2), (4, 2, 2), (2, 4, 2),
    (4, 1, 3), (8, 1, 3), (4, 1, 1), (8, 1, 5),
]  # fmt: skip


@pytest.mark.parametrize("how", ["all_to_all", "all_gather", "two_hop"])
@pytest.mark.parametrize("node_size", [2, 4, 8])
@pytest.mark.parametrize(("ep", "etp", "chosen"), PLACES)
def test_ranks_that_hold_experts_send_what_the_model_says(how, ep, etp, chosen, node_size):
    node_size, tokens, model = max(node_size, etp), every_choice(chosen), experts_of(moe_topk=chosen)
    sent = on_tiers(dispatched(how, ep, etp, tokens, node_size), node_size)
    assert sent == pytest.approx(model_bytes(model, ep, etp, len(tokens), node_size, how), rel=1e-12)


@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (2, 2)])
def test_the_fullest_rank_receives_what_the_model_says_of_an_imbalance(ep, etp):
    """All ranks have the same tokens, most for the last experts: others send it r times the mean."""
    rng, likely = np.random.default_rng(7), np.arange(1, EXPERTS + 1) / np.arange(1, EXPERTS + 1).sum()
    tokens = [tuple(rng.choice(EXPERTS, CHOSEN, replace=False, p=likely)) for _ in range(24)]
    loads = np.bincount([expert // (EXPERTS // ep) for token in tokens for expert in token], minlength=ep)
    received = W * HIDDEN * dispatched("all_to_all", ep, etp, tokens, 8).sum(axis=0).max()
    imbalance = loads.max() / loads.mean()
    expected = sum(model_bytes(experts_of(), ep, etp, 24, 8, "all_to_all", imbalance=imbalance))
    assert 2 * received == pytest.approx(expected)


@pytest.mark.parametrize("capacity", [2, 4, 6, 9])
@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (2, 2), (8, 1)])
def test_ranks_with_a_capacity_drop_and_pad_and_send_what_the_model_says(capacity, ep, etp):
    """However unbalanced routing is, each expert has its capacity of rows from each rank."""
    rows = [(expert,) for expert in range(EXPERTS)] * capacity
    sent = on_tiers(dispatched("all_to_all", ep, etp, rows, 8), 8)
    factor = capacity * EXPERTS / (CHOSEN * 16)
    assert sent == pytest.approx(model_bytes(experts_of(), ep, etp, 16, 8, "all_to_all", capacity_factor=factor))
