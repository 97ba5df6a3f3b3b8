"""Which outputs of an instruction lie, or may lie, in the memory of what it reads: XLA's rules of aliases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from costmodel.errors import DseError
from costmodel.hlo.text.module import Computation, Instruction
from costmodel.hlo.text.opcodes import ARITHMETIC, TRANSCENDENTAL, parts

#: Output -> array among those that are read, each numbered through tuples in order.
InPlace = dict[int, int]

ALIAS: Final = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(\s*(\d+)\s*(?:,\s*\{([\d,\s]*)\})?")

#: Element of an output from the same element of what is read.
ELEMENTWISE: Final = (ARITHMETIC | TRANSCENDENTAL | {"copy", "map"}) - {"rng", "rng-bit-generator"}


def overwritten(instruction: Instruction) -> InPlace:
    """Outputs that must lie in an operand's memory.

    Raises
    ------
    DseError
        If the text names an operand that is not there.

    Notes
    -----
    Updates of slices, scatters and reductions over devices overwrite what they update, also as the last
    instruction of a fusion; other outputs where ``output_to_operand_aliasing`` says so.
    """
    opcode = parts(instruction.opcode)[0]
    found: InPlace = {}
    if opcode == "fusion":
        found = _fusion_updates(instruction.called[0])
    elif opcode in ("dynamic-update-slice", "set-dimension-size"):
        found = {0: 0}
    elif opcode == "scatter":
        found = {place: place for place in range((len(instruction.operands) - 1) // 2)}
    elif opcode == "all-reduce":
        found = {place: place for place in range(len(instruction.operands))}
    elif (opcode == "collective-permute" and len(instruction.operands) == 4) or opcode == "ragged-all-to-all":
        found = {0: _first_read(instruction, 1)}
    return found | written_aliases(instruction)


def written_aliases(instruction: Instruction) -> InPlace:
    """Outputs that the text lays into an operand's memory.

    Raises
    ------
    DseError
        If it names an operand that is not there.
    """
    found = {}
    for written, operand, _ in ALIAS.findall(instruction.attributes.get("output_to_operand_aliasing", "")):
        if int(operand) >= len(instruction.operands):
            raise DseError(f"{instruction.name}: output_to_operand_aliasing: there is no operand {operand}")
        path = re.findall(r"\d+", written)
        found[int(path[0]) if path else 0] = _first_read(instruction, int(operand))
    return found


def _first_read(instruction: Instruction, operand: int) -> int:
    """Place among the read arrays of an operand's first."""
    return sum(1 for before in instruction.operands[:operand] for _ in before.shape.leaves())


def _fusion_updates(body: Computation) -> InPlace:
    """Outputs of a fusion that update one of its parameters in place."""
    roots = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    found = {}
    for output, root in enumerate(roots):
        updated = _updated(root)
        if updated is not None and updated.opcode == "parameter":
            parameters = body.parameters
            before = parameters[: int(updated.argument)]
            found[output] = sum(1 for each in before for _ in each.shape.leaves())
    return found


def _updated(root: Instruction) -> Instruction | None:
    """What an output of a fusion updates, where it updates anything."""
    if root.opcode == "get-tuple-element" and root.operands[0].opcode == "tuple":
        return _updated(root.operands[0].operands[int(root.attributes["index"])])
    if root.shape.is_tuple or 0 not in (own := overwritten(root)) or own[0] >= len(root.operands):
        return None
    source = root.operands[own[0]]
    return source.operands[0] if source.opcode == "bitcast" else source


def may_share(operand: Instruction, user: Instruction, output: int) -> bool:
    """Whether an output may lie in the memory of an operand that nothing reads later.

    Parameters
    ----------
    operand, user : Instruction
        What is read, an array, and what reads it.
    output : int
        Which array of `user`, numbered through tuples in order.

    Notes
    -----
    XLA's rule: shape and layout must be the same, and each element must come from the same element, through
    all of a fusion.
    """
    target = list(user.shape.leaves())[output]
    if user.opcode == "copy" or operand.opcode == "constant" or operand.shape.is_tuple:
        return False
    if target != operand.shape or target.layout != operand.shape.layout:
        return False
    places = [place for place, each in enumerate(user.operands) if each is operand]
    if user.opcode == "fusion":
        return _fusion_may_share(user, places[0])
    if user.opcode in ("scatter", "triangular-solve"):
        return places == [int(user.opcode == "triangular-solve")]
    if user.opcode == "sort":
        return places == [output]
    return user.opcode in ELEMENTWISE


def _fusion_may_share(fusion: Instruction, place: int) -> bool:
    """Whether every use of a fusion's parameter takes it element by element to the root."""
    body, kind = fusion.called[0], fusion.attributes.get("kind", "")
    users = _users(body)
    parameter = body.parameters[place]
    if kind == "kOutput" and body.root.opcode == "add":
        return users.get(parameter) == [body.root] and any(
            each.opcode in ("dot", "convolution") for each in body.root.operands
        )
    if kind not in ("kLoop", "kInput"):
        return False
    reached, waiting = {parameter}, [parameter]
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user.opcode != "tuple" and user.opcode not in ELEMENTWISE:
                return False
            if user not in reached:
                reached.add(user)
                waiting.append(user)
    return True


def _users(body: Computation) -> Mapping[Instruction, list[Instruction]]:
    """Instruction -> those that read it, once for each time."""
    users: dict[Instruction, list[Instruction]] = {}
    for each in body.instructions:
        for operand in each.operands:
            users.setdefault(operand, []).append(each)
    return users
