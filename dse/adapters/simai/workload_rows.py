"""A workload row by row: the arithmetic and messages of one rank in a step, as a template that repeats.

The rows of a step recur: once before the micro-batches, once per micro-batch, once per layer of
each. So a workload holds every row once, with how often it occurs; `StepRows.unrolled` gives their order.
Design columns decide times, sizes and counts, so one template holds the workloads of many designs.

Order, names and collectives of rows are those of the generator of AICB [AICB]_.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, Self

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, IntArray, column
from costmodel.formats.input_files import data_beside
from costmodel.training.kernel_kind import PASSES

#: Collectives and groups, by code.
COLLECTIVES = ("none", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
GROUPS = ("tp", "dp", "ep", "dp_ep")

#: The group that each of `PASSES`, the last axis of every table, talks to unless a row says otherwise.
DEFAULT_GROUPS = ("tp", "tp", "dp")

#: Parts of a step, in order: "first" opens the first micro-batch and "next" every other one; the layers of
#: each are "leading" ones, if there are any, and behind them all others.
SECTIONS = ("prologue", "first", "next", "leading", "layer", "closing", "epilogue")

#: Delay after a collective that files state where nothing is known. [s]
USUAL_DELAY = 100e-9


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a row: arithmetic, then a collective."""

    time: FloatArray | float = 0.0  #: arithmetic [s]
    collective: str = "none"
    message_bytes: FloatArray | float = 0.0  #: the whole tensor [B]
    group: str | None = None  #: None: the usual group of the pass
    happens: BoolArray | bool = True  #: where False there is no collective, of any size


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a template."""

    name: str
    section: str
    forward: Pass = Pass()
    activation_gradient: Pass = Pass()
    weight_gradient: Pass = Pass()
    present: BoolArray | bool = True  #: whether a design has the row

    @property
    def passes(self) -> tuple[Pass, Pass, Pass]:
        """Passes over the row, in the order of `PASSES`."""
        return self.forward, self.activation_gradient, self.weight_gradient


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Parallelism(Columns):
    """Groups of the ranks of a workload; NaN where they are unknown. (points,) columns."""

    tp: FloatArray = column("-")
    pp: FloatArray = column("-")
    ep: FloatArray = column("-", 1)
    vpp: FloatArray = column("-", np.nan)
    gradient_accumulation_steps: FloatArray = column("-", np.nan)
    world_size: FloatArray = column("-", np.nan)
    pp_message_bytes: FloatArray = column("B", 0)  #: bytes from a stage to the next per micro-batch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepRows:
    """Rows of one rank's step, for every design at once.

    Axes are (points, rows, passes) where nothing else is said. The first is 1 where all designs agree.
    """

    names: tuple[str, ...]
    sections: tuple[str, ...]  #: one of `SECTIONS` for each row
    time: FloatArray  #: arithmetic [s]
    collective: IntArray  #: code of `COLLECTIVES`
    group: IntArray  #: code of `GROUPS`
    message_bytes: FloatArray  #: the whole tensor [B]
    delay: FloatArray  #: (points, rows) after a collective [s]
    present: FloatArray  #: (points, rows) 1 where the design has the row [-]
    layers: FloatArray  #: (points,) repeats of the section "layer" in a micro-batch [-]
    micro_batches: FloatArray  #: (points,) repeats of the sections of a micro-batch [-]
    layout: Parallelism
    #: (points,) repeats of the section "leading" in a micro-batch [-]
    leading_layers: FloatArray = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        *,
        layers: FloatArray,
        micro_batches: FloatArray,
        layout: Parallelism,
        leading_layers: FloatArray | float = 0.0,
    ) -> Self:
        """A template from its rows; those that no design has are left out.

        `rows` are in the order of `SECTIONS`; their entries are scalars or (points,) arrays. `layers`, `micro_batches`
        and `leading_layers` are repeats, (points,). [-]
        """
        rows = [row for row in rows if np.any(row.present)]
        passes = [one for row in rows for one in row.passes]
        points = max(np.size(layers), np.size(micro_batches), layout.num_points)
        shape = (points, len(rows), len(PASSES))
        codes = np.array([COLLECTIVES.index(one.collective) for one in passes], dtype=np.intp)
        happens = _table([one.happens for one in passes], points) > 0
        usual = [*DEFAULT_GROUPS] * len(rows)
        groups = [GROUPS.index(one.group or name) for one, name in zip(passes, usual, strict=True)]
        return cls(
            names=tuple(row.name for row in rows),
            sections=tuple(row.section for row in rows),
            time=_table([one.time for one in passes], points).reshape(shape),
            collective=np.where(happens, codes, 0).reshape(shape),
            group=np.array(groups, dtype=np.intp).reshape(1, *shape[1:]),
            message_bytes=_table([one.message_bytes for one in passes], points).reshape(shape),
            delay=np.full((1, len(rows)), USUAL_DELAY),
            present=_table([row.present for row in rows], points),
            layers=np.broadcast_to(layers, (points,)),
            micro_batches=np.broadcast_to(micro_batches, (points,)),
            layout=layout.map(lambda values: np.broadcast_to(values, (points,))),
            leading_layers=np.broadcast_to(leading_layers, (points,)),
        )

    @property
    def num_points(self) -> int:
        """Number of designs."""
        return int(self.layers.size)

    @property
    def counts(self) -> FloatArray:
        """(points, rows) How often each row occurs in a step. [-]"""
        once = np.ones_like(self.layers)
        repeats = {
            "prologue": once,
            "first": once,
            "next": self.micro_batches - 1,
            "leading": self.micro_batches * self.leading_layers,
            "layer": self.micro_batches * self.layers,
            "closing": self.micro_batches,
            "epilogue": once,
        }
        return np.stack([repeats[section] for section in self.sections], axis=1) * self.present

    def unrolled(self, point: int = 0) -> IntArray:
        """Places in the template of every row of one design's step, in order. [-]"""
        present = self.present[min(point, len(self.present) - 1)] > 0
        places = {
            name: [i for i, section in enumerate(self.sections) if section == name and present[i]] for name in SECTIONS
        }
        leading = places["leading"] * int(self.leading_layers[min(point, self.leading_layers.size - 1)])
        rest = leading + places["layer"] * int(self.layers[point]) + places["closing"]
        micro_batches = int(self.micro_batches[point])
        body = places["first"] + rest + (places["next"] + rest) * (micro_batches - 1) if micro_batches else []
        return np.array([*places["prologue"], *body, *places["epilogue"]], dtype=np.intp)

    def take(self, points: IntArray) -> Self:
        """Workloads of some of the designs."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SHARED}
        taken = {name: values[points] if len(values) > 1 else values for name, values in arrays.items()}
        return replace(self, layout=self.layout.take(points), **taken)


#: Fields of a workload without a separate axis of designs.
_SHARED = ("names", "sections", "layout")


def _table(entries: Sequence[FloatArray | BoolArray | float], points: int) -> FloatArray:
    """(points, entries) array of scalars and (points,) arrays."""
    _, *columns = np.broadcast_arrays(np.zeros(points), *entries)
    return np.stack(columns, axis=1).astype(np.float64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MessageShape(Columns):
    """Shape of a training run that sets the sizes of messages; (points,) columns. [-]"""

    hidden_size: FloatArray = column("-")
    seq_len: FloatArray = column("-")
    micro_batch_size: FloatArray = column("-")
    tp: FloatArray = column("-")
    ep: FloatArray = column("-")
    dp: FloatArray = column("-")
    num_experts: FloatArray = column("-")  #: 0: a dense model
    sequence_parallel: FloatArray = column("-")  #: 1 where tensor-parallel ranks divide the sequence

    @property
    def activation_bytes(self) -> FloatArray:
        """The hidden states of a micro-batch, 16 bits each. [B]"""
        return 2 * self.micro_batch_size * self.seq_len * self.hidden_size


#: Time that the reference states where it measures nothing. [s]
NOTHING = 1e-9

#: Product of latent attention -> its row, in the order of the forward pass.
LATENT_ROWS: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["latent_rows"]


#: One way or another in which something may be sent, and where it is this one.
Ways = Sequence[tuple[Pass, BoolArray | bool]]


def prologue(gathered: Pass, reduced: Ways, update: FloatArray, cast: FloatArray | float = NOTHING) -> list[Row]:
    """The gathering of weights, the reduction of gradients in one way or another, the optimizer's time."""
    idle = Pass(NOTHING)
    return [
        Row("grad_gather", "prologue", idle, idle, gathered),
        *(Row("grad_param_comm", "prologue", idle, idle, way, present) for way, present in reduced),
        Row("grad_param_compute", "prologue", Pass(cast), Pass(update), idle),
    ]


