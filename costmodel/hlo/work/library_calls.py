"""What calls of libraries do, cuBLAS, cuDNN, oneDNN, LAPACK and others, from shapes and the call's settings.

XLA counts nothing for them. A call that is not known here counts by its arrays alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.hlo.text.module import Instruction, Shape, custom_call_target
from costmodel.hlo.work.matrix_products import DIMENSIONS, Product, contraction, convolution

#: Calls that leave arrays where they are: they name, allocate, wait or vouch for them.
_STAYING: Final = re.compile(
    r"AllocateBuffer|AssumeGatherIndicesInBound|AsyncCollective(?:Start|Done)|ConcatBitcast|Sharding"
    r"|SPMDFullToShardShape|SPMDShardToFullShape|LayoutConstraint|annotate_device_placement$"
)


def is_staying(instruction: Instruction) -> bool:
    """Whether a call moves nothing."""
    return bool(_STAYING.match(custom_call_target(instruction)))


def is_known(instruction: Instruction) -> bool:
    """Whether what a call does is known, and not its arrays alone."""
    return is_staying(instruction) or does_products(instruction) or call_flops(instruction) is not None


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """The back end's own settings, from JSON that is bare or escaped in a string; {} where there are none.

    Raises
    ------
    DseError
        If they are no JSON.
    """
    text = instruction.attributes.get("backend_config", "")
    for decoded in (text, re.sub(r"\\(.)", r"\1", text)):
        try:
            config = json.loads(decoded or "{}")
        except json.JSONDecodeError:
            continue
        if isinstance(config, dict):
            return config
    raise DseError(f"{instruction.name}: backend_config is no JSON object: {text[:40]!r}")


def does_products(instruction: Instruction) -> bool:
    """Whether a call is of a library's matrix products."""
    name = custom_call_target(instruction)
    return bool(name) and any(pattern.fullmatch(name) for pattern, _ in _PRODUCTS)


def library_products(instruction: Instruction) -> list[Product]:
    """Matrix products of a call; [] for one that does none.

    Raises
    ------
    DseError
        If its settings do not tell the dimensions.
    """
    name = custom_call_target(instruction)
    return next((products(instruction) for pattern, products in _PRODUCTS if pattern.fullmatch(name)), [])


def _cublas(instruction: Instruction) -> list[Product]:
    """cuBLAS, hipBLAS and Triton by `dot_dimension_numbers`; scales of narrow operands are no work."""
    config = backend_config(instruction)
    config = config.get("gemm_backend_config", config)
    try:
        written = config["dot_dimension_numbers"]
        dims = [[int(dim) for dim in written.get(key, ())] for key in DIMENSIONS]
        beta = float(config.get("beta", 0)) != 0
    except (KeyError, AttributeError, TypeError, ValueError):
        raise DseError(
            f"{instruction.name}: a matrix product whose backend_config tells no dot_dimension_numbers"
        ) from None
    return [contraction(instruction, dims, beta=beta)]


def _onednn(instruction: Instruction) -> list[Product]:
    """oneDNN's product of the last two dimensions, either of which may be written transposed."""
    if len(instruction.operands) < 2:
        raise DseError(f"{instruction.name}: expected two operands or more")
    settings = backend_config(instruction).get("onednn_matmul_config", {})
    ranks = [len(operand.shape.dims) for operand in instruction.operands[:2]]
    sides = [(key in settings and bool(settings[key])) for key in ("transpose_a", "transpose_b")]
    contracted = [[ranks[0] - (2 if sides[0] else 1)], [ranks[1] - (1 if sides[1] else 2)]]
    batches = [list(range(rank - 2)) if min(ranks) == max(ranks) else [] for rank in ranks]
    return [contraction(instruction, [*contracted, *batches])]


def _cudnn_convolution(instruction: Instruction) -> list[Product]:
    """cuDNN's convolutions; `dim_labels` and window are those of the forward one, whatever is computed."""
    if len(instruction.operands) < 2:
        raise DseError(f"{instruction.name}: expected two operands or more")
    a, b = (operand.shape for operand in instruction.operands[:2])
    output = next(instruction.shape.leaves())
    if "BackwardInput" in custom_call_target(instruction):
        return [convolution(instruction, output, b, a, "data")]
    if "BackwardFilter" in custom_call_target(instruction):
        return [convolution(instruction, a, output, b, "kernel")]
    return [convolution(instruction, a, b, output, "result")]


