"""Number formats of a training run: bytes of operands, gradients and optimizer states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Bytes per element of what a training step keeps and moves."""

    element_bytes: float  #: operands of matrix products, activations and the weights they use [B]
    gradient_bytes: float  #: gradients, as they are accumulated and reduced [B]
    state_bytes: float  #: optimizer states per parameter, master weights included [B]


#: 16-bit operands, fp32 accumulation of gradients, fp32 master weights and two Adam moments: the 18
#: bytes per parameter of [Korthikanti2022]_ and of Megatron-LM with either bf16 or fp16.
MIXED_PRECISION = Precision(element_bytes=2.0, gradient_bytes=4.0, state_bytes=12.0)
