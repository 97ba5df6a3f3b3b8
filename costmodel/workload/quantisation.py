"""Products in fewer than 16 bits: which there are, at which rate, and the kernels that cast for them.

Linear layers and experts of transformer layers are: their product and both its gradients. Embedding, head,
routers, norms, softmax, attention cores, residual additions, accumulation and the optimizer keep 16 or 32
bits [DeepSeek2024]_, [NVIDIA2026]_.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.machine.system import System
from costmodel.training.kernel_kind import Kernel
from costmodel.training.model import ModelShape
from costmodel.training.precision import FORMATS, is_narrow, of_formats
from costmodel.training.run import RankRun, TransformerRun
from costmodel.workload.kernel_tables import Label, Pointwise, PointwiseRow
from costmodel.workload.transformer import Part, every_part

#: FLOP per element of a cast: a maximum of its block, a scale, a rounding. It waits for the memory anyhow.
CAST_FLOPS: Final = 4.0


def is_quantised(kernel: Kernel) -> bool:
    """True if a kernel of a layer multiplies in the format of a design; a gate of one feature is too thin."""
    return kernel.kind.matrix is not None and kernel.kind.matrix.narrow and kernel.makes != "unit"


def some_narrow(run: RankRun | TransformerRun) -> bool:
    """True if some design of a run multiplies in fewer than 16 bits."""
    return bool(run.design.precision.any()) and bool(is_narrow(run.design.precision).any())


def narrow_places(model: ModelShape, labels: Sequence[Label]) -> IntArray:
    """Places of the products that formats apply to, among labelled ones."""
    narrow = {
        (part.name, kernel.name)
        for part in every_part(model)
        for kernel in part.kernels
        if part.layer is not None and is_quantised(kernel)
    }
    numbers = [number for number, label in enumerate(labels) if (label.part, label.kernel) in narrow]
    return np.array(numbers, dtype=np.intp)


def operand_bytes(run: RankRun) -> FloatArray:
    """Bytes of an operand of a layer's products, with its scales; (points,). [B]"""
    codes = run.design.precision
    return np.where(is_narrow(codes), of_formats(codes, "element_bytes"), run.precision.element_bytes)


def product_rate(codes: FloatArray, system: System) -> FloatArray:
    """Rate of a layer's products over that of 16 bits, by codes of `FORMATS`; 0: no units. [-]"""
    rate: FloatArray = np.ones(codes.shape)
    for code, number_format in enumerate(FORMATS.values()):
        if number_format.units and (codes == code).any():
            rate = np.where(codes == code, system.chip.format_rate(number_format.units), rate)
    return rate


def has_units(run: RankRun | TransformerRun) -> BoolArray:
    """Where chips have units for the format of a design; (points,)."""
    known: BoolArray = product_rate(run.design.precision, run.system) > 0
    return known


def needs_transposed(codes: FloatArray, system: System) -> BoolArray:
    """Where narrow operands are kept transposed too: by codes of `FORMATS`.

    Scales that run along one axis have to be found again along the other. One scale for all needs no copy
    where units read operands of either layout: those of chips with MX formats do, older 8-bit ones do not.
    """
    either_layout = system.chip.mx_speedup > 0
    scales = of_formats(codes, "transposed_scales") > 0
    needed: BoolArray = is_narrow(codes) & (scales | ~either_layout)
    return needed


def dispatched_bytes(run: RankRun) -> FloatArray | float:
    """Bytes of an element on its way to its expert; one number where all have those of the run. [B]

    On the way back, and of what tensor-parallel ranks gather, it has 16 bits [DeepSeek2024]_.
    """
    if not some_narrow(run):
        return run.precision.element_bytes
    narrow = of_formats(run.design.precision, "dispatched") > 0
    return np.where(narrow, operand_bytes(run), run.precision.element_bytes)


def casts(run: RankRun) -> Pointwise:
    """Kernels that cast operands of products, (points, kernels): activations forward, gradients backward.

    Each reads a tensor in 16 bits and writes it in the format; current scaling reads it once before for its maximum; a
    transposed copy is another read and write. Nothing is fused with the kernel before.

    Weights are cast once a step and kept (`steps.memory.quantised_weights`), as Megatron-LM does.
    """
    rows = [
        row
        for part in every_part(run.model)
        for kernel in part.kernels
        if part.layer is not None and is_quantised(kernel)
        for row in _cast_rows(run, part, kernel)
    ]
    return Pointwise.of_rows(rows, element_bytes=run.precision.element_bytes)


def _cast_rows(run: RankRun, part: Part, kernel: Kernel) -> Iterator[PointwiseRow]:
    """Casts of one kernel's input forward, and of its output's gradient backward, with transposed copies.

    What goes to experts in a narrow format is cast before it is sent, each token once.
    """
    codes, written = run.design.precision, operand_bytes(run)
    narrow = np.where(is_narrow(codes), 1.0, 0.0)
    maxima = narrow * of_formats(codes, "maxima")
    copied = np.where(needs_transposed(codes, run.system), 1.0, 0.0)
    [product] = kernel.kind.products(run, kernel)
    (m, n, k), batch = product.size, product.batch
    sent = run.routed_tokens * run.model.features["expert_in"]
    before = (of_formats(codes, "dispatched") > 0) & kernel.of_experts
    for of_pass, features, elements in (
        ("forward", kernel.reads, np.asarray(m * k * batch)),
        ("activation_gradient", kernel.makes, np.asarray(m * n * batch)),
    ):
        cast = np.where(before & (features == "expert_in"), sent, elements)
        yield _label(part, kernel, "maximum", of_pass), cast, 1, 0.0, CAST_FLOPS / 2, maxima
        yield _label(part, kernel, "cast", of_pass), cast, 1, written, CAST_FLOPS, narrow
        copy = _label(part, kernel, "transpose", "weight_gradient")
        yield copy, elements, 0, 2 * written, 0.0, copied


def _label(part: Part, kernel: Kernel, name: str, of_pass: str) -> Label:
    return Label(f"{kernel.name}_{name}", of_pass, part.name, kernel.name)
