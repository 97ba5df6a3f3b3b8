"""A compiled program of one device as kernel tables: what it asks of a machine, whatever the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, Self

import numpy as np

from costmodel.workload.kernels import Gemms, Label, Pointwise

#: Passes of a training step that a kernel may belong to.
PHASES: Final = ("forward", "recompute", "backward", "optimizer", "unknown")

MessageKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
MESSAGE_KINDS: Final[tuple[MessageKind, ...]] = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dense:
    """A batch of matrix products, C[m, n] = A[m, k] B[k, n]."""

    batch: float  #: [-]
    m: float  #: [elements]
    n: float  #: [elements]
    k: float  #: [elements]
    element_bytes: float  #: of an operand [B]
    output_bytes: float  #: moved per element of C [B]

    @property
    def flops(self) -> float:
        """Useful work. [FLOP]"""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Message:
    """A collective in groups of devices; the message is the whole tensor."""

    kind: MessageKind
    message_bytes: float  #: [B]
    group_size: float  #: [-]
    stride: float  #: between neighbours of a group in the numbering of all devices [-]
    purpose: str = "unknown"  #: as `purposes` has it


@dataclass(frozen=True, slots=True)
class ProgramKernel:
    """Something that runs `count` times in a step: other work around matrix products, or a message."""

    name: str
    kind: str
    phase: str
    count: float  #: [-]
    bytes_moved: float  #: through the farthest memory, each array once [B]
    flops: float  #: besides matrix products [FLOP]
    products: tuple[Dense, ...] = ()
    message: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One step of a compiled program on each of its devices."""

    #: What formulas may name of it.
    dimensions: ClassVar[tuple[str, ...]] = ("devices",)
    counts: ClassVar[tuple[str, ...]] = ()

    name: str
    kernels: tuple[ProgramKernel, ...]
    devices: float  #: [-]
    num_parameters: float  #: of the whole model [-]
    tokens: float  #: of a step on all devices; nan where they are unknown [-]
    weights_bytes: float  #: [B]
    optimizer_bytes: float  #: other state that a step overwrites [B]
    inputs_bytes: float  #: [B]
    temporaries_bytes: float  #: most that intermediate arrays take at once [B]

    def grouped(self) -> Self:
        """The same program with kernels of equal cost as one row, counted together."""
        rows: dict[ProgramKernel, ProgramKernel] = {}
        for kernel in self.kernels:
            cost = replace(kernel, name="", count=0)
            same = rows.get(cost)
            rows[cost] = replace(same, count=same.count + kernel.count) if same else kernel
        return replace(self, kernels=tuple(rows.values()))

    @property
    def model_flops(self) -> float:
        """Matrix products of all devices, those of recomputation left out. [FLOP]"""
        own = [
            k.count * product.flops for k in self.kernels if k.phase != "recompute" for product in k.products
        ]
        return self.devices * sum(own)

    def pointwise(self, points: int) -> Pointwise:
        """Traffic and work of every kernel besides matrix products, one run of each, (points, kernels)."""
        one = np.ones(points)
        rows = [(self._label(k), (k.bytes_moved, k.flops, one)) for k in self.kernels]
        return Pointwise.stack(rows)

    def gemms(self, points: int) -> list[tuple[float, list[int], Gemms]]:
        """Matrix products by element size [B]: the kernel of each, and their table, (points, products)."""
        one = np.ones(points)
        tables = []
        for size in sorted({product.element_bytes for k in self.kernels for product in k.products}):
            places, rows = [], []
            for place, kernel in enumerate(self.kernels):
                for p in (p for p in kernel.products if p.element_bytes == size):
                    places.append(place)
                    rows.append((self._label(kernel), (p.m, p.n, p.k, p.batch, p.output_bytes, one)))
            tables.append((size, places, Gemms.stack(rows)))
        return tables

    @staticmethod
    def _label(kernel: ProgramKernel) -> Label:
        return Label(kernel.name, kernel.phase, kernel.kind)