def _attention(instruction: Instruction) -> list[Product]:
    """cuDNN's fused attention: scores and their use; backwards three more, and the scores again.

    Scores that a causal mask or a sliding window leaves out are not computed.
    """
    settings = backend_config(instruction).get("cudnn_fmha_backend_config", {})
    query, key, value = (operand.shape for operand in instruction.operands[:3])
    try:
        batch, heads, rows, columns = map(int, settings["intermediate_tensor_shape"]["dimensions"])
        width = query.size // (batch * heads * rows)
        window = int(settings.get("sliding_window_length", 0))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise DseError(
            f"{instruction.name}: attention whose backend_config tells no shape of the scores"
        ) from None
    value_width = width * value.size // key.size
    seen = _seen_share(rows, columns, causal="CAUSAL" in str(settings.get("mask_type", "")), window=window)
    scores = Shape(query.dtype, (batch, heads, rows, columns))
    both = batch * heads

    def product(m: int, n: int, k: int, a: Shape, b: Shape, output: Shape) -> Product:
        return Product(both, m, n, k, False, (a, b), output, seen)

    forward = [product(rows, columns, width, query, key, scores)]
    if "Backward" not in custom_call_target(instruction):
        result = next(instruction.shape.leaves())
        return [*forward, product(rows, value_width, columns, scores, value, result)]
    return [
        *(forward if settings.get("is_flash_attention", True) else []),
        product(columns, value_width, rows, scores, query, value),
        product(rows, columns, value_width, query, value, scores),
        product(rows, width, columns, scores, key, query),
        product(columns, width, rows, scores, query, key),
    ]


def _seen_share(rows: int, columns: int, *, causal: bool, window: int) -> Fraction:
    """Share of the scores that a mask leaves: of row i those up to i, and of these the last `window`. [-]"""
    if not causal or not rows or not columns:
        return Fraction(1)
    kept = sum(min(row + 1, columns, window or columns) for row in range(rows))
    return Fraction(kept, rows * columns)


#: Libraries' matrix products, as they are called in the text.
_PRODUCTS: Final[tuple[tuple[re.Pattern[str], Callable[[Instruction], list[Product]]], ...]] = (
    (re.compile(r"__cublas\$(?:gemm|lt\$matmul(?:\$(?:f8|mx))?)|__triton_gemm"), _cublas),
    (re.compile(r"__onednn\$matmul(?:_reorder)?"), _onednn),
    (re.compile(r"__cudnn\$conv\w+"), _cudnn_convolution),
    (re.compile(r"__cudnn\$fmha\w+"), _attention),
)


def call_flops(instruction: Instruction) -> int | None:
    """Work of a call besides matrix products; None where it is not known. [FLOP]

    An estimate that the program carries is taken, which JAX's own kernels (Pallas) have where their author
    gave one; else the operation counts of LAPACK's factorizations [Blackford1999]_. Eigenvalues and singular
    values take iterations that the shapes do not tell. Calls of JAX 0.4 begin with sizes as operands.
    """
    name = custom_call_target(instruction)
    if not name or not instruction.operands:
        return None
    told = _told_flops(instruction)
    if told is not None:
        return told
    routine = _ROUTINE.search(name.lower())
    arrays = [each.shape for each in instruction.operands if len(each.shape.dims) > 1]
    if routine is None or not arrays:
        return None
    if routine[1] == "trsm":
        return arrays[1].size * arrays[0].dims[-1] if len(arrays) > 1 else None
    *batch, m, n = arrays[0].dims
    return round(prod(batch) * _FACTORIZATIONS[routine[1]](m, n))


def _told_flops(instruction: Instruction) -> int | None:
    try:
        config = backend_config(instruction)
        told = config.get("custom_call_config", config)["cost_estimate"]["flops"]
        return max(0, int(told))
    except (DseError, KeyError, TypeError, ValueError, AttributeError):
        return None  # settings are the call's own, in a form of its own


#: Operation counts of an (m, n) matrix, m >= n but for the first. [FLOP]
_FACTORIZATIONS: Final[Mapping[str, Callable[[int, int], float]]] = {
    "potrf": lambda m, n: n**3 / 3,
    "getrf": lambda m, n: max(m, n) * min(m, n) ** 2 - min(m, n) ** 3 / 3,
    "geqrf": lambda m, n: 2 * max(m, n) * min(m, n) ** 2 - 2 * min(m, n) ** 3 / 3,
    "orgqr": lambda m, n: 2 * max(m, n) * min(m, n) ** 2 - 2 * min(m, n) ** 3 / 3,
    "ungqr": lambda m, n: 2 * max(m, n) * min(m, n) ** 2 - 2 * min(m, n) ** 3 / 3,
}
_ROUTINE: Final = re.compile(rf"(?:lapack|solver|blas|magma)\w*?({'|'.join(_FACTORIZATIONS)}|trsm)")