def expert_weight_rows(gathered: Pass, reduced: Ways, present: BoolArray) -> list[Row]:
    """The gathering of experts' weights, and the reduction of their gradients in one way or another."""
    idle = Pass(NOTHING)
    return [
        Row("moe_grad_norm1", "prologue", idle, idle, gathered, present),
        *(Row("moe_grad_norm2", "prologue", idle, idle, way, present & has_experts) for way, has_experts in reduced),
    ]


#: Times of the three passes. [s]
Times = Sequence[FloatArray]


def column_row(name: str, section: str, run: MessageShape, times: Times, present: BoolArray) -> Row:
    """A column-split product: inputs gathered; their gradients are scattered during the arithmetic."""
    split = run.tp > 1
    return Row(
        name,
        section,
        Pass(times[0], "all_gather", run.activation_bytes, happens=split),
        Pass(times[1], "reduce_scatter", 0.0, happens=split),
        Pass(times[2]),
        present,
    )


def row_row(name: str, section: str, run: MessageShape, times: Times, present: BoolArray) -> Row:
    """A row-split product: outputs scattered, their gradients gathered."""
    split, size = run.tp > 1, run.activation_bytes
    return Row(
        name,
        section,
        Pass(times[0], "reduce_scatter", size, happens=split),
        Pass(times[1], "all_gather", size, happens=split),
        Pass(times[2]),
        present,
    )


