"""AICB's workload generator: model and parallelism -> the rows of one rank's step [AICB]_.

Row by row what the reference writes, in both of its paths; `aicb_prerelease` has the one before its first
release.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column
from costmodel.errors import DseError
from costmodel.profiles.simai.aicb_experts import expert_rows, untimed_expert_rows
from costmodel.profiles.simai.aicb_parameters import parameters
from costmodel.profiles.simai.aicb_prerelease import LayerTimes, LinearTimes, prerelease
from costmodel.profiles.simai.aicb_rows import (
    LATENT_ROWS,
    NOTHING,
    column_row,
    embedding_gradients,
    epilogue,
    expert_gradients,
    halved,
    latent_rows,
    layer_rows,
    prologue,
    whole_row,
)
from costmodel.profiles.simai.aicb_run import GeneratorRun, Release, check_release
from costmodel.profiles.simai.rows import Pass, Row, StepRows

__all__ = [
    "GeneratorRun",
    "LayerTimes",
    "LinearTimes",
    "Sections",
    "measured",
    "parameters",
    "placeholder",
    "prerelease",
]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sections(Columns):
    """Measured times of one micro-batch on one rank; (points,) columns. [s]"""

    attention: FloatArray = column("s")  #: of a layer, forward
    mlp: FloatArray = column("s")  #: of a layer, forward
    embedding: FloatArray = column("s")
    gradient_forward: FloatArray = column("s")  #: the two halves of the optimizer's time
    gradient_backward: FloatArray = column("s")
    q_down: FloatArray = column("s", 0)  #: products of latent attention, forward; in sequence parallelism
    q_up: FloatArray = column("s", 0)
    kv_down: FloatArray = column("s", 0)
    kv_up: FloatArray = column("s", 0)
    projection: FloatArray = column("s", 0)


def measured(run: GeneratorRun, times: Sections, *, release: Release = "2025-09") -> StepRows:
    """The rows of a run whose sections have been timed on one device.

    Parameters
    ----------
    run : GeneratorRun
        Model and parallelism, (points,).
    times : Sections
        Times of the sections, (points,) or scalar. [s]
    release : str
        Which generator: the parameters it counts, and the rows of experts.

    Notes
    -----
    The backward pass takes as long as the forward pass. Both halves of a section get half its time, and so
    does the output projection, of the attention's. The weight gradient of an embedding row is what the
    reference happened to time last. From September 2025 on what does not happen has no size.
    """
    check_release(run, release, timed=True)
    shared = run.sequence_parallel > 0
    half = halved(times.attention)

    def embedding(section: str, leaked: FloatArray) -> Row:
        forward = Pass(times.embedding, "all_reduce", run.activation_bytes, happens=run.tp > 1)
        return Row("embedding_layer", section, forward, Pass(NOTHING), Pass(leaked))

    dense, experts = parameters(run, release)
    gathered, reduced = (Pass(NOTHING, "all_gather", 2 * dense), Pass(NOTHING, "reduce_scatter", 4 * dense))
    whole_model = Pass(NOTHING, "all_reduce", 2 * (dense + experts))
    rows = [
        *prologue(gathered, [(reduced, True)], times.gradient_forward + times.gradient_backward),
        Row("layernorm", "prologue", Pass(NOTHING), whole_model, Pass(NOTHING), present=~shared),
        embedding_gradients(run),
        *expert_gradients(run, experts),
        embedding("first", times.gradient_backward),
        embedding("next", np.where(shared, half, times.mlp)),
        *timed_layers(run, times, shared, release),
        column_row("final_column", "closing", run, [half] * 3, shared),
        *epilogue(run),
    ]
    found = _step(run, rows, release)
    if release < "2025-09":
        return found
    return replace(found, message_bytes=np.where(found.collective > 0, found.message_bytes, 0.0))


def timed_layers(run: GeneratorRun, times: Sections, shared: BoolArray, release: Release) -> Iterator[Row]:
    """Rows of both kinds of layers: dense ones in front of others in DeepSeek's models, and all others."""
    repeated = np.where(run.recompute > 0, 2.0, 1.0)
    latent, sparse = run.is_latent, run.num_experts > 0
    attention, mlp = times.attention, times.mlp
    halves = [halved(attention * repeated), halved(attention), halved(attention)]
    products: dict[str, list[FloatArray]] = {}
    for name in LATENT_ROWS:
        time, split = getattr(times, name), not name.endswith("_down")
        forward, backward = (halved(each) if split else each for each in (time * repeated, time))
        products[name] = [forward, backward, backward]
    mlp_halves, whole, whole_mlp = [halved(mlp)] * 3, [attention] * 3, [mlp] * 3
    for section, own in (("leading", latent), ("layer", np.ones_like(latent))):
        leading = section == "leading"
        yield from layer_rows(run, "attention", halves, halves, shared & own & ~latent, section)
        yield from latent_rows(run, products, shared & own & latent, section)
        yield whole_row("attention_layer", run, whole, ~shared & own & ~latent, section)
        yield whole_row("attention_layer_mla", run, whole, ~shared & own & latent, section)
        if not leading:
            yield from expert_rows(run, mlp, release)
            yield whole_row("mlp_moelayer", run, whole_mlp, ~shared & sparse, section)
        dense = own if leading else ~sparse | (latent & (run.num_shared_experts > 0))
        yield from layer_rows(run, "mlp", mlp_halves, mlp_halves, shared & dense, section)
        yield whole_row("mlp_layer", run, whole_mlp, ~shared & dense, section)


