"""Bytes of ranks that share sequences or experts, against messages counted one by one, and ranks that compute."""

from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from costmodel import DesignPoints, ModelShape, load_system
from costmodel.steps.micro_batch.exchanges import context_parallel, expert_parallel, state_passing
from costmodel.training.kinds import KINDS
from tests.support.cases import by_table, cases
from tests.support.runs import ranks_of

W = 2  # bytes of an element

GROUPED = ModelShape(num_layers=1, hidden_size=64, num_attention_heads=16, num_query_groups=8, head_size=6, seq_len=32)
LATENT = ModelShape(
    num_layers=1, hidden_size=64, num_attention_heads=8, seq_len=32, attention="mla", kv_lora_rank=16,
    qk_nope_head_dim=5, qk_rope_head_dim=3, v_head_dim=6,
)  # fmt: skip
WINDOWED = replace(GROUPED, window=7.0, full_attention_every=0.0)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("model", [GROUPED, LATENT, WINDOWED], ids=["grouped", "latent", "windowed"])
@by_table("cp", "tp", "how", "inner")
def test_ranks_of_a_sequence_send_keys_around_and_heads_to_tokens(model, cp, tp, how, inner, repeated, links):
    """Inner groups exchange queries, keys, values and context; keys and values pass all outer groups, twice to go back.

    A ring and gathered keys send the same. Where software repeats keys, each query head has its own.
    """
    heads, tokens = model.num_attention_heads, model.seq_len / cp
    groups = heads if repeated or model.attention == "mla" else model.num_query_groups
    keys_and_values = groups * (model.score_size + model.value_size) / tp
    whole = keys_and_values + heads * (model.score_size + model.value_size) / tp
    system = links.with_quantities({"software_repeated_keys": float(repeated)})
    run = ranks_of(model, DesignPoints.of(tp=tp, cp=cp, cp_communication=how, cp_a2a=inner), system)
    for direction, passes in (("forward", 1), ("backward", 2)):
        expected = W * tokens * ((inner - 1) / inner * whole + passes * (cp / inner - 1) * keys_and_values)
        cost = context_parallel(run, 2 * model.key_value_size, np.zeros(1), direction)
        assert cost.link_energy.item() == pytest.approx(expected, rel=1e-12)


HEADS, SIZE = 4, 3  # of values of linear mixers
#: Kind of kernel -> dimensions of its mixer.
MIXERS = cases(__file__, "MIXERS")


def recurrent(x, keys, queries, decay, state, *, delta):
    """Outputs token by token, and the state: S decay + x k^T, with the delta rule S decay + (x - S decay k) k^T."""
    outputs = []
    for value, key, query, kept in zip(x, keys, queries, decay, strict=True):
        state = state * kept[:, np.newaxis]
        state = state + np.einsum("hp,hn->hpn", value - delta * np.einsum("hpn,hn->hp", state, key), key)
        outputs.append(np.einsum("hpn,hn->hp", state, query))
    return np.array(outputs), state


def chunked(x, keys, queries, decay, state):
    """The same without the delta rule, all tokens of a rank at once, as Mamba-2 does [Dao2024]_."""
    through = np.cumprod(decay, axis=0)
    read, written = queries * through, keys / through
    scores = np.tril(np.einsum("thn,shn->hts", read, written))
    outputs = np.einsum("hts,shp->thp", scores, x) + np.einsum("thn,hpn->thp", read, state)
    return outputs, (state + np.einsum("shp,shn->hpn", x, written)) * through[-1][:, np.newaxis]


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("cp", [2, 4])
def test_ranks_that_share_a_sequence_pass_on_states_and_the_last_inputs_of_convolutions(kind, cp, links):
    """Ranks compute what one rank does; all but the last send states in fp32, and inputs in 16 bits."""
    model = ModelShape(
        num_layers=1, hidden_size=64, num_attention_heads=HEADS, linear_value_heads=HEADS, linear_head_dim=SIZE,
        **{"linear_conv_kernel": 4, **MIXERS[kind]},
    )  # fmt: skip
    rng, delta = np.random.default_rng(5), kind in ("delta_net", "kda")
    groups, taps = int(model.linear_key_heads), int(model.linear_conv_kernel)
    width = int(model.linear_state_size or model.features["delta_key"])
    inputs = rng.normal(size=(24, HEADS * SIZE + 2 * groups * width)) / 2
    filters, decay = rng.normal(size=(taps, inputs.shape[1])) / 2, rng.uniform(0.7, 1, (24, HEADS, width))
    decay = decay if kind == "kda" else decay[..., :1] + np.zeros(width)  # a number for each head

    def mixed(part, decays, state, tail, mixer):
        padded = np.concatenate([tail, part])
        made = sum(filters[tap] * padded[tap : tap + len(part)] for tap in range(taps))
        values, *both = np.split(made, [HEADS * SIZE, HEADS * SIZE + groups * width], axis=1)
        both = [np.repeat(part.reshape(-1, groups, width), HEADS // groups, axis=1) for part in both]
        return *mixer(values.reshape(-1, HEADS, SIZE), *both, decays, state), padded[len(part) :]

    state, tail, by_token = np.zeros((HEADS, SIZE, width)), inputs[: taps - 1] * 0, partial(recurrent, delta=delta)
    whole, *_ = mixed(inputs, decay, state, tail, by_token)
    outputs = []
    for part, decays in zip(np.split(inputs, cp), np.split(decay, cp), strict=True):
        made, state, tail = mixed(part, decays, state, tail, by_token if delta else chunked)
        outputs.append(made)
    np.testing.assert_allclose(np.concatenate(outputs), whole, rtol=1e-9, atol=1e-9)
    cost = state_passing(ranks_of(model, DesignPoints.of(cp=cp), links), KINDS[kind].exchanged.state(model, W))
    assert cost.link_energy.item() * cp == pytest.approx((cp - 1) * (4 * state.size + W * tail.size))


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


@pytest.mark.parametrize("how", ["all_to_all", "all_gather", "two_hop"])
@pytest.mark.parametrize("node_size", [2, 4, 8])
@by_table("ep", "etp", "chosen")
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
