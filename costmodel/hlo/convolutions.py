"""Convolutions as matrix products of unrolled windows, in which padding and holes of dilations do no work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

from costmodel.errors import DseError
from costmodel.hlo.matrix_product import Product
from costmodel.hlo.module import Instruction, Shape
from costmodel.hlo.windows import valid_positions, window_of

#: What a convolution computes from the other two: its result, its data, or its kernel.
Role = Literal["result", "data", "kernel"]


@dataclass(frozen=True, slots=True)
class _Extents:
    """Sizes of a convolution. [-]"""

    batch: int
    data_features: int  #: of one group
    result_features: int  #: of one group
    groups: int
    shared: int  #: places of spatial dimensions over which it is a batch of products
    data: int  #: places of the others
    kernel: int
    result: int
    valid: int  #: places of the kernel that lie on data, over all of the result


def convolution(instruction: Instruction, data: Shape, kernel: Shape, result: Shape, role: Role) -> Product:
    """The matrix product that a convolution does.

    Parameters
    ----------
    instruction : Instruction
        Its window, `dim_labels` and groups are of the convolution of `data` by `kernel` that gives `result`.
    data, kernel, result : Shape
    role : {"result", "data", "kernel"}
        Which of them the instruction computes; data and kernel are gradients.

    Raises
    ------
    DseError
        If it lacks `dim_labels`, or contradicts itself.

    Notes
    -----
    Flops are those of XLA's cost analysis: a multiply and an add where a place of the kernel lies on an
    element of the data. A dimension in which each place of the result is under one place of the kernel of its
    own, as TPU programs write batched products, is a batch.
    """
    sizes = _extents(instruction, data, kernel, result)
    batch = sizes.groups * sizes.shared
    m, n, k = {
        "result": (sizes.batch * sizes.result, sizes.result_features, sizes.data_features * sizes.kernel),
        "data": (sizes.batch * sizes.data, sizes.data_features, sizes.result_features * sizes.kernel),
        "kernel": (sizes.result_features, sizes.data_features * sizes.kernel, sizes.batch * sizes.result),
    }[role]
    useful = sizes.groups * sizes.batch * sizes.data_features * sizes.result_features * sizes.valid
    whole = batch * m * n * k
    operands = {"result": (data, kernel), "data": (result, kernel), "kernel": (data, result)}[role]
    output = {"result": result, "data": data, "kernel": kernel}[role]
    useful_share = Fraction(useful, whole) if whole else Fraction(1)
    return Product(batch, m, n, k, False, operands, output, useful_share)


def _extents(instruction: Instruction, data: Shape, kernel: Shape, result: Shape) -> _Extents:
    """Sizes by the names of the dimensions; they must agree."""
    windows = window_of(instruction)
    spatial = [str(number) for number in range(len(windows))]
    of_data, of_kernel, of_result = _named_dims(instruction, (data, kernel, result), spatial)
    by_feature, by_batch = (
        max(1, *instruction.numbers(key), 1) for key in ("feature_group_count", "batch_group_count")
    )
    groups = by_feature * by_batch
    agree = (
        of_data["f"] == of_kernel["i"] * by_feature
        and of_data["b"] == of_result["b"] * by_batch
        and of_kernel["o"] == of_result["f"]
        and of_result["f"] % groups == 0
        and [each.size for each in windows] == [of_kernel[dim] for dim in spatial]
    )
    if not agree:
        raise DseError(f"{instruction.name}: {data} by {kernel} does not give {result}")
    valid = {
        dim: valid_positions(each, of_data[dim], of_result[dim])
        for dim, each in zip(spatial, windows, strict=True)
    }
    batched = [dim for dim in spatial if valid[dim] == of_kernel[dim] == of_result[dim]]
    others = [dim for dim in spatial if dim not in batched]
    return _Extents(
        batch=of_result["b"],
        data_features=of_kernel["i"],
        result_features=of_result["f"] // groups,
        groups=groups,
        shared=prod(of_result[dim] for dim in batched),
        data=prod(of_data[dim] for dim in others),
        kernel=prod(of_kernel[dim] for dim in others),
        result=prod(of_result[dim] for dim in others),
        valid=prod(valid.values()),
    )


def _named_dims(
    instruction: Instruction, shapes: Sequence[Shape], spatial: Sequence[str]
) -> list[dict[str, int]]:
    """Sizes of data, kernel and result by the letters and numbers that `dim_labels` give their dimensions."""
    labels = re.match(r"(\w+)_(\w+)->(\w+)$", instruction.attributes.get("dim_labels", ""))
    if labels is None:
        raise DseError(f"{instruction.name}: a convolution without dim_labels")
    named = []
    for written, shape, features in zip(labels.groups(), shapes, ("bf", "io", "bf"), strict=True):
        if sorted(written) != sorted([*features, *spatial]) or len(written) != len(shape.dims):
            raise DseError(
                f"{instruction.name}: dim_labels={labels[0]} do not name the dimensions of {shape}"
            )
        named.append(dict(zip(written, shape.dims, strict=True)))
    return named
