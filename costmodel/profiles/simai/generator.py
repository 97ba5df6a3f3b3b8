"""AICB's workload generator: model and parallelism -> the rows of one rank's step [AICB]_."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column
from costmodel.errors import DseError
from costmodel.profiles.simai import aicb_rows as aicb
from costmodel.profiles.simai.aicb_rows import NOTHING, GeneratorRun, Release, parameters
from costmodel.profiles.simai.workload_rows import Pass, Row, StepRows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LinearTimes(Columns):
    """Measured times of the linear layers, each the same in all three passes; (points,) columns. [s]"""

    attention_column: FloatArray = column("s")
    attention_row: FloatArray = column("s")
    mlp_column: FloatArray = column("s")
    mlp_row: FloatArray = column("s")
    gradient_forward: FloatArray = column("s")
    gradient_backward: FloatArray = column("s")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerTimes(Columns):
    """Measured times of the two halves of a layer, of both gradients the same; (points,) columns. [s]"""

    attention_forward: FloatArray = column("s")
    attention_backward: FloatArray = column("s")
    mlp_forward: FloatArray = column("s")
    mlp_backward: FloatArray = column("s")
    gradient_forward: FloatArray = column("s", NOTHING)
    gradient_backward: FloatArray = column("s", NOTHING)


def prerelease(run: GeneratorRun, times: LinearTimes | LayerTimes) -> StepRows:
    """The rows of the generator before its first release.

    Parameters
    ----------
    run : GeneratorRun
        Model and parallelism, (points,); dense.
    times : LinearTimes or LayerTimes
        Times of the linear layers in sequence parallelism, and of whole layers without it; (points,) or
        scalar. [s]

    Raises
    ------
    DseError
        For a model with experts, or times of the other mode than the run's.

    Notes
    -----
    The texts share out a vocabulary of 32,000 as it is: it is padded to whole entries on each rank alone.
    """
    shared = isinstance(times, LinearTimes)
    if ((run.sequence_parallel > 0) != shared).any():
        wanted = "LayerTimes" if shared else "LinearTimes"
        mode = "without" if shared else "with"
        raise DseError(f"run: {mode} sequence_parallel the rows are others; give their times as {wanted}")
    if (run.num_experts > 0).any():
        raise DseError("run: num_experts: the generator knew none before its first release")
    size, idle = run.activation_bytes, Pass(NOTHING)
    weights = counted_weights(run)
    both = Pass(NOTHING, "all_reduce", size)
    broadcast = Pass(0.0, "broadcast", 8 * run.micro_batch_size * run.seq_len)
    vocabulary = Pass(NOTHING, "all_reduce", 2 * run.vocab_size * run.hidden_size)
    rows = [
        Row("norm", "prologue", broadcast, idle, idle),
        Row("grad_norm", "prologue", Pass(times.gradient_forward, "all_gather", 2 * weights),
            Pass(times.gradient_backward), Pass(NOTHING, "reduce_scatter", 4 * weights)),
        Row("layernorm", "prologue", idle, Pass(NOTHING, "all_reduce", 2 * weights), idle),
        *(Row("embedding_layer", section, both, both, idle) for section in ("first", "next")),
        *(linear_rows(run, times) if isinstance(times, LinearTimes) else whole_layer_rows(run, times)),
        Row("embedding_norm", "closing", vocabulary, idle, idle),
        *(replace(row, forward=replace(row.forward, time=NOTHING), activation_gradient=idle,
                  weight_gradient=idle) for row in aicb.epilogue(run)),
    ]  # fmt: skip
    return StepRows.of(
        rows,
        layers=run.num_layers,
        micro_batches=run.micro_batches,
        layout=run.layout(pp_message_bytes=size),
        sequence_parallel=run.sequence_parallel,
    )


def counted_weights(run: GeneratorRun) -> FloatArray:
    """Parameters of a rank as these texts count them. [-]"""
    hidden, matrices = run.hidden_size, np.where(run.gated_mlp > 0, 3.0, 2.0)
    layer = (4 * hidden**2 + matrices * hidden * run.ffn_hidden_size) / run.tp
    tables = 2 * aicb.padded_vocabulary(run, run.tp) / run.tp * hidden + run.seq_len * hidden
    return run.num_layers * layer + tables


def linear_rows(run: GeneratorRun, times: LinearTimes) -> Iterator[Row]:
    """A layer in sequence parallelism: a row for each linear layer."""
    ways = {"column": ("all_gather", "reduce_scatter"), "row": ("reduce_scatter", "all_gather")}
    for part in ("attention", "mlp"):
        for way, kinds in ways.items():
            time = getattr(times, f"{part}_{way}")
            forward, backward = (Pass(time, kind, run.activation_bytes) for kind in kinds)
            yield Row(f"{part}_{way}_layer", "layer", forward, backward, Pass(time))


def whole_layer_rows(run: GeneratorRun, times: LayerTimes) -> Iterator[Row]:
    """A layer without sequence parallelism: a row for each half, reduced in both directions."""
    for part in ("attention", "mlp"):
        forward, backward = (getattr(times, f"{part}_{way}") for way in ("forward", "backward"))
        there, back = (Pass(time, "all_reduce", run.activation_bytes) for time in (forward, backward))
        yield Row(f"{part}_layer", "layer", there, back, Pass(backward))


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
    aicb.check_release(run, release, timed=True)
    shared = run.sequence_parallel > 0
    half = aicb.halved(times.attention)

    def embedding(section: str, leaked: FloatArray) -> Row:
        forward = Pass(times.embedding, "all_reduce", run.activation_bytes, happens=run.tp > 1)
        return Row("embedding_layer", section, forward, Pass(NOTHING), Pass(leaked))

    dense, experts = parameters(run, release)
    gathered, reduced = Pass(NOTHING, "all_gather", 2 * dense), Pass(NOTHING, "reduce_scatter", 4 * dense)
    whole_model = Pass(NOTHING, "all_reduce", 2 * (dense + experts))
    rows = [
        *aicb.prologue(gathered, [(reduced, True)], times.gradient_forward + times.gradient_backward),
        Row("layernorm", "prologue", Pass(NOTHING), whole_model, Pass(NOTHING), present=~shared),
        aicb.embedding_gradients(run),
        *aicb.expert_gradients(run, experts),
        embedding("first", times.gradient_backward),
        embedding("next", np.where(shared, half, times.mlp)),
        *timed_layers(run, times, shared, release),
        aicb.column_row("final_column", "closing", run, [half] * 3, shared),
        *aicb.epilogue(run),
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
    halves = [aicb.halved(attention * repeated), aicb.halved(attention), aicb.halved(attention)]
    products: dict[str, list[FloatArray]] = {}
    for name in aicb.LATENT_ROWS:
        time, split = getattr(times, name), not name.endswith("_down")
        forward, backward = (aicb.halved(each) if split else each for each in (time * repeated, time))
        products[name] = [forward, backward, backward]
    mlp_halves, whole, whole_mlp = [aicb.halved(mlp)] * 3, [attention] * 3, [mlp] * 3
    for section, own in (("leading", latent), ("layer", np.ones_like(latent))):
        leading = section == "leading"
        yield from aicb.layer_rows(run, "attention", halves, halves, shared & own & ~latent, section)
        yield from aicb.latent_rows(run, products, shared & own & latent, section)
        yield aicb.whole_row("attention_layer", run, whole, ~shared & own & ~latent, section)
        yield aicb.whole_row("attention_layer_mla", run, whole, ~shared & own & latent, section)
        if not leading:
            yield from aicb.expert_rows(run, mlp, release)
            yield aicb.whole_row("mlp_moelayer", run, whole_mlp, ~shared & sparse, section)
        dense = own if leading else ~sparse | (latent & (run.num_shared_experts > 0))
        yield from aicb.layer_rows(run, "mlp", mlp_halves, mlp_halves, shared & dense, section)
        yield aicb.whole_row("mlp_layer", run, whole_mlp, ~shared & dense, section)


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
    aicb.check_release(run, release, timed=False)
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
        *aicb.expert_gradients(run, experts),
        *(Row("embedding_layer", section, looked_up, looked_up, idle) for section in ("first", "next")),
        *untimed_layers(run, shared, release),
        Row("final_column", "closing", Pass(NOTHING, "all_gather", size), idle, idle, shared),
        Row("embedding_norm", "closing", vocabulary, idle, idle),
        *aicb.epilogue(run),
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
    yield from aicb.untimed_expert_rows(run, release)
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
