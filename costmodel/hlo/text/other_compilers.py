"""Texts and files of compilers that are no compiled modules: what they are, and what to print instead."""

from __future__ import annotations

import re
from typing import Final

from costmodel.hlo.text.module import Instruction, Module, custom_call_target
from costmodel.hlo.text.opcodes import COLLECTIVES, parts

#: As much of a file as tells what it is. [B]
HEAD: Final = 1 << 16
#: How a program that one device runs is printed.
_PRINT: Final = "print compiled.as_text(), where compiled = jax.jit(f).lower(...).compile()"
_BEFORE: Final = f"what XLA is given, not what it makes of it; {_PRINT}"

#: How an MLIR text begins, down to where its operations say of which dialect it is.
_MLIR: Final = rb'\s*(?:#\w+ = .*\n\s*)*(?:"?builtin\.)?module\b[^{]*\{(?s:.*?)'
_KERNELS: Final = f"the code of kernels and not the program that runs them; {_PRINT}"

#: How files begin that are not compiled modules -> what they are.
_KINDS: Final = (
    (_MLIR + rb"\bstablehlo\.", f"is StableHLO: {_BEFORE}"),
    (_MLIR + rb'= "?m?hlo\.', f"is MHLO: {_BEFORE}"),
    (rb"(?s:.{0,64})ML\xefR", f"is MLIR bytecode, such as jax.export writes: {_BEFORE}"),
    (_MLIR, f"is MLIR; {_PRINT}"),
    (rb"\s*\{ ?lambda\b", f"is a jaxpr: what JAX traced, not what XLA makes of it; {_PRINT}"),
    (
        rb"(?:;.*\n|\s)*(?:; ModuleID|source_filename\b|target (?:datalayout|triple)|define |declare )",
        f"is LLVM IR, {_KERNELS}",
    ),
    (rb"\s*//[^\n]*\n(?s:.{0,400}?)\n\.version ", f"is PTX, {_KERNELS}"),
    (
        rb"\s*BufferAssignment:",
        "is XLA's assignment of buffers; give the module of the same name, in ...after_optimizations.txt",
    ),
    (rb"\s*digraph\b", f"is a picture of a graph; {_PRINT}"),
    (rb"\n(?s:.)*?\x12\tparameter", f"is a module in binary, a protocol buffer; {_PRINT}"),
)
_PATTERNS: Final = tuple((re.compile(pattern), what) for pattern, what in _KINDS)

#: A sharding that splits an array: among more than the copies that its last dimension may stand for.
_SPLIT: Final = re.compile(r"\bdevices=\[([\d,]+)\]")
_SPLITTING: Final = re.compile(
    r"Sharding|SPMD(?:FullToShard|ShardToFull)Shape|xla\.sdy\.\w+|local_xla\.sdy\.\w+"
)


def other_text(head: bytes) -> str | None:
    """What a file is that begins so, and what to print instead; None where it is nothing that is known here.

    >>> other_text(b"{ lambda ; a:f32[]. let")[:34]
    'is a jaxpr: what JAX traced, not w'
    """
    return next((what for pattern, what in _PATTERNS if pattern.match(head)), None)


def partition_problem(module: Module) -> str | None:
    """Why a module is not what one device runs; None where it is.

    A schedule is made last, of what one device runs. Before that, shardings say how arrays are to be split,
    and calls where; once they are split, collectives pass what was split.
    """
    if module.is_scheduled:
        return None
    every = [each for computation in module.computations for each in computation.instructions]
    marked = any(_SPLITTING.fullmatch(custom_call_target(each)) for each in every)
    split = any(_is_split(each) for each in every)
    exchanging = any(parts(each.opcode)[0] in COLLECTIVES for each in every)
    if marked or (split and not exchanging):
        return f"is not split among its devices yet: arrays are those of all together; {_PRINT}"
    return None


def _is_split(instruction: Instruction) -> bool:
    sharding = instruction.attributes.get("sharding", "")
    for found in _SPLIT.finditer(sharding):
        tiles = [int(number) for number in found[1].split(",") if number]
        if any(tile > 1 for tile in tiles[: len(tiles) - sharding.count("last_tile_dim_replicate")]):
            return True
    return False
