"""Classes of operations: passing on, summing, scaling, matrix products."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dse.adapters.xla.text.module import Instruction
from dse.adapters.xla.text.opcodes import ARITHMETIC, TRANSCENDENTAL
from dse.adapters.xla.training.data_flow import CARRIED, CHOSEN, SAME_VALUES, FlowStep, Source, behind
from dse.adapters.xla.work.cost_analysis import is_product

#: Instructions that lay out anew, cut, join or pass on what they read.
MOVING: Final = SAME_VALUES.union(
    (CARRIED, CHOSEN),
    ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "concatenate"),
    ("dynamic-slice", "dynamic-update-slice", "opt-barrier", "pad", "ragged-all-to-all"),
    ("reduce-precision", "reduce-scatter", "reverse", "select", "slice"),
)
#: Instructions of which sums of scaled arrays are made.
LINEAR: Final = MOVING | frozenset(("add", "subtract", "negate", "multiply", "divide"))
#: Calls that hand on what they read: of compilers, for what they schedule and where they place it.
_PASSING: Final = re.compile(
    r"async|sharding|full_?to_?shard|shard_?to_?full|move_?to|annotat|pin|bitcast|assume", re.IGNORECASE
)
#: Calls of libraries that multiply matrices, whatever else they do.
_MULTIPLYING: Final = re.compile(r"gemm|matmul|conv|attention|fmha|triton", re.IGNORECASE)
_SORTING: Final = re.compile(r"top_?k|sort|partialreduce", re.IGNORECASE)


def target(step: FlowStep) -> str:
    """The target of a call; "" for other operations."""
    return step.instruction.attributes.get("custom_call_target", "") if step.opcode == "custom-call" else ""


def passes_on(step: FlowStep) -> bool:
    """True if an operation is a call of the compiler that computes nothing."""
    return bool(_PASSING.search(target(step)))


def multiplies(step: FlowStep) -> bool:
    """True if an operation is a matrix product, a convolution, or a library call with one.

    A library's product gives its scratch memory too, which is none.
    """
    if is_product(step.instruction):
        return step.output == 0
    return bool(_MULTIPLYING.search(target(step))) and not passes_on(step)


def picks(step: FlowStep) -> bool:
    """True if an operation sorts, or finds the largest elements with their positions."""
    finds = step.opcode == "reduce" and len(step.instruction.operands) > 2
    return finds or step.opcode in ("sort", "topk") or bool(_SORTING.search(target(step)))


def hands_on(step: FlowStep) -> bool:
    """True if an operation returns elements of its operand, possibly moved, or their sums over devices."""
    return step.opcode in MOVING or passes_on(step)


def elementwise(step: FlowStep) -> bool:
    """True if each output element depends on the operand elements at the same position."""
    return step.opcode in ARITHMETIC or step.opcode in TRANSCENDENTAL or step.opcode == "clamp"


def summed(step: FlowStep) -> Sequence[Source]:
    """Operands that are a term, or the numerator, of a sum of scaled arrays; () for other operations.

    What a loop carries is what its body makes of it, if that is anything else.
    """
    if step.opcode in ("dynamic-slice", "divide", "pad"):
        return step.reads[:1]
    if step.opcode == "dynamic-update-slice":
        return step.reads[:2]
    if step.opcode in ("select", CARRIED):
        return step.reads[1:] or step.reads
    return step.reads if step.opcode in LINEAR or passes_on(step) else ()


def collected(source: Source) -> bool:
    """True if an array is a number, or numbers side by side."""
    step = behind(source)
    if not isinstance(step, FlowStep):
        return False
    numbers = step.opcode == "concatenate" and all(
        isinstance(each, FlowStep) and each.shape.size <= 1 for each in step.reads
    )
    return step.shape.size <= 1 or numbers


def added_to(step: FlowStep) -> Source:
    """The operand that an operation adds its own result to: rows of a scatter, the third operand of a product."""
    if step.opcode in ("scatter", "dynamic-update-slice"):
        return step.reads[0]
    if step.opcode == "custom-call" and multiplies(step) and len(step.reads) > 2:
        return step.reads[2]
    return None


def number_of(instruction: Instruction, given: Mapping[Instruction, Instruction]) -> str:
    """The number of a constant, as written, for one operand or one of many; "" for others."""
    while instruction in given or instruction.opcode in (*SAME_VALUES, "get-tuple-element"):
        if instruction in given:
            instruction = given[instruction]
        elif instruction.opcode == "get-tuple-element":
            instruction = _element(instruction)
        else:
            instruction = instruction.operands[0]
    return instruction.argument if instruction.opcode == "constant" and not instruction.shape.dims else ""


def _element(instruction: Instruction) -> Instruction:
    """The instruction that computes an element of a tuple or of a fusion's result; otherwise the instruction itself."""
    whole = instruction.operands[0]
    root = whole.called[0].root if whole.opcode == "fusion" else whole
    return root.operands[int(instruction.attributes["index"])] if root.opcode == "tuple" else whole


def square_factor(step: FlowStep) -> Source:
    """The array whose squares an operation sums, in one or several steps; None for other operations."""
    terms: Source = step
    while isinstance(terms, FlowStep) and _sums(terms):
        terms = behind(terms.reads[0])
    if not isinstance(terms, FlowStep) or terms.opcode not in (("dot",) if terms is step else ("multiply",)):
        return None
    first, second = (behind(source) for source in terms.reads[:2])
    return first if first == second else None


def _sums(step: FlowStep) -> bool:
    """True if an operation sums elements of its operand."""
    if step.opcode not in ("reduce", "reduce-window"):
        return False
    return step.instruction.called[0].root.opcode == "add"
