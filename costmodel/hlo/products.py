"""Matrix products of a module: `dot`, convolutions, and calls of a library of matrix products."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.hlo.module import Computation, Instruction, Shape

#: Libraries' matrix products, as they are called in the text.
_LIBRARY: Final = re.compile(r"__(?:cublas\$(?:gemm|lt\$matmul.*)|triton_gemm|cublas\$lt\$matmul\$f8)$")
_DIMENSIONS: Final = (
    "lhs_contracting_dimensions",
    "rhs_contracting_dimensions",
    "lhs_batch_dimensions",
    "rhs_batch_dimensions",
)


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of C[m, n] = A[m, k] B[k, n]. [elements]"""

    batch: int
    m: int
    n: int
    k: int
    beta: bool  #: C is added to what its buffer holds, a third operand
    operands: tuple[Shape, ...]  #: A, B, and with `beta` what is added
    output: Shape

    @property
    def flops(self) -> int:
        """A multiply and an add for each element of A times column of B. [FLOP]"""
        return 2 * self.batch * self.m * self.n * self.k


def is_product(instruction: Instruction) -> bool:
    """Whether an instruction is a matrix product by itself."""
    if instruction.opcode == "custom-call":
        return bool(_LIBRARY.match(instruction.attributes.get("custom_call_target", "")))
    return instruction.opcode in ("dot", "convolution")


def product_instructions(instruction: Instruction) -> list[Instruction]:
    """The matrix products that a kernel does: itself, or those of its body, nested ones included."""
    if is_product(instruction):
        return [instruction]
    if instruction.opcode != "fusion":
        return []
    return [found for inner in instruction.called[0].instructions for found in product_instructions(inner)]


def products_in(instruction: Instruction) -> list[Product]:
    """Dimensions of the matrix products that a kernel does."""
    return [product(found) for found in product_instructions(instruction)]


def products_of_body(body: Computation) -> list[Product]:
    """The matrix products of a computation, nested ones included."""
    return [found for instruction in body.instructions for found in products_in(instruction)]


def product(instruction: Instruction) -> Product:
    """The dimensions of one matrix product.

    Raises
    ------
    DseError
        If its dimensions are missing, or contradict its output.
    """
    if instruction.opcode == "convolution":
        return _convolution(instruction)
    if instruction.opcode == "dot":
        dims = [
            _numbers(instruction.attributes.get(key.replace("imensions", "ims"), "{}")) for key in _DIMENSIONS
        ]
        return _product(instruction, dims, beta=False)
    config = backend_config(instruction)
    config = config.get("gemm_backend_config", config)
    try:
        written = config["dot_dimension_numbers"]
        dims = [[int(dim) for dim in written.get(key, ())] for key in _DIMENSIONS]
        beta = float(config.get("beta", 0)) != 0
    except (KeyError, AttributeError, TypeError, ValueError):
        raise DseError(
            f"{instruction.name}: a matrix product whose backend_config tells no dot_dimension_numbers"
        ) from None
    return _product(instruction, dims, beta=beta)


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """The back end's own settings, from JSON that is bare or escaped in a string; {} where there are none.

    Raises
    ------
    DseError
        If they are no JSON.
    """
    text = instruction.attributes.get("backend_config", "")
    for decoded in (text, _unescaped(text)):
        try:
            config = json.loads(decoded or "{}")
        except json.JSONDecodeError:
            continue
        if isinstance(config, dict):
            return config
    raise DseError(f"{instruction.name}: backend_config is no JSON object: {text[:40]!r}")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _numbers(written: str) -> list[int]:
    """``{1,2}`` -> [1, 2]."""
    return [int(number) for number in re.findall(r"\d+", written)]


def _product(instruction: Instruction, dims: Sequence[Sequence[int]], *, beta: bool) -> Product:
    """A product from the dimensions it contracts and repeats over."""
    if len(instruction.operands) < 2:
        raise DseError(f"{instruction.name}: expected two operands or more")
    a, b = (operand.shape for operand in instruction.operands[:2])
    contracted_a, contracted_b, batch_a, batch_b = dims
    output = next(instruction.shape.leaves())  # a library's second output is its scratch memory
    try:
        k, batch = _sizes(a, contracted_a), _sizes(a, batch_a)
        agree = k == _sizes(b, contracted_b) and batch == _sizes(b, batch_b)
    except IndexError:
        agree = False
    m = prod(size for dim, size in enumerate(a.dims) if dim not in (*contracted_a, *batch_a))
    n = prod(size for dim, size in enumerate(b.dims) if dim not in (*contracted_b, *batch_b))
    if not agree or prod(batch) * m * n != output.size:
        raise DseError(f"{instruction.name}: {a} by {b} over dimensions {list(dims)} does not give {output}")
    operands = tuple(operand.shape for operand in instruction.operands[: 3 if beta else 2])
    return Product(prod(batch), m, n, prod(k), beta, operands, output)


def _sizes(shape: Shape, dims: Sequence[int]) -> list[int]:
    return [shape.dims[dim] for dim in dims]


def _convolution(instruction: Instruction) -> Product:
    """A convolution as the product of its unrolled windows; padded places count as work."""
    data, kernel = (operand.shape for operand in instruction.operands[:2])
    labels = re.match(r"\w+_(\w+)->\w+$", instruction.attributes.get("dim_labels", ""))
    if labels is None or "o" not in labels[1]:
        raise DseError(f"{instruction.name}: a convolution without dim_labels")
    features = kernel.dims[labels[1].index("o")]
    output = instruction.shape
    k = kernel.size // features
    return Product(1, output.size // features, features, k, False, (data, kernel), output)
