"""One transformer layer as a graph: forward alone (18 kernels), or forward and backward (41)."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.profiles.dfmodel.graph import Graph, K, N

#: Kernel -> outer, m, k (- for vector kernels), n; first input, second input (* a weight), output.
#: H hidden size, n heads, d head size, S sequence; a = H S, q = n S S, p = H H elements.
_FORWARD: Final = """
    Add_Prev_Layer 1 H - S a - a
    LayerNorm_1    1 H - S a - a
    Q              n d H S a p* a
    K              n d H S a p* a
    V              n d H S a p* a
    MHA_GEMM_1     n S d S a a q
    SOFTMAX        n S - S q - q
    DropOut_1      n S - S q - q
    MHA_GEMM_2     n d S S a q a
    PROJ_GEMM      1 H H S a p* a
    DropOut_2      1 H - S a - a
    Add_1          1 H - S a a a
    LayerNorm_2    1 H - S a - a
    FFN0           1 4H H S a 4p* 4a
    GeLU           1 4H - S 4a - 4a
    FFN1           1 H 4H S 4a 4p* a
    DropOut_3      1 H - S a - a
    Add_2          1 H - S a a a
"""
_BACKWARD: Final = """
    Loss_bwd        1 H - S a - a
    DropOut_3_bwd   1 H - S a - a
    FFN1_bwd        1 4H H S a 4p* 4a
    GeLU_bwd        1 4H - S 4a - 4a
    FFN0_bwd        1 H 4H S 4a 4p* a
    LayerNorm_2_bwd 1 H - S a - a
    DropOut_2_bwd   1 H - S a - a
    PROJ_GEMM_bwd   1 H H S a p* a
    MHA_GEMM_2_bwd1 n S d S a a q
    MHA_GEMM_2_bwd2 n d S S a q a
    V_bwd           1 H H S a p* a
    DropOut_1_bwd   n S - S q - q
    SOFTMAX_bwd     n S - S q - q
    MHA_GEMM_1_bwd1 n d S S q a a
    MHA_GEMM_1_bwd2 n d S S q a a
    Q_bwd           n d H S a p* a
    K_bwd           n d H S a p* a
    FFN1_bwd_weight_update      1 4H S H a 4a 4p
    FFN0_bwd_weight_update      1 H S 4H 4a a 4p
    PROJ_GEMM_bwd_weight_update 1 H S H a a p
    V_bwd_weight_update         1 H S H a a p
    K_bwd_weight_update         1 H S H a a p
    Q_bwd_weight_update         1 H S H a a p
"""
#: Edges by the numbers of their kernels, from 1. Gradients need what the forward pass produced.
_FORWARD_EDGES: Final = """
    1-2 2-3 2-4 2-5 3-6 4-6 6-7 7-8 5-9 8-9 9-10 10-11 11-12 1-12 12-13 13-14 14-15 15-16 16-17 17-18 12-18
"""
_BACKWARD_EDGES: Final = """
    19-20 20-21 21-22 22-23 23-24 24-25 25-26 26-27 5-27 26-28 8-28 27-30 28-29 30-31 31-32 31-33 4-32 3-33
    32-34 33-35 20-36 15-36 22-37 13-37 25-38 9-38 28-39 2-39 33-40 2-40 32-41 2-41
"""


def layer_graph(
    hidden_size: FloatArray | float,
    num_attention_heads: FloatArray | float,
    seq_len: FloatArray | float,
    *,
    element_bytes: FloatArray | float = 2.0,
    backward: bool = True,
) -> Graph:
    """The graph of one GPT layer, for one design or for many at once.

    Parameters
    ----------
    hidden_size, num_attention_heads, seq_len : float or (points,) array
        Shape of the layer; heads divide the hidden size. [-]
    element_bytes : float or (points,) array
        Size of one element. [B]
    backward : bool
        With the kernels of the backward pass, as in training.

    Notes
    -----
    No kernel stands for the gradient of the first norm or of the residual additions, and the gradient
    of V is not split by heads: the graph of the reference, kernel by kernel.
    """
    hidden, heads, seq = (
        np.asarray(v, dtype=np.float64) for v in (hidden_size, num_attention_heads, seq_len)
    )
    if np.any(hidden % heads):
        raise DseError("num_attention_heads: does not divide the hidden size; choose one of its divisors")
    rows = [line.split() for line in (_FORWARD + _BACKWARD * backward).splitlines() if line.strip()]
    _, outer, m, k, n, first, second, output = zip(*rows, strict=True)
    dims = _dims(hidden, heads, seq)
    sizes = _sizes(hidden, heads, seq, np.asarray(element_bytes, dtype=np.float64))
    edges = [e.split("-") for e in (_FORWARD_EDGES + _BACKWARD_EDGES * backward).split()]
    names = tuple(row[0] for row in rows)
    return Graph(
        names=names,
        backward=np.arange(len(rows)) >= len(_FORWARD.strip().splitlines()),
        systolic=np.array([word != "-" for word in k]),
        weighted=np.array([word.endswith("*") for word in second]),
        tiling=np.array([K if name.endswith("_weight_update") else N for name in names]),
        outer=_columns(outer, dims),
        m=_columns(m, dims),
        k=_columns(k, dims),
        n=_columns(n, dims),
        first_bytes=_columns(first, sizes),
        second_bytes=_columns([word.rstrip("*") for word in second], sizes),
        output_bytes=_columns(output, sizes),
        start=np.array([int(start) - 1 for start, _ in edges]),
        end=np.array([int(end) - 1 for _, end in edges]),
    )


def _dims(hidden: FloatArray, heads: FloatArray, seq: FloatArray) -> dict[str, FloatArray | float]:
    """Dimensions that the tables name. [-]"""
    shape = {"n": heads, "d": hidden / heads, "S": seq, "H": hidden, "4H": 4 * hidden}
    return {"1": 1.0, "-": 1.0, **shape}


def _sizes(
    hidden: FloatArray, heads: FloatArray, seq: FloatArray, element: FloatArray
) -> dict[str, FloatArray | float]:
    """Bytes of the tensors that the tables name."""
    a, q, p = hidden * seq * element, heads * seq * seq * element, hidden * hidden * element
    return {"-": 0.0, "a": a, "4a": 4 * a, "q": q, "p": p, "4p": 4 * p}


def _columns(words: list[str] | tuple[str, ...], values: dict[str, FloatArray | float]) -> FloatArray:
    """Words of a column as numbers; (kernels,), or (points, kernels) where values are (points,)."""
    return np.stack(np.broadcast_arrays(*(values[word] for word in words)), axis=-1)