def latent_rows(run: MessageShape, times: Mapping[str, Times], present: BoolArray, section: str) -> list[Row]:
    """Latent attention in sequence parallelism; every rank has the products that make latents whole.

    `times` are of `LATENT_ROWS`; products that a model does not have have none, and no row.
    """
    rows = []
    for kernel, name in LATENT_ROWS.items():
        if kernel not in times:
            continue
        if kernel in ("q_up", "kv_up"):
            rows.append(column_row(name, section, run, times[kernel], present))
        elif kernel == "projection":
            rows.append(row_row(name, section, run, times[kernel], present))
        else:
            forward, backward, weights = (Pass(time) for time in times[kernel])
            rows.append(Row(name, section, forward, backward, weights, present))
    return rows


def whole_row(name: str, run: MessageShape, times: Times, present: BoolArray, section: str = "layer") -> Row:
    """Attention or an MLP without sequence parallelism: one row, with one reduction forward."""
    forward = Pass(times[0], "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row(name, section, forward, Pass(times[1]), Pass(times[2]), present)


def epilogue(run: MessageShape) -> list[Row]:
    """The loss over the split vocabulary, and four numbers of the optimizer."""
    loss = Pass(0.0, "all_reduce", 4 * run.micro_batch_size * run.seq_len)
    return [
        *(Row(f"cross_entropy{i}", "epilogue", loss) for i in (1, 2, 3)),
        *(Row(f"optimizer{i}", "epilogue", Pass(0.0, "all_reduce", 4.0)) for i in (1, 2, 3, 4)),
    ]
