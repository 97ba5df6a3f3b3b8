"""A compiled program's kernel tables in YAML: what a study keeps of the module that it explores machines for.

Kernels of equal cost share a row: kind, phase, count, bytes moved, flops besides products, the products
(batch, m, n, k, bytes of an operand's element, bytes moved per element of the result), and the message, if it
is one (kind, bytes, devices of a group, stride, what it is for).
"""

from __future__ import annotations

import math
from typing import Any, Final

from costmodel.errors import suggestion
from costmodel.formats.strict_yaml import Section
from costmodel.hlo.program import MESSAGE_KINDS, PHASES, Dense, Message, Program, ProgramKernel
from costmodel.hlo.purposes import PURPOSES, Purpose

SCHEMA: Final = "program/v1"
_COUNTS: Final = ("devices", "num_parameters")
_BYTES: Final = ("weights_bytes", "optimizer_bytes", "inputs_bytes", "temporaries_bytes")
_ROW: Final = "[kind, phase, count, bytes, flops, products, message]"


def program_data(program: Program) -> dict[str, Any]:
    """What a file says of a program."""
    known = {} if math.isnan(program.tokens) else {"tokens": program.tokens}
    return {
        "schema": SCHEMA,
        "name": program.name,
        **{key: getattr(program, key) for key in _COUNTS},
        **known,
        **{key: f"{getattr(program, key):.0f} B" for key in _BYTES},
        "kernels": [_row(kernel) for kernel in program.grouped().kernels],
    }


def _row(kernel: ProgramKernel) -> list[Any]:
    products = [[p.batch, p.m, p.n, p.k, p.element_bytes, p.output_bytes] for p in kernel.products]
    sent = kernel.message
    message = [sent.kind, sent.message_bytes, sent.group_size, sent.stride, sent.purpose] if sent else []
    return [kernel.kind, kernel.phase, kernel.count, kernel.bytes_moved, kernel.flops, products, message]


def read_program(section: Section, name: str) -> Program:
    """The program that a mapping describes; mistakes are noted in its source, and stand-ins returned."""
    section.only(("schema", "name", "description", "tokens", "kernels", *_COUNTS, *_BYTES))
    section.text("description", required=False)
    kernels = section.value("kernels", _kernels, tuple[ProgramKernel, ...]())
    return Program(
        name=section.text("name", required=False) or name,
        kernels=kernels,
        tokens=section.number("tokens", default=math.nan),
        **{key: section.number(key) for key in _COUNTS},
        **{key: section.number(key, "B") for key in _BYTES},
    )


def _kernels(rows: Any) -> tuple[ProgramKernel, ...]:
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"expected rows, each {_ROW}")
    return tuple(_kernel(row, place) for place, row in enumerate(rows))


def _kernel(row: Any, place: int) -> ProgramKernel:
    if not isinstance(row, list) or len(row) != 7 or not all(isinstance(part, list) for part in row[5:]):
        raise ValueError(f"row {place}: expected {_ROW}")
    kind, phase, *numbers, products, message = row
    if phase not in PHASES:
        raise ValueError(f"row {place}: {phase!r} is no phase{suggestion(str(phase), PHASES)}")
    count, moved, flops = _numbers(numbers, 3, place)
    dense = tuple(Dense(*_numbers(product, 6, place)) for product in products)
    return ProgramKernel(
        f"{kind}.{place}", str(kind), phase, count, moved, flops, dense, _message(message, place)
    )


def _message(written: list[Any], place: int) -> Message | None:
    if not written:
        return None
    if written[0] not in MESSAGE_KINDS:
        raise ValueError(
            f"row {place}: {written[0]!r} is no message{suggestion(str(written[0]), MESSAGE_KINDS)}"
        )
    purpose = written[4] if len(written) == 5 else _purpose(written)
    if purpose not in PURPOSES:
        raise ValueError(f"row {place}: {purpose!r} is no purpose{suggestion(str(purpose), PURPOSES)}")
    size, devices, stride = _numbers(written[1:4], 3, place)
    return Message(written[0], size, devices, stride, purpose)


def _purpose(written: list[Any]) -> Purpose:
    """What a message is for by a table that does not say: neighbours, groups of stride one, share a model."""
    if written[0] == "send_recv":
        return "pipeline parallel"
    return "tensor parallel" if written[3:] == [1.0] else "data parallel"


def _numbers(written: Any, count: int, place: int) -> list[float]:
    """So many numbers, none of them negative."""
    if not isinstance(written, list) or len(written) != count:
        raise ValueError(f"row {place}: {written!r}: expected {count} numbers")
    if not all(type(number) in (int, float) and number >= 0 for number in written):
        raise ValueError(f"row {place}: {written!r}: expected numbers, none of them negative")
    return [float(number) for number in written]
