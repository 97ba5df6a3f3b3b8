"""What must hold within an instruction, and between it and what it runs; later readers rely on it."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.hlo.module import Instruction

#: Instruction -> how many operands it has, where everything that evaluates it relies on them.
_OPERANDS = {"broadcast": 1, "convolution": 2, "copy": 1, "dot": 2, "get-tuple-element": 1, "while": 1}
#: Instruction -> fewest operands.
_FEWEST = {
    "conditional": 1,
    "dynamic-slice": 1,
    "dynamic-update-slice": 2,
    "gather": 2,
    "reduce": 2,
    "reduce-window": 2,
    "scatter": 3,
    "select-and-scatter": 3,
    "slice": 1,
    "sort": 1,
    "triangular-solve": 2,
}
#: Instruction -> how many computations it runs.
_CALLED = {
    "async-start": 1,
    "call": 1,
    "fusion": 1,
    "reduce": 1,
    "reduce-window": 1,
    "scatter": 1,
    "select-and-scatter": 2,
    "while": 2,
}


def problem(instruction: Instruction) -> str | None:
    """What is wrong with an instruction; None where nothing is."""
    opcode, operands, called = instruction.opcode, instruction.operands, instruction.called
    if opcode in _OPERANDS and len(operands) != _OPERANDS[opcode]:
        return f"expected {_OPERANDS[opcode]} operands, got {len(operands)}"
    if len(operands) < _FEWEST.get(opcode, 0):
        return f"expected at least {_FEWEST[opcode]} operands, got {len(operands)}"
    if opcode in _CALLED and len(called) != _CALLED[opcode]:
        return f"expected {_CALLED[opcode]} computations to run, got {len(called)}"
    if opcode == "get-tuple-element":
        return _element_problem(instruction)
    if opcode == "conditional":
        if len(called) != len(operands) - 1:
            return f"{len(called)} branches for {len(operands) - 1} operands"
        pairs = zip(called, operands[1:], strict=True)
        return next(
            (p for branch, own in pairs if (p := _passing_problem(branch.name, branch.parameters, [own]))),
            None,
        )
    if opcode in ("fusion", "call", "async-start", "while"):
        problems = [_passing_problem(each.name, each.parameters, operands) for each in called]
        return next((each for each in problems if each), None)
    return None


def _element_problem(instruction: Instruction) -> str | None:
    """A tuple's element must be there, and have the shape that is written."""
    whole, index = instruction.operands[0].shape, instruction.attributes.get("index", "")
    if not index.isdecimal() or int(index) >= len(whole.elements):
        return f"{whole} has no element {index or 'without an index'}"
    element = whole.elements[int(index)]
    return None if element == instruction.shape else f"element {index} is {element}, not {instruction.shape}"


def _passing_problem(
    name: str, parameters: Sequence[Instruction], operands: Sequence[Instruction]
) -> str | None:
    """What is passed to a computation must be what it takes."""
    if len(parameters) != len(operands):
        return f"{name} takes {len(parameters)} operands, got {len(operands)}"
    for parameter, operand in zip(parameters, operands, strict=True):
        if parameter.shape != operand.shape:
            return f"{name} takes {parameter.shape} for {parameter.name}, got {operand.shape}"
    return None


def parameters_problem(numbers: Sequence[int]) -> str | None:
    """What is wrong with the numbers of a computation's parameters.

    >>> parameters_problem([1, 0]), parameters_problem([0, 2])
    (None, 'expected parameters numbered from 0 on, got 0, 2')
    """
    if sorted(numbers) == list(range(len(numbers))):
        return None
    return f"expected parameters numbered from 0 on, got {', '.join(map(str, sorted(numbers)))}"