def placeholder(run: GeneratorRun, *, release: Release = "2025-09") -> StepRows:
    """The rows of a run that nobody has timed: sizes alone, every time 1 ns.

    Parameters
    ----------
    run : GeneratorRun
        Model and parallelism, (points,).
    release : str
        Which generator.

    Raises
    ------
    DseError
        For latent attention in sequence parallelism, on which the reference fails.
    """
    check_release(run, release, timed=False)
    shared, size, idle = run.sequence_parallel > 0, run.activation_bytes, Pass(NOTHING)
    if (shared & run.is_latent).any():
        raise DseError("run: latent attention with sequence_parallel has timed rows alone; give its times")
    dense, experts = parameters(run, release)
    everything = dense + experts
    whole_model, vocabulary = (
        Pass(NOTHING, "all_reduce", 2 * each) for each in (everything, run.vocab_size * run.hidden_size)
    )
    looked_up = Pass(NOTHING, "all_reduce", size, happens=~shared)
    rows = [
        Row("grad_norm", "prologue", Pass(NOTHING, "all_gather", 2 * everything), idle,
            Pass(NOTHING, "reduce_scatter", 4 * everything)),
        Row("layernorm", "prologue", idle, whole_model, idle, ~shared),
        *expert_gradients(run, experts),
        *(Row("embedding_layer", section, looked_up, looked_up, idle) for section in ("first", "next")),
        *untimed_layers(run, shared, release),
        Row("final_column", "closing", Pass(NOTHING, "all_gather", size), idle, idle, shared),
        Row("embedding_norm", "closing", vocabulary, idle, idle),
        *epilogue(run),
    ]  # fmt: skip
    return _step(run, rows, release)


def untimed_layers(run: GeneratorRun, shared: BoolArray, release: Release) -> Iterator[Row]:
    """Rows of both kinds of layers that nobody has timed."""
    size, idle, latent, sparse = run.activation_bytes, Pass(NOTHING), run.is_latent, run.num_experts > 0
    repeated = np.where(run.recompute > 0, 2.0, 1.0)

    def halves(part: str, scale: FloatArray | float, present: BoolArray) -> Iterator[Row]:
        gather, scatter = (Pass(NOTHING, kind, scale * size) for kind in ("all_gather", "reduce_scatter"))
        yield Row(f"{part}_column", "layer", gather, idle, idle, present)
        yield Row(f"{part}_row", "layer", scatter, Pass(NOTHING, message_bytes=size), idle, present)

    def whole(name: str, section: str, scale: FloatArray | float, present: BoolArray) -> Row:
        forward, backward = (Pass(NOTHING, "all_reduce", each * size) for each in (scale, 1.0))
        return Row(name, section, forward, backward, idle, present & ~shared)

    yield from halves("attention", repeated, shared)
    yield from halves("mlp", 1.0, shared & ~sparse)
    yield from untimed_expert_rows(run, release)
    yield whole("attention_layer_mla", "leading", repeated, latent)
    yield whole("mlp_layer", "leading", 1.0, latent)
    yield whole("attention_layer", "layer", repeated, ~latent)
    yield whole("attention_layer_mla", "layer", repeated, latent)
    yield whole("mlp_moelayer", "layer", 1.0, sparse)
    yield whole("mlp_layer", "layer", 1.0, ~sparse | (latent & (run.num_shared_experts > 0)))


def _step(run: GeneratorRun, rows: list[Row], release: Release) -> StepRows:
    """The rows of a run as a template."""
    return StepRows.of(
        rows,
        layers=run.stage_layers - run.leading_layers,
        leading_layers=run.leading_layers,
        micro_batches=run.micro_batches,
        layout=run.layout(release),
        sequence_parallel=run.sequence_parallel,
    )
