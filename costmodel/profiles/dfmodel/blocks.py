"""Kernels and edges of the blocks of a transformer layer: attention, an MLP, a mixture of experts.

A kernel is a line: name, outer, m, k (- for vector kernels) and n, by the words of `layer.layer_graph`; then
* where its second operand is a weight, + where it is a weight that every chip holds whole. An edge line is
a kernel and those that read what it makes. Gradients need what the forward pass made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels of a block in one pass, and the edges that come with them, both in the file's order."""

    kernels: str
    edges: str


@dataclass(frozen=True, slots=True)
class Block:
    """A block in the forward pass, in the backward pass, and in the gradients of its weights."""

    forward: Part
    backward: Part
    gradients: Part


ATTENTION: Final = Block(
    forward=Part(
        """
        Add_Prev_Layer 1 H - S
        LayerNorm_1    1 H - S
        Q              n d H S *
        K              g d H S *
        V              g d H S *
        MHA_GEMM_1     n S d S
        SOFTMAX        n S - S
        DropOut_1      n S - S
        MHA_GEMM_2     n d S S
        PROJ_GEMM      1 H nd S *
        DropOut_2      1 H - S
        Add_1          1 H - S
        """,
        """
        Add_Prev_Layer > LayerNorm_1
        LayerNorm_1 > Q K V
        Q > MHA_GEMM_1
        K > MHA_GEMM_1
        MHA_GEMM_1 > SOFTMAX
        SOFTMAX > DropOut_1
        V > MHA_GEMM_2
        DropOut_1 > MHA_GEMM_2
        MHA_GEMM_2 > PROJ_GEMM
        PROJ_GEMM > DropOut_2
        DropOut_2 > Add_1
        Add_Prev_Layer > Add_1
        """,
    ),
    backward=Part(
        """
        DropOut_2_bwd   1 H - S
        PROJ_GEMM_bwd   1 nd H S *
        MHA_GEMM_2_bwd1 n S d S
        MHA_GEMM_2_bwd2 g d rS S
        V_bwd           1 H gd S *
        DropOut_1_bwd   n S - S
        SOFTMAX_bwd     n S - S
        MHA_GEMM_1_bwd1 n d S S
        MHA_GEMM_1_bwd2 g d rS S
        Q_bwd           n d H S *
        K_bwd           g d H S *
        """,
        """
        LayerNorm_2_bwd > DropOut_2_bwd
        DropOut_2_bwd > PROJ_GEMM_bwd
        PROJ_GEMM_bwd > MHA_GEMM_2_bwd1
        V > MHA_GEMM_2_bwd1
        PROJ_GEMM_bwd > MHA_GEMM_2_bwd2
        DropOut_1 > MHA_GEMM_2_bwd2
        MHA_GEMM_2_bwd1 > DropOut_1_bwd
        MHA_GEMM_2_bwd2 > V_bwd
        DropOut_1_bwd > SOFTMAX_bwd
        SOFTMAX_bwd > MHA_GEMM_1_bwd1 MHA_GEMM_1_bwd2
        K > MHA_GEMM_1_bwd1
        Q > MHA_GEMM_1_bwd2
        MHA_GEMM_1_bwd1 > Q_bwd
        MHA_GEMM_1_bwd2 > K_bwd
        """,
    ),
    gradients=Part(
        """
        PROJ_GEMM_bwd_weight_update 1 nd S H
        V_bwd_weight_update         1 H S gd
        K_bwd_weight_update         1 H S gd
        Q_bwd_weight_update         1 H S nd
        """,
        """
        DropOut_2_bwd > PROJ_GEMM_bwd_weight_update
        MHA_GEMM_2 > PROJ_GEMM_bwd_weight_update
        MHA_GEMM_2_bwd2 > V_bwd_weight_update
        LayerNorm_1 > V_bwd_weight_update
        MHA_GEMM_1_bwd2 > K_bwd_weight_update
        LayerNorm_1 > K_bwd_weight_update
        MHA_GEMM_1_bwd1 > Q_bwd_weight_update
        LayerNorm_1 > Q_bwd_weight_update
        """,
    ),
)

