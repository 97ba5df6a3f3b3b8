"""How DFModel writes the kernels of a layer: each row of a block as kernels of its graph, and their edges.

A kernel is a line: name, outer, m, k (- for vector kernels) and n, by the words of `layer.layer_graph`; then
* where its second operand is a weight, + where it is a weight that every chip holds whole. An edge line is
a kernel and those that read what it makes. `{0}`, `{1}`, ... are the kernels that make the row's inputs,
`{gradient}` for those that make the gradient of its output. Rows that the reference does not know are written
by their kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costmodel.training.blocks import ATTENTION, Block, Layer
from costmodel.training.kernel_kind import Kernel


@dataclass(frozen=True, slots=True)
class PassRows:
    """Kernels in one pass, and the edges that come with them, both in the file's order."""

    kernels: str = ""
    edges: str = ""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A row of a block in the forward pass, in the backward pass, and in the gradients of its weights."""

    forward: PassRows
    output: str  #: the kernel that makes its output
    backward: PassRows = PassRows()
    gradient: str = ""  #: the kernels that make the gradient of its input; none in graphs that leave it out
    gradients: PassRows = PassRows()


#: Makes the residual stream before the first layer, and its gradient after the last.
BEFORE: Final = "Add_Prev_Layer 1 H - S"
LOSS: Final = "Loss_bwd 1 H - S"


def norm(name: str, *, backward: bool = True) -> Fragment:
    """A normalization."""
    back = PassRows(f"{name}_bwd 1 H - S", f"{{gradient}} > {name}_bwd") if backward else PassRows()
    gradient = f"{name}_bwd" if backward else ""
    return Fragment(PassRows(f"{name} 1 H - S", f"{{0}} > {name}"), name, back, gradient)


def product(name: str, reads: str, makes: str) -> Fragment:
    """A product with a weight, from some features to others."""
    return Fragment(
        PassRows(f"{name} 1 {makes} {reads} S *", f"{{0}} > {name}"),
        name,
        PassRows(f"{name}_bwd 1 {reads} {makes} S *", f"{{gradient}} > {name}_bwd"),
        f"{name}_bwd",
        PassRows(
            f"{name}_bwd_weight_update 1 {reads} S {makes}",
            f"{{gradient}} > {name}_bwd_weight_update\n{{0}} > {name}_bwd_weight_update",
        ),
    )


def activation(name: str) -> Fragment:
    """An activation function, in a gated MLP of both halves."""
    back = PassRows(f"{name}_bwd 1 U - S", f"{{gradient}} > {name}_bwd")
    return Fragment(PassRows(f"{name} 1 F - S", f"{{0}} > {name}"), name, back, f"{name}_bwd")


def residual(drop: str, add: str, summands: int = 1) -> Fragment:
    """A dropout of what products make, and the addition to the residual stream, the last input."""
    before, sums, edges = "{0}", [], []
    for place in range(1, summands):
        sums.append(f"{add}_{place} 1 H - S")
        edges.append(f"{before} > {add}_{place}\n{{{place}}} > {add}_{place}")
        before = f"{add}_{place}"
    edges.append(f"{before} > {drop}\n{drop} > {add}\n{{{summands}}} > {add}")
    kernels = [*sums, f"{drop} 1 H - S", f"{add} 1 H - S"]
    back = PassRows(f"{drop}_bwd 1 H - S", f"{{gradient}} > {drop}_bwd")
    return Fragment(PassRows("\n".join(kernels), "\n".join(edges)), add, back, f"{drop}_bwd")


#: Queries, keys and values as products of their own. The gradient of V is not split by heads, and stands
#: among those of the core, in whose fragment it is.
QKV: Final = Fragment(
    PassRows("Q n d H S *\n K g d H S *\n V g d H S *", "{0} > Q K V"),
    "Q K V",
    PassRows("Q_bwd n d H S *\n K_bwd g d H S *", "MHA_GEMM_1_bwd1 > Q_bwd\n MHA_GEMM_1_bwd2 > K_bwd"),
    "Q_bwd K_bwd V_bwd",
    PassRows(
        """
        V_bwd_weight_update 1 H S gd
        K_bwd_weight_update 1 H S gd
        Q_bwd_weight_update 1 H S nd
        """,
        """
        MHA_GEMM_2_bwd2 > V_bwd_weight_update
        {0} > V_bwd_weight_update
        MHA_GEMM_1_bwd2 > K_bwd_weight_update
        {0} > K_bwd_weight_update
        MHA_GEMM_1_bwd1 > Q_bwd_weight_update
        {0} > Q_bwd_weight_update
        """,
    ),
)

CORE: Final = Fragment(
    PassRows(
        """
        MHA_GEMM_1 n S d S
        SOFTMAX    n S - S
        DropOut_1  n S - S
        MHA_GEMM_2 n d S S
        """,
        """
        Q > MHA_GEMM_1
        K > MHA_GEMM_1
        MHA_GEMM_1 > SOFTMAX
        SOFTMAX > DropOut_1
        V > MHA_GEMM_2
        DropOut_1 > MHA_GEMM_2
        """,
    ),
    "MHA_GEMM_2",
    PassRows(
        """
        MHA_GEMM_2_bwd1 n S d S
        MHA_GEMM_2_bwd2 g d rS S
        V_bwd           1 H gd S *
        DropOut_1_bwd   n S - S
        SOFTMAX_bwd     n S - S
        MHA_GEMM_1_bwd1 n d S S
        MHA_GEMM_1_bwd2 g d rS S
        """,
        """
        {gradient} > MHA_GEMM_2_bwd1
        V > MHA_GEMM_2_bwd1
        {gradient} > MHA_GEMM_2_bwd2
        DropOut_1 > MHA_GEMM_2_bwd2
        MHA_GEMM_2_bwd1 > DropOut_1_bwd
        MHA_GEMM_2_bwd2 > V_bwd
        DropOut_1_bwd > SOFTMAX_bwd
        SOFTMAX_bwd > MHA_GEMM_1_bwd1 MHA_GEMM_1_bwd2
        K > MHA_GEMM_1_bwd1
        Q > MHA_GEMM_1_bwd2
        """,
    ),
)

#: What a token's experts make is summed by a product over them (k): split as they are, it ends in an
#: all-reduce. As a vector kernel it would pass for rows of features, and move nothing.
EXPERTS: Final = Fragment(
    PassRows(
        """
        Router      1 E H S +
        Gate        1 E - S
        Dispatch    E H - C
        FFN0        E U H C *
        GeLU        E F - C
        FFN1        E H F C *
        Combine     1 H k S
        """,
        """
        {0} > Router
        Router > Gate
        {0} > Dispatch
        Gate > Dispatch
        Dispatch > FFN0
        FFN0 > GeLU
        GeLU > FFN1
        FFN1 > Combine
        Gate > Combine
        """,
    ),
    "Combine",
    PassRows(
        """
        Combine_bwd      E H - C
        FFN1_bwd         E F H C *
        GeLU_bwd         E U - C
        FFN0_bwd         E H U C *
        Dispatch_bwd     1 H k S
        Combine_bwd_gate 1 k H S
        Gate_bwd         1 E - S
        Router_bwd       1 H E S +
        """,
        """
        {gradient} > Combine_bwd
        Gate > Combine_bwd
        Combine_bwd > FFN1_bwd
        FFN1_bwd > GeLU_bwd
        GeLU_bwd > FFN0_bwd
        FFN0_bwd > Dispatch_bwd
        Gate > Dispatch_bwd
        {gradient} > Combine_bwd_gate
        FFN1 > Combine_bwd_gate
        Combine_bwd_gate > Gate_bwd
        Gate > Gate_bwd
        Gate_bwd > Router_bwd
        """,
    ),
    "Dispatch_bwd Router_bwd",
    PassRows(
        """
        FFN1_bwd_weight_update   E F C H
        FFN0_bwd_weight_update   E H C U
        Router_bwd_weight_update 1 H S E
        """,
        """
        Combine_bwd > FFN1_bwd_weight_update
        GeLU > FFN1_bwd_weight_update
        GeLU_bwd > FFN0_bwd_weight_update
        Dispatch > FFN0_bwd_weight_update
        Gate_bwd > Router_bwd_weight_update
        {0} > Router_bwd_weight_update
        """,
    ),
)

#: Row -> how the reference writes it. No kernel stands for the gradient of the first norm.
FRAGMENTS: Final = {
    "attention_norm": norm("LayerNorm_1", backward=False),
    "qkv": QKV,
    "core": CORE,
    "projection": product("PROJ_GEMM", "nd", "H"),
    "attention_residual": residual("DropOut_2", "Add_1"),
    "mlp_norm": norm("LayerNorm_2"),
    "mlp_up": product("FFN0", "H", "U"),
    "activation": activation("GeLU"),
    "mlp_down": product("FFN1", "F", "H"),
    "experts": EXPERTS,
    "mlp_residual": residual("DropOut_3", "Add_2"),
}

#: Features of the native model by the words of the graph.
WORDS: Final = {"hidden": "H", "attention": "nd", "up": "U", "ffn": "F"}


def fragment(kernel: Kernel) -> Fragment:
    """How a row of a block is written."""
    if kernel.name in FRAGMENTS:
        return FRAGMENTS[kernel.name]
    if kernel.splits_weight:
        return product(kernel.name, WORDS[kernel.reads], WORDS[kernel.makes])
    if kernel.kind.name == "residual":
        return residual(f"{kernel.name}_dropout", kernel.name, len(kernel.inputs) - 1)
    return {"norm": norm, "activation": activation}[kernel.kind.name](kernel.name)


#: A layer whose MLP is a mixture of experts, of which each token passes some.
EXPERT_LAYER: Final = Layer(
    (
        ATTENTION,
        Block(
            "experts",
            """
            mlp_norm      norm      hidden  < stream
            experts       experts   hidden  < mlp_norm
            mlp_residual  residual  hidden  < experts stream
            """,
        ),
    )
)
