"""Which layers a model has: the blocks that its fields name, in the order of its layers.

A branch is what a block has between its norm and its residual addition: rows as in `training.blocks`, and the
kernels whose outputs the residual stream takes up.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import Final, Literal, NamedTuple

from costmodel.training.blocks import DECODER, Block, Layer

Attention = Literal["full", "window", "latent", "delta_net"]


class LayerKind(NamedTuple):
    """What decides on the rows of a layer."""

    attention: Attention = "full"
    experts: bool = False
    post_norms: bool = False  #: a norm behind each branch, beside the one before it
    parallel: bool = False  #: both branches side by side behind one norm
    parallel_norms: bool = False  #: ... or each behind its own
    query_latent: bool = False
    output_gate: bool = False
    shared_expert: bool = False
    shared_expert_gate: bool = False
    expert_latent: bool = False  #: routed experts act on a narrower latent of each token


class Branch(NamedTuple):
    """Rows of a branch, and the kernels that it ends with."""

    rows: list[str]
    ends: list[str]


def attention_branch(kind: LayerKind, norm: str) -> Branch:
    """Attention behind a norm."""
    gate = ["output_gate  activation  attention  < core"] if kind.output_gate else []
    gated = "output_gate" if kind.output_gate else "core"
    if kind.attention == "delta_net":
        rows = [
            f"delta_in    product    hidden > delta_in    column  < {norm}",
            "delta       delta_net  delta_in > delta_out          < delta_in",
            "projection  product    delta_out > hidden   row     < delta",
        ]
    elif kind.attention == "latent":
        query = [
            f"q_down  latent   hidden > query_rank            < {norm}",
            "q_norm  norm     query_rank                      < q_down",
            "q_up    product  query_rank > queries    column  < q_norm",
        ]
        rows = [
            *(query if kind.query_latent else [f"q_up  product  hidden > queries  column  < {norm}"]),
            f"kv_down     latent     hidden > key_latent              < {norm}",
            "kv_norm     norm       key_rank > key_latent             < kv_down",
            "kv_up       product    key_rank > keys_values    column  < kv_norm",
            "core        attention  queries > attention               < q_up kv_up",
            "projection  product    attention > hidden        row     < core",
        ]
    else:
        core = "attention" if kind.attention == "full" else "window"
        rows = [
            f"qkv         product  hidden > qkv        column qkv_bias  < {norm}",
            f"core        {core}   qkv > attention                      < qkv",
            *gate,
            f"projection  product  attention > hidden  row    out_bias  < {gated}",
        ]
    return Branch(rows, ["projection"])


def mlp_branch(kind: LayerKind, norm: str) -> Branch:
    """An MLP behind a norm, or a mixture of experts."""
    if not kind.experts:
        rows = [
            f"mlp_up      product     hidden > up  column  mlp_bias  < {norm}",
            "activation  activation  up > ffn                       < mlp_up",
            "mlp_down    product     ffn > hidden  row    mlp_bias  < activation",
        ]
        return Branch(rows, ["mlp_down"])
    sent, ends = ("latent_down", ["latent_up"]) if kind.expert_latent else (norm, ["combine"])
    rows = [
        f"router             router             hidden > experts                   < {norm}",
        *([f"latent_down  latent  hidden > expert_in  < {norm}"] if kind.expert_latent else []),
        f"dispatch           dispatch           expert_in                          < {sent} router",
        "expert_up          experts            expert_in > expert_up    mlp_bias  < dispatch",
        "expert_activation  expert_activation  expert_up > expert_ffn             < expert_up",
        "expert_down        experts            expert_ffn > expert_in   mlp_bias  < expert_activation",
        "combine            combine            expert_in                          < expert_down",
        *(["latent_up  latent  expert_in > hidden  < combine"] if kind.expert_latent else []),
    ]
    if kind.shared_expert:
        ends = [*ends, "shared_down"]
        rows += [
            f"shared_up          product     hidden > shared_up   column  mlp_bias  < {norm}",
            "shared_activation  activation  shared_up > shared_ffn                 < shared_up",
            "shared_down        product     shared_ffn > hidden  row     mlp_bias  < shared_activation",
        ]
    if kind.shared_expert_gate:
        ends = [*ends, "shared_gate"]
        rows.append(f"shared_gate  latent  hidden > unit  < {norm}")
    return Branch(rows, ends)


@cache
def layer_of(kind: LayerKind) -> Layer:
    """The blocks of a kind of layer."""
    if kind == LayerKind():
        return DECODER
    if kind.parallel:
        own = ["mlp_norm  norm  hidden  < stream"] if kind.parallel_norms else []
        attention, mlp = attention_branch(kind, "norm"), mlp_branch(kind, "mlp_norm" if own else "norm")
        both = Branch([*attention.rows, *own, *mlp.rows], [*attention.ends, *mlp.ends])
        return Layer((_block("parallel", "norm", both, "residual", kind),))
    return Layer(
        tuple(
            _block(name, f"{name}_norm", branch(kind, f"{name}_norm"), f"{name}_residual", kind)
            for name, branch in (("attention", attention_branch), ("mlp", mlp_branch))
        )
    )


def _block(name: str, norm: str, branch: Branch, residual: str, kind: LayerKind) -> Block:
    """A branch between its norm and its residual addition."""
    post_norm = [f"{name}_post_norm  norm  hidden  < {' '.join(branch.ends)}"] if kind.post_norms else []
    ends = [f"{name}_post_norm"] if kind.post_norms else branch.ends
    last = f"{residual}  residual  hidden  < {' '.join(ends)} stream"
    return Block(name, "\n".join([f"{norm}  norm  hidden  < stream", *branch.rows, *post_norm, last]))


#: What joins a hidden state and the embedding of the next token, before a layer that looks one token further.
MTP_JOIN: Final = Block(
    "mtp",
    """
    mtp_norm  norm     joined                    < stream
    mtp_join  latent   joined > hidden           < mtp_norm
    """,
)


@cache
def mtp_layer(last: Layer) -> Layer:
    """The layer of a multi-token prediction module: a join, then a layer like the model's last."""
    return Layer((MTP_JOIN, *last.blocks))


def sequence_of(kinds: Iterable[LayerKind]) -> tuple[tuple[Layer, float], ...]:
    """Kinds of layers, and how many of each follow one another."""
    return tuple((layer_of(kind), float(len([*same]))) for kind, same in groupby(kinds))
