"""Layouts of activations over a tensor-parallel group, and the collectives that change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Layout = Literal["replicated", "sequence", "partial"]

#: (layout held, layout needed) -> the collective of the forward pass; None moves nothing.
TRANSITIONS: Mapping[tuple[Layout, Layout], str | None] = {
    ("replicated", "replicated"): None,
    ("sequence", "sequence"): None,
    ("sequence", "replicated"): "all_gather",
    ("partial", "replicated"): "all_reduce",
    ("partial", "sequence"): "reduce_scatter",
}

#: The collective of the gradient, which flows the other way: the adjoint of the forward's.
ADJOINT: Mapping[str | None, str | None] = {
    None: "all_reduce",  # a replicated input of split kernels gets a partial gradient
    "all_reduce": None,
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
}

#: Boundaries between kernels where an activation may change its layout, in order of the forward pass.
#: Into a boundary named "..._input" goes a norm's output and out of it come column-split kernels.
BOUNDARIES = {
    "layer": ("attention_input", "attention_output", "mlp_input", "mlp_output"),
    "embedding": ("embedding_output",),
    "head": ("head_input",),
}

#: Assignment -> layouts (held, needed) at inputs and at outputs of split kernels [Shoeybi2019]_,
#: [Korthikanti2022]_.
ASSIGNMENTS: Mapping[str, Mapping[str, tuple[Layout, Layout]]] = {
    "megatron": {"input": ("replicated", "replicated"), "output": ("partial", "replicated")},
    "megatron_sp": {"input": ("sequence", "replicated"), "output": ("partial", "sequence")},
}


def transitions(assignment: str, part: str) -> dict[str, tuple[str | None, str | None]]:
    """Boundary -> collectives of the forward and of the backward pass, of one part of the model.

    >>> transitions("megatron", "layer")["attention_output"]
    ('all_reduce', None)
    >>> transitions("megatron_sp", "layer")["mlp_input"]
    ('all_gather', 'reduce_scatter')
    """
    layouts = ASSIGNMENTS[assignment]
    result = {}
    for boundary in BOUNDARIES[part]:
        forward = TRANSITIONS[layouts[boundary.rsplit("_", 1)[1]]]
        result[boundary] = (forward, ADJOINT[forward])
    return result