MLP: Final = Block(
    forward=Part(
        """
        LayerNorm_2 1 H - S
        FFN0        1 U H S *
        GeLU        1 F - S
        FFN1        1 H F S *
        DropOut_3   1 H - S
        Add_2       1 H - S
        """,
        """
        Add_1 > LayerNorm_2
        LayerNorm_2 > FFN0
        FFN0 > GeLU
        GeLU > FFN1
        FFN1 > DropOut_3
        DropOut_3 > Add_2
        Add_1 > Add_2
        """,
    ),
    backward=Part(
        """
        Loss_bwd        1 H - S
        DropOut_3_bwd   1 H - S
        FFN1_bwd        1 F H S *
        GeLU_bwd        1 U - S
        FFN0_bwd        1 H U S *
        LayerNorm_2_bwd 1 H - S
        """,
        """
        Loss_bwd > DropOut_3_bwd
        DropOut_3_bwd > FFN1_bwd
        FFN1_bwd > GeLU_bwd
        GeLU_bwd > FFN0_bwd
        FFN0_bwd > LayerNorm_2_bwd
        """,
    ),
    gradients=Part(
        """
        FFN1_bwd_weight_update 1 F S H
        FFN0_bwd_weight_update 1 H S U
        """,
        """
        DropOut_3_bwd > FFN1_bwd_weight_update
        GeLU > FFN1_bwd_weight_update
        GeLU_bwd > FFN0_bwd_weight_update
        LayerNorm_2 > FFN0_bwd_weight_update
        """,
    ),
)

#: What a token's experts make is summed by a product over them (k): split as they are, it ends in an
#: all-reduce. As a vector kernel it would pass for rows of features, and move nothing.
EXPERTS: Final = Block(
    forward=Part(
        """
        LayerNorm_2 1 H - S
        Router      1 E H S +
        Gate        1 E - S
        Dispatch    E H - C
        FFN0        E U H C *
        GeLU        E F - C
        FFN1        E H F C *
        Combine     1 H k S
        DropOut_3   1 H - S
        Add_2       1 H - S
        """,
        """
        Add_1 > LayerNorm_2
        LayerNorm_2 > Router
        Router > Gate
        LayerNorm_2 > Dispatch
        Gate > Dispatch
        Dispatch > FFN0
        FFN0 > GeLU
        GeLU > FFN1
        FFN1 > Combine
        Gate > Combine
        Combine > DropOut_3
        DropOut_3 > Add_2
        Add_1 > Add_2
        """,
    ),
    backward=Part(
        """
        Loss_bwd         1 H - S
        DropOut_3_bwd    1 H - S
        Combine_bwd      E H - C
        FFN1_bwd         E F H C *
        GeLU_bwd         E U - C
        FFN0_bwd         E H U C *
        Dispatch_bwd     1 H k S
        Combine_bwd_gate 1 k H S
        Gate_bwd         1 E - S
        Router_bwd       1 H E S +
        LayerNorm_2_bwd  1 H - S
        """,
        """
        Loss_bwd > DropOut_3_bwd
        DropOut_3_bwd > Combine_bwd
        Gate > Combine_bwd
        Combine_bwd > FFN1_bwd
        FFN1_bwd > GeLU_bwd
        GeLU_bwd > FFN0_bwd
        FFN0_bwd > Dispatch_bwd
        Gate > Dispatch_bwd
        DropOut_3_bwd > Combine_bwd_gate
        FFN1 > Combine_bwd_gate
        Combine_bwd_gate > Gate_bwd
        Gate > Gate_bwd
        Gate_bwd > Router_bwd
        Dispatch_bwd > LayerNorm_2_bwd
        Router_bwd > LayerNorm_2_bwd
        """,
    ),
    gradients=Part(
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
        LayerNorm_2 > Router_bwd_weight_update
        """,
    ),
)
