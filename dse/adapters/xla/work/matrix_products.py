"""Batches of matrix products: of `dot`, of convolutions as unrolled windows, and of libraries' calls.

XLA counts nothing for calls of cuBLAS, cuDNN, oneDNN and others: shapes and the call's settings give their work. An
unknown call counts only by its arrays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod
from typing import Any, Final, Literal

from costmodel.errors import DseError
from dse.adapters.xla.text.module import Instruction, Shape, custom_call_target

#: Lists of dimensions, as settings of libraries call them; an instruction writes `dims` for `dimensions`.
DIMENSIONS: Final = tuple(f"{side}_{kind}_dimensions" for kind in ("contracting", "batch") for side in ("lhs", "rhs"))


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of C[m, n] = A[m, k] B[k, n]. [elements]"""

    batch: int
    m: int
    n: int
    k: int
    beta: bool  #: C is added to the content of its buffer, a third operand
    operands: tuple[Shape, ...]  #: A, B, and with `beta` the added array
    output: Shape
    useful: Fraction = Fraction(1)  #: share of multiplications done, not of padding or masked [-]

    @property
    def flops(self) -> int:
        """A multiply and an add for each element of A times column of B, where they are done. [FLOP]"""
        return int(2 * self.batch * self.m * self.n * self.k * self.useful)


def first_two(instruction: Instruction) -> list[Shape]:
    """Shapes of the first two operands, which must be there."""
    if len(instruction.operands) < 2:
        raise DseError(f"{instruction.name}: expected two operands or more")
    return [operand.shape for operand in instruction.operands[:2]]


def contraction(instruction: Instruction, dims: Sequence[Sequence[int]], *, beta: bool = False) -> Product:
    """The product of an instruction's first operands over the dimensions that it contracts and repeats (`DIMENSIONS`).

    With `beta`, the third operand is added. Raises `DseError` if dimensions contradict the operands or the output.
    """
    a, b = first_two(instruction)
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


#: Most places of a window, or of a result, along one dimension. [-]
LONGEST: Final = 200_000
#: Keys of stride, dilation of the data and dilation of the window.
_STEPS: Final = ("stride", "lhs_dilate", "rhs_dilate")
_FIELD: Final = re.compile(r"(\w+)=([\dx_\-]+)")


@dataclass(frozen=True, slots=True)
class WindowDimension:
    """A window along one dimension, as XLA writes it."""

    size: int  #: places of the window [-]
    stride: int = 1  #: from one place of the result to the next [-]
    low: int = 0  #: padding before, negative where data is left out [-]
    high: int = 0  #: padding after [-]
    base_dilation: int = 1  #: from one element of the data to the next [-]
    window_dilation: int = 1  #: from one place of the window to the next [-]


def window_of(instruction: Instruction) -> list[WindowDimension]:
    """An instruction's window, such as ``{size=3x3 pad=1_1x0_2 stride=2x2 lhs_dilate=1x4}``; [] where it has none.

    Raises `DseError` if the text of it makes no sense.
    """
    fields = dict(_FIELD.findall(instruction.attributes.get("window", "")))
    if "size" not in fields:
        return []
    try:
        sizes = _numbers(fields["size"])
        paddings = [pair.split("_") for pair in fields.get("pad", "x".join("0_0" for _ in sizes)).split("x")]
        steps = [_numbers(fields.get(key, "x".join("1" for _ in sizes))) for key in _STEPS]
        rows = zip(sizes, paddings, *steps, strict=True)
        window = [
            WindowDimension(size, stride, int(low), int(high), base, rest)
            for size, (low, high), stride, base, rest in rows
        ]
    except ValueError:
        window = []
    if not window or min(sizes) < 0 or min(min(step) for step in steps) < 1:
        raise DseError(f"{instruction.name}: window={fields}: expected as many numbers for each dimension")
    return window


