"""The optimizer's kernels: gradient clipping and the update, by weights that a rank owns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.columns import FloatArray


@dataclass(frozen=True, slots=True)
class WeightKernel:
    """Work and traffic of an optimizer kernel, per weight."""

    flops: float  #: [FLOP]
    accesses: float  #: reads and writes of a full-precision number


#: The optimizer kernels of [DeepFlow]_ (rule OP1), which are those of Adam on fp32 as well: clipping reads
#: the gradients for the norm, then reads and writes them to scale; the update reads gradient, weight and
#: two moments, and writes the latter three.
OPTIMIZER_KERNELS: Mapping[str, WeightKernel] = {
    "gradclip": WeightKernel(flops=4, accesses=3),
    "apply_grad": WeightKernel(flops=3, accesses=7),
}


def optimizer_work(
    kernel: str, weights: FloatArray, *, element_bytes: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Work and traffic of an optimizer kernel.

    Parameters
    ----------
    kernel : str
        A key of `OPTIMIZER_KERNELS`.
    weights : array
        Parameters that the rank updates. [-]
    element_bytes : float
        Size of a full-precision number. [B]

    Returns
    -------
    flops, bytes_moved : array like `weights`
        [FLOP], [B]
    """
    work = OPTIMIZER_KERNELS[kernel]
    return work.flops * weights, work.accesses * weights * element_bytes