def _numbers(written: str) -> list[int]:
    """Whole numbers of a window's field: ``3x5`` -> [3, 5]."""
    return [int(number) for number in written.split("x")]


@lru_cache(maxsize=4096)
def valid_positions(window: WindowDimension, data: int, result: int) -> int:
    """Number of times that a position of the window lies on an element, over all positions of the result. [-]

    Place k of the window at place o of the result is on element i where o * stride + k * window_dilation -
    low = i * base_dilation; all other places are padding, or holes of a dilation.

    Raises `DseError` if the window is longer than any.
    """
    few, many = sorted([(window.size, window.window_dilation), (result, window.stride)])
    if few[0] > LONGEST:
        raise DseError(f"a window of {window.size:,} places; at most {LONGEST:,} are read")
    reach = window.base_dilation * (data - 1)
    return sum(_multiples(many, window.low - step * few[1], reach, window.base_dilation) for step in range(few[0]))


def _multiples(steps: tuple[int, int], first: int, reach: int, modulus: int) -> int:
    """Count of 0, step, 2 step, ... that are first, first + modulus, ... and at most first + reach. [-]"""
    count, step = steps
    common = gcd(step, modulus)
    if first % common:
        return 0
    period = modulus // common
    start = (first // common) * pow(step // common, -1, period) % period if period > 1 else 0
    low, high = max(0, -(-first // step)), min(count - 1, (first + reach) // step)
    from_low = low + (start - low) % period
    return max(0, (high - from_low) // period + 1)


def spans_dimension(windows: Sequence[WindowDimension], dims: Sequence[int]) -> int | None:
    """The dimension that a window reduction reduces and repeats, if that is all it does.

    Its window is padded so that it covers the whole dimension from every place, which XLA counts as one
    reduction and a broadcast.
    """
    reducing = [window for window in windows if window.size != 1]
    padded = [window for window in windows if window.low or window.high]
    if len(reducing) != 1 or len(padded) != 1 or reducing != padded or len(windows) != len(dims):
        return None
    only = reducing[0]
    index = windows.index(only)
    covers = only.low == only.high and only.size == 2 * only.low + 1
    return index if covers and only.low == dims[index] - 1 else None


#: The array that a convolution computes from the other two: its result, its data, or its kernel.
Role = Literal["result", "data", "kernel"]


def convolution(instruction: Instruction, data: Shape, kernel: Shape, result: Shape, role: Role) -> Product:
    """The matrix product that computes the convolution of `data` by `kernel` to `result`, or one of its gradients.

    `role` names the array that the instruction computes. Raises `DseError` if it lacks `dim_labels`, or contradicts
    itself.

    Flops are those of XLA's cost analysis: a multiply and an add where a position of the kernel is on an element of the
    data. A dimension in which each position of the result is under a different position of the kernel, as TPU programs
    write batched products, is a batch.
    """
    windows = {str(number): window for number, window in enumerate(window_of(instruction))}
    of_data, of_kernel, of_result = named = _named_dims(instruction, (data, kernel, result), list(windows))
    by_feature, by_batch = (
        max(1, *instruction.numbers(key), 1) for key in ("feature_group_count", "batch_group_count")
    )
    groups = by_feature * by_batch
    agree = (
        of_data["f"] == of_kernel["i"] * by_feature
        and of_data["b"] == of_result["b"] * by_batch
        and of_kernel["o"] == of_result["f"]
        and of_result["f"] % groups == 0
        and all(window.size == of_kernel[dim] for dim, window in windows.items())
    )
    if not agree:
        raise DseError(f"{instruction.name}: {data} by {kernel} does not give {result}")
    valid = {dim: valid_positions(window, of_data[dim], of_result[dim]) for dim, window in windows.items()}
    batched = {dim for dim in windows if valid[dim] == of_kernel[dim] == of_result[dim]}
    batch = groups * prod(of_result[dim] for dim in batched)
    data_places, kernel_places, result_places = (
        prod(sizes[dim] for dim in windows if dim not in batched) for sizes in named
    )
    rows, data_features, result_features = of_result["b"], of_kernel["i"], of_result["f"] // groups
    (m, n, k), operands, output = {
        "result": ((rows * result_places, result_features, data_features * kernel_places), (data, kernel), result),
        "data": ((rows * data_places, data_features, result_features * kernel_places), (result, kernel), data),
        "kernel": ((result_features, data_features * kernel_places, rows * result_places), (data, result), kernel),
    }[role]
    useful, whole = groups * rows * data_features * result_features * prod(valid.values()), batch * m * n * k
    return Product(batch, m, n, k, False, operands, output, Fraction(useful, whole) if whole else Fraction(1))


def _named_dims(instruction: Instruction, shapes: Sequence[Shape], spatial: Sequence[str]) -> list[dict[str, int]]:
    """Sizes of data, kernel and result by the letters and numbers that `dim_labels` give their dimensions."""
    labels = re.match(r"(\w+)_(\w+)->(\w+)$", instruction.attributes.get("dim_labels", ""))
    if labels is None:
        raise DseError(f"{instruction.name}: a convolution without dim_labels")
    named = []
    for written, shape, features in zip(labels.groups(), shapes, ("bf", "io", "bf"), strict=True):
        if sorted(written) != sorted([*features, *spatial]) or len(written) != len(shape.dims):
            raise DseError(f"{instruction.name}: dim_labels={labels[0]} do not name the dimensions of {shape}")
        named.append(dict(zip(written, shape.dims, strict=True)))
    return named


#: Calls that leave arrays where they are: they name, allocate, wait or vouch for them.
_STAYING: Final = re.compile(
    r"AllocateBuffer|AssumeGatherIndicesInBound|AsyncCollective(?:Start|Done)|ConcatBitcast|Sharding"
    r"|SPMDFullToShardShape|SPMDShardToFullShape|LayoutConstraint|annotate_device_placement$"
)


def is_staying(instruction: Instruction) -> bool:
    """True if a call moves nothing."""
    return bool(_STAYING.match(custom_call_target(instruction)))


def is_known(instruction: Instruction) -> bool:
    """True if the work of a call is known, beyond its arrays."""
    return is_staying(instruction) or is_product(instruction) or call_flops(instruction) is not None


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """The back end's own settings, from JSON that is bare or escaped in a string; {} where there are none.

    Raises `DseError` if they are not JSON.
    """
    text = instruction.attributes.get("backend_config", "")
    for decoded in (text, re.sub(r"\\(.)", r"\1", text)):
        try:
            config = json.loads(decoded or "{}")
        except json.JSONDecodeError:
            continue
        if isinstance(config, dict):
            return config
    raise DseError(f"{instruction.name}: backend_config is not a JSON object: {text[:40]!r}")


def _rule(instruction: Instruction) -> Callable[[Instruction], list[Product]] | None:
    """The rule that gives the matrix products of an instruction or a call; None if it does none."""
    if instruction.opcode != "custom-call":
        return _INSTRUCTIONS.get(instruction.opcode)
    name = custom_call_target(instruction)
    return next((rule for pattern, rule in _CALLS if pattern.fullmatch(name)), None)


def is_product(instruction: Instruction) -> bool:
    """True if an instruction is one matrix product or several."""
    return _rule(instruction) is not None


def products_of(instruction: Instruction) -> list[Product]:
    """The products that an instruction is; [] if it is none.

    Raises `DseError` if its attributes, or the settings of a call, do not tell the dimensions.
    """
    rule = _rule(instruction)
    return rule(instruction) if rule else []


def product_instructions(instruction: Instruction) -> list[Instruction]:
    """The matrix products that a kernel does: itself, or those of its body, nested ones included."""
    if is_product(instruction):
        return [instruction]
    if instruction.opcode != "fusion":
        return []
    return [multiplier for inner in instruction.called[0].instructions for multiplier in product_instructions(inner)]


def products_in(instruction: Instruction) -> list[Product]:
    """Dimensions of the matrix products that a kernel does."""
    return [product for multiplier in product_instructions(instruction) for product in products_of(multiplier)]


def _dims(instruction: Instruction) -> list[list[int]]:
    return [instruction.numbers(key.replace("imensions", "ims")) for key in DIMENSIONS]


def _dot(instruction: Instruction) -> list[Product]:
    return [contraction(instruction, _dims(instruction))]


def _ragged(instruction: Instruction) -> list[Product]:
    """A product whose rows, or contracted elements, are split among groups, each with a separate matrix.

    All groups together have the rows or elements of the array, so that the product is as large as that with one matrix.
    """
    dims = _dims(instruction)
    a, b = first_two(instruction)
    of_a = {dim for side in dims[::2] for dim in side}
    of_b = {dim for side in dims[1::2] for dim in side} | set(instruction.numbers("rhs_group_dims"))
    try:
        k, batch = (prod(_sizes(a, side)) for side in dims[::2])
    except IndexError:
        raise DseError(f"{instruction.name}: {a} has no dimensions {dims[::2]}") from None
    m = prod(size for dim, size in enumerate(a.dims) if dim not in of_a)
    n = prod(size for dim, size in enumerate(b.dims) if dim not in of_b)
    return [Product(batch, m, n, k, False, (a, b), instruction.shape)]


def _cublas(instruction: Instruction) -> list[Product]:
    """cuBLAS, hipBLAS and Triton by `dot_dimension_numbers`; scales of narrow operands are not work."""
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
    """oneDNN's product of the last two dimensions; either operand may be written transposed."""
    settings = backend_config(instruction).get("onednn_matmul_config", {})
    ranks = [len(shape.dims) for shape in first_two(instruction)]
    sides = [(key in settings and bool(settings[key])) for key in ("transpose_a", "transpose_b")]
    contracted = [[ranks[0] - (2 if sides[0] else 1)], [ranks[1] - (1 if sides[1] else 2)]]
    batches = [list(range(rank - 2)) if min(ranks) == max(ranks) else [] for rank in ranks]
    return [contraction(instruction, [*contracted, *batches])]


def _convolution(instruction: Instruction) -> list[Product]:
    """A convolution, or one of cuDNN, whose `dim_labels` and window are always those of the forward one."""
    a, b = first_two(instruction)
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
        raise DseError(f"{instruction.name}: attention whose backend_config tells no shape of the scores") from None
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


#: Matrix products that are instructions of XLA.
_INSTRUCTIONS: Final[Mapping[str, Callable[[Instruction], list[Product]]]] = {
    "dot": _dot, "scaled-dot": _dot, "ragged-dot": _ragged, "convolution": _convolution,
}  # fmt: skip
#: Libraries' matrix products, as they are called in the text.
_CALLS: Final[tuple[tuple[re.Pattern[str], Callable[[Instruction], list[Product]]], ...]] = (
    (re.compile(r"__cublas\$(?:gemm|lt\$matmul(?:\$(?:f8|mx))?)|__triton_gemm"), _cublas),
    (re.compile(r"__onednn\$matmul(?:_reorder)?"), _onednn),
    (re.compile(r"__cudnn\$conv\w+"), _convolution),
    (re.compile(r"__cudnn\$fmha\w+"), _attention),
)


def call_flops(instruction: Instruction) -> int | None:
    """Work of a call besides matrix products, by the estimate that it carries; None where it has none. [FLOP]

    JAX's kernels (Pallas) have an estimate where their author gave one.
    """
    try:
        config = backend_config(instruction)
        return max(0, int(config.get("custom_call_config", config)["cost_estimate"]["flops"]))
    except (DseError, KeyError, TypeError, ValueError, AttributeError):
        return None  # the settings are in a form that only the library knows
