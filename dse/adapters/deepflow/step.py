"""DeepFlow's first generation: kernels with their work and times, passes of each part, collectives, and the schedule.

Each function returns figures by the names of the reference's log. Products split over devices add collectives. The
schedule has a closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, per_kernel
from costmodel.formats.input_files import data_beside
from costmodel.kernels.collectives import RING
from costmodel.kernels.kernel_tables import Gemms, Label, optimizer_work
from costmodel.kernels.products import reload_orders
from costmodel.lstm import Dimensions, Split
from dse.adapters.deepflow.configuration import (
    MEMORY_LATENCY,
    PARTS,
    Configuration,
    LstmWorkload,
    Machine,
    hardware,
    roofline,
)  # fmt: skip

#: Figure, by its name in the log -> its (points,) column.
Figures = dict[str, FloatArray]

#: Matrix product -> part of the model whose split it has, and its role.
GEMMS: Final[Mapping[str, tuple[str, str]]] = data_beside(__file__)


def kernel_figures(name: str, stem: str, work: Sequence[FloatArray], launched: Any, machine: Machine) -> Figures:
    """Figures of a kernel without reuse, of FLOP and bytes; rule RF2. [FLOP/B], [FLOP], [B], [s]"""
    flops, moved = work
    time = roofline(flops, moved, machine) + launched
    intensities = {f"{name}.inflection_point": machine["inflection"], f"{name}.comp_int": flops / moved}
    return intensities | {f"{stem}flop": flops, f"{stem}mem": moved, f"{stem}time": time}


def part_sizes(config: Configuration, part: str, role: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(m, n, k) of a part's forward product. [elements]

    The product into the vocabulary has inner dimension hidden_size while it is whole, and projection_size
    once it is split, except for the gradients of row-column splits: the reference is not of one mind.
    The native model uses projection_size throughout.
    """
    if part == "hidden":
        return config.shard_batch, config.gate_size, 2 * config.hidden_size
    if part == "projection":
        return config.tokens, config.projection_size, config.hidden_size
    split = config.split("softmax")
    projected = split.sharded if role == "forward" else split.is_cr
    return config.tokens, config.vocab_size, np.where(projected, config.projection_size, config.hidden_size)


def shares(split: Split, role: str, m: FloatArray, n: FloatArray, k: FloatArray) -> Dimensions:
    """One device's share of a product or of one of its gradients. [elements]

    Gradients of row-column splits are shared out like results, after gathering their operands, where the native model
    adds up partial sums.
    """
    if role == "activation_gradient":
        return m / split.rows, k / (split.inner * split.columns), n
    if role == "weight_gradient":
        return k / (split.inner * split.rows), n / split.columns, m
    return split.forward(m, n, k)


def gemm_table(config: Configuration) -> Gemms:
    """Every product of `GEMMS` on one device, (points, kernels). [elements]"""
    rows = []
    for name, (part, role) in GEMMS.items():
        split = config.split(part)
        m, n, k = shares(split, role, *part_sizes(config, part, role))
        if name == "projection_b_wt":  # transposed in the reference while whole, unlike other gradients
            m, n = np.where(split.sharded, m, n), np.where(split.sharded, n, m)
        rows.append((Label(name, role, part), (m, n, k, 1.0, config.element_bytes, 1.0)))
    return Gemms.stack(rows)


def gemm_figures(config: Configuration, machine: Machine) -> Figures:
    """Reload factors, work, traffic and time of every product: rules GT1 to GT5.

    Each result costs 15 FLOP and 5 per strip of k in addition to its multiply-adds (GT4), which the native model leaves
    to its tiles. Both levels see the whole product: tiles are not nested. Where the swapped order is strictly faster,
    traffic and time are of that order.
    """
    gemms, wide = gemm_table(config), {name: per_kernel(values) for name, values in machine.items()}
    m, n, k = gemms.m, gemms.n, gemms.k
    reload = partial(reload_orders, gemms, element_bytes=per_kernel(config.element_bytes))
    levels = {"gmem": reload(edge=wide["l2_tile"]), "l2mem": reload(edge=wide["shared_memory_tile"])}
    flops = 2 * m * k * n + m * n * (15 + 5 * np.ceil(k / wide["shared_memory_tile"]))
    launch = per_kernel(config.launch_overhead)
    direct, swapped = (
        roofline(flops, beyond.traffic, wide, l2_bytes=within.traffic) + launch
        for beyond, within in zip(*levels.values(), strict=True)
    )
    tables = {"GEMM_flop": flops, "GEMM_time": np.minimum(direct, swapped)}
    for level, orders in levels.items():
        tables[f"GEMM_{level}"] = np.where(swapped < direct, orders[1].traffic, orders[0].traffic)
    for order, beyond in zip(("direct", "swapped"), levels["gmem"], strict=True):
        tables[f"{order}.comp_int"] = flops / beyond.traffic
        tables[f"{order}.inflection_point"] = np.broadcast_to(wide["inflection"], flops.shape)
        for level in levels:
            factors = levels[level][order == "swapped"]
            tables |= {f"{order}.{level}.reload_{ends}": getattr(factors, f"of_{matrix}")
                       for ends, matrix in (("AB", "a"), ("AC", "c"), ("BC", "b"))}  # fmt: skip
    return {f"{name}.{end}": table[:, index] for index, name in enumerate(GEMMS) for end, table in tables.items()}


def pointwise_figures(config: Configuration, machine: Machine) -> Figures:
    """The LSTM cell and the softmax, forward and backward: rules PW1 to PW4, and section 8 where split.

    Backward, the cell counts batch * hidden_size without the gates, and the local accumulation of weight
    gradients moves elements without the word size, as in the reference. Split cells do the same work both
    ways and leave the accumulation out.
    """
    hidden, softmax = config.split("hidden"), config.split("softmax")
    w, batch, size, vocab = config.element_bytes, config.shard_batch, config.hidden_size, config.vocab_size
    cell, weights = batch * config.gate_size, 2 * size * config.gate_size
    logits = config.tokens * vocab
    gates_here, logits_here = cell / hidden.shards, logits / softmax.shards
    forward_softmax = np.where(softmax.sharded, 3 * logits_here, config.tokens * (3 * vocab - 1))
    rows = {  # split, launches, FLOP and bytes whole, FLOP and bytes split
        "Hidden_f": (hidden, 15, cell * (1 + 5 / 4 + 1), w * cell * (6 + 2 * 5 / 4),
                     4 * gates_here, 11 * w * gates_here),
        "Hidden_b": (hidden, 15, batch * size * 3.25 + weights,
                     w * batch * size * 8.5 + 3 * weights, 4 * gates_here, 11 * w * gates_here),
        "Softmax_f": (softmax, 4, forward_softmax, w * logits * 7,
                      forward_softmax, 7 * w * logits_here),
        "Softmax_b": (softmax, 4, 5 * logits, w * logits * 11,
                      5 * logits_here, 11 * w * logits_here),
    }  # fmt: skip
    figures = dict.fromkeys(("Embedding_f.mem", "Embedding_b.mem"), 2 * config.tokens * size * w)
    for name, (split, launches, flops, moved, split_flops, split_moved) in rows.items():
        work = np.where(split.sharded, split_flops, flops), np.where(split.sharded, split_moved, moved)
        launched = np.where(split.sharded, 1, launches) * config.launch_overhead
        figures |= kernel_figures(name, f"{name}.point_", work, launched, machine)
    return figures


def optimizer_figures(config: Configuration, machine: Machine) -> Figures:
    """Clipping and update of weights, whole even where products are split, without launches; not of the embedding."""
    size, figures = config.hidden_size, Figures()
    outputs = {"Hidden": 2 * config.gate_size, "Projection": config.projection_size, "Softmax": config.vocab_size}
    for part, columns in outputs.items():
        for name, kernel in (("gradclip", "gradclip"), ("applyGrad", "apply_grad")):
            work = optimizer_work(kernel, size * columns, element_bytes=config.element_bytes)
            figures |= kernel_figures(f"{part}.{name}", f"{part}.{name}_", work, 0.0, machine)
    return figures


GIB, MIB, TIB = 2.0**30, 2.0**20, 2.0**40
#: Purposes of the bytes of a part.
PURPOSES = ("weight", "activation", "pointwise")
#: The split of products in one piece.
WHOLE = Split(np.zeros(1), np.ones(1), np.ones(1))
#: Elements, or bytes, of a part by `PURPOSES`.
Footprint = Mapping[str, tuple[FloatArray, ...]]

#: The budget of time per step (rule TT5): one day over the steps that an epoch takes. The data set has `DATA_SCALE`
#: times `DATA_TOKENS` tokens, and a step is taken to have 32 sequences, for any batch.
DATA_SCALE, DATA_TOKENS, BUDGET_BATCH, DAY = 100, 768_648_884, 32, 86400.0


def ring(
    config: Configuration, machine: Machine, collective: str, rows: FloatArray, columns: FloatArray,
    members: FloatArray, dimension: str = "",
) -> FloatArray:  # fmt: skip
    """Time of a ring collective (a key of `RING`) on a matrix, with the additions of a reduction, (points,). [s]

    `rows` and `columns` are those of the whole matrix [elements]; one of `members` alone sends nothing. [-] Every
    `dimension` shares the links. Messages under 128 bytes are charged their bytes as if these were seconds, and
    additions of whole messages: so the reference has it.
    """
    elements = rows * columns
    message = config.element_bytes * elements
    share = 1.0 if collective == "all_reduce" else 1 / members
    steps, sent = RING[collective](members)
    small, hops = message < 128.0, steps * config.link_latency
    transfer = np.where(small, message * share, hops + sent * message / machine["link_bandwidth"])
    piece, whole = elements / members, (members - 1) * elements
    pieces = roofline(piece, 3 * config.element_bytes * piece, machine) + config.launch_overhead
    at_once = roofline(whole, 3 * config.element_bytes * whole, machine) * share
    reduced = 0.0 if collective == "all_gather" else np.where(small, at_once, pieces * (members - 1))
    return np.where(members > 1, transfer + reduced, 0.0)


def between_products(
    links: Callable[..., FloatArray], split: Split, m: FloatArray, k: FloatArray, n: FloatArray,
    *, counted: tuple[float, float, float], divided: Callable[..., FloatArray] = np.divide,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Collectives of a split product (m, k, n), forward and backward, by the rings of a generation's `links`. [s]

    Backward, generations count three gathers differently: that of a column-row split and of the gradient's columns,
    those of whole operands, and that of the other operand's rows.
    """
    a, b = split.dim1, split.dim2
    twice, whole, other = counted
    gather = partial(links, "all_gather")
    forward_rc = gather(divided(m, a), n, b, "kp2")
    backward_rc = whole * gather(k, m, a, "kp1") + twice * gather(m, n / b, a, "kp1")
    backward_rc = backward_rc + gather(m / a, n, b, "kp2") + whole * gather(k, n, b, "kp2")
    backward_rc = backward_rc + other * gather(m / a, k, b, "kp2")
    backward_cr = twice * gather(m, n, a, "kp1")
    forward = np.where(split.is_rc, forward_rc, np.where(split.is_cr, links("reduce_scatter", m, n, a, "kp1"), 0.0))
    return forward, np.where(split.is_rc, backward_rc, np.where(split.is_cr, backward_cr, 0.0))


def pass_figures(config: Configuration, machine: Machine, figures: Figures) -> Figures:
    """Times of one pass over each part: rules TT1 to TT3 and EM2, with the collectives of section 8. [s]

    Kernel times are formed first and then added from left to right, on which their last digits depend. The projection
    is never charged. The backward pass of its row-column split follows the rule of all split products, where the
    reference's program prints the time of the forward pass once more.
    """
    links, bandwidth = partial(ring, config, machine), machine["link_bandwidth"]
    gemm = {name: figures[f"{name}.GEMM_time"] for name in GEMMS}
    point = {name: figures[f"{name}.point_time"] for name in ("Hidden_f", "Hidden_b", "Softmax_f", "Softmax_b")}
    onward: Figures = {}
    back: Figures = {}
    for part in ("hidden", "softmax", "projection"):
        collectives = partial(between_products, links, config.split(part), counted=(2.0, 1.0, 1.0))
        for passed, role in ((onward, "forward"), (back, "weight_gradient")):
            m, n, k = part_sizes(config, part, role)
            passed[part] = collectives(m, k, n)[role != "forward"]
    size = config.hidden_size
    embedded = config.element_bytes * config.tokens * size
    embedding = 2 * embedded / machine["dram_bandwidth"] + MEMORY_LATENCY + config.launch_overhead
    hop = embedded / bandwidth + config.link_latency
    scattered = np.where(config.dp > 1, hop * 2 * (config.dp - 1), 0.0)
    hidden, softmax = config.split("hidden"), config.split("softmax")
    gates = 3 * (config.shard_batch * config.gate_size)  # elements, not bytes, around the pointwise part of split cells
    cell_forward = np.where(hidden.sharded, gates / hidden.shards / bandwidth, 0.0)
    cell_backward = np.where(hidden.is_rc, gates / hidden.columns / bandwidth, cell_forward)
    tokens = config.element_bytes * config.tokens
    sums = np.where(softmax.is_rc, tokens / softmax.dim1 * softmax.dim2, tokens * softmax.dim1)
    partial_sums = np.where(softmax.sharded, sums / bandwidth, 0.0)
    update = figures["Hidden.gradclip_time"] + figures["Hidden.applyGrad_time"]
    return {
        "sum.Cf": gemm["Cf"] + point["Hidden_f"] + onward["hidden"] + cell_forward,
        "sum.Cb": gemm["Cb_act"] + gemm["Cb_wt"] + point["Hidden_b"] + back["hidden"] + cell_backward,
        "sum.R": links("all_reduce", 2 * size, config.gate_size, config.dp) + update,
        "sum.softmax_f": gemm["softmax_f"] + point["Softmax_f"] + onward["softmax"] + partial_sums,
        "sum.softmax_b": gemm["softmax_b_wt"] + gemm["softmax_b_act"] + point["Softmax_b"] + back["softmax"],
        "sum.embedding_f": embedding,
        "sum.embedding_b": embedding + scattered,
        "sum.projection_f": gemm["projection"] + onward["projection"],
        "sum.projection_b": gemm["projection_b_wt"] + gemm["projection_b_act"] + back["projection"],
    }


def step_time(config: Configuration, machine: Machine, figures: Figures) -> FloatArray:
    """Time of one step, (points,): rule TT4, and the transfer-bound regimes of section 8. [s]

    Layers form a pipeline over time steps and stages; a stage-to-stage transfer hides behind the stage's cells where
    these take longer. Odd, and kept: the optimizer of the hidden layers is charged once, not per layer; that of the
    softmax once; the projection never. The native model charges each where it runs.
    """
    layers, steps, stages = config.num_layers, config.seq_len, config.hlp
    cf, cb, reduction = (figures[f"sum.{name}"] for name in ("Cf", "Cb", "R"))
    stage_layers = layers / stages
    message = config.element_bytes * config.shard_batch * config.hidden_size
    hop = np.where(config.lp > 1, message / machine["link_bandwidth"], 0.0)
    hops, all_hops = hop * (stages - 1), (steps + stages - 2) * hop
    all_cells, slow = layers + stage_layers * (steps - 1), cb < reduction
    forward = np.where(hop <= stage_layers * cf, all_cells * cf + hops, layers * cf + all_hops)
    near_slow = (layers + stage_layers * (steps - 2) + 1) * cb + stage_layers * reduction
    far_slow = (layers - stage_layers + 1) * cb + all_hops + stage_layers * reduction
    near = np.where(slow, near_slow, all_cells * cb + hops + reduction)
    far = np.where(slow, far_slow, layers * cb + all_hops + reduction)
    backward = np.where((hop <= stage_layers * cf) | (hop < stage_layers * cb), near, far)
    parts = [figures[f"sum.{part}_{way}"] for part in ("softmax", "embedding") for way in "fb"]
    outside = sum(parts, np.zeros(1)) + (figures["Softmax.gradclip_time"] + figures["Softmax.applyGrad_time"])
    return outside + forward + backward


def footprint(work: LstmWorkload, splits: Mapping[str, Split], stages: FloatArray, *, later: bool) -> Footprint:
    """Bytes of one model shard of a data shard, by part and purpose, (points,). [B]

    In the first generation shares are true fractions, weights of the embedding are never shared out, activations of
    cells count their inputs, and the softmax has projection_size inputs, unlike its products. In a `later` generation
    shares are rounded up, and there is no projection.
    """
    whole = np.ceil if later else np.asarray
    steps, size, vocab, layers = work.seq_len, work.hidden_size, work.vocab_size, work.num_layers / stages
    shards = {}
    for part, split in splits.items():
        inner = np.where(split.is_rc, 1.0, split.dim1)
        shards[part] = whole(work.shard_batch / split.rows), inner, split.columns
    batch, inner, columns = shards["hidden"]
    inputs, gates = whole(2 * size / inner), whole(work.gate_size / columns)
    kept = batch * (gates if later else inputs)
    counts = {"hidden": ((inputs + 1) * gates * layers, kept * steps * layers, 9 * steps * layers * (kept / 2))}
    batch, inner, columns = shards["softmax"]
    inputs, words = whole((size if later else work.projection_size) / inner), whole(vocab / columns)
    logits = batch * steps * words
    counts["softmax"] = (inputs + 1) * words, logits, 2 * logits + batch * steps
    batch, inner, columns = shards["projection"]
    outputs = work.projection_size / columns * (not later)
    counts["projection"] = (size / inner + 1) * outputs, batch * steps * outputs, batch * steps * outputs
    batch, inner, columns = shards["embedding"]
    if later:
        words, size = whole(vocab / inner), whole(size / columns)
    else:
        split, words = splits["embedding"], vocab
        batch = work.shard_batch / np.where(split.is_cr, split.dim1, split.dim1 * split.dim2)
    counts["embedding"] = words * size, batch * steps * size, 0 * batch
    return {part: tuple(count * work.element_bytes for count in counts[part]) for part in PARTS}


def total_bytes(levels: Footprint) -> FloatArray:
    """Bytes of all parts; rule MF1. [B]"""
    return sum((sum(levels[part], np.zeros(1)) for part in ("embedding", *PARTS[:-1])), np.zeros(1))


def memory_figures(table: str, levels: Footprint, total: FloatArray, room: FloatArray, purposes: Footprint) -> Figures:
    """Memory of a shard by part, and by purpose of `purposes`, in GiB; and its share of the capacity."""
    figures = {f"{table}.total": total / GIB, f"{table}.overflow": total / room}
    figures |= {f"{table}.{part}": sum(levels[part], np.zeros(1)) / GIB for part in PARTS}
    figures[f"{table}.kind_total"] = (total if levels is purposes else total_bytes(purposes)) / GIB
    for index, purpose in enumerate(PURPOSES):
        figures[f"{table}.kind_{purpose}"] = sum((purposes[part][index] for part in PARTS), np.zeros(1)) / GIB
    return figures


def split_figures(config: Configuration) -> Figures:
    """The parallelism, as the reference prints it twice."""
    figures = {f"{table}.{name}": getattr(config, name) for table in ("par1", "par2") for name in ("dp", "lp", "hlp")}
    for table, parts in (("par1", ("hidden", "softmax", "embedding")), ("par2", ("hidden", "softmax", "projection"))):
        for part in parts:
            split = config.split(part)
            figures |= {f"{table}.kp_{part}_dim1": split.dim1, f"{table}.kp_{part}_dim2": split.dim2}
            if table == "par1":
                figures[f"par1.kp_{part}_type"] = np.array([-1.0, 1.0, 2.0])[split.kind.astype(np.intp)]  # as printed
    return figures | {"par2.kp_embedding": config.embedding_dim1 * config.embedding_dim2}


def price(config: Configuration) -> Figures:
    """Every figure of configurations by the rules of DeepFlow's first generation.

    Nothing is refused here: a split without power for its links takes infinitely long or gives no number.

    (points,) columns, the same bits for a row in any batch. Times are in seconds, traffic in bytes; hardware, before
    derating, and memory in Tflop/s, GiB, MiB, GiB/s and TiB/s; parameters in 1e9. [s], [B]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        machine = hardware(config)
        figures = optimizer_figures(config, machine) | gemm_figures(config, machine)
        figures |= pointwise_figures(config, machine) | split_figures(config)
        figures |= pass_figures(config, machine, figures)
        whole = footprint(config, dict.fromkeys(PARTS, WHOLE), np.ones(1), later=False)
        shard = footprint(config, {part: config.split(part) for part in PARTS}, config.hlp, later=False)
        for table, levels in (("mem1", whole), ("mem2", shard)):
            figures |= memory_figures(table, levels, total_bytes(levels), machine["dram_capacity"], whole)
        steps = np.floor(DATA_SCALE * DATA_TOKENS / (BUDGET_BATCH * config.seq_len))
        figures |= {"parameters": config.num_parameters / 1e9, "Time": step_time(config, machine, figures),
                    "time_per_step": DAY / steps,
                    "hw.throughput": machine["flop_rate"] / config.core_derate / 1e12,
                    "hw.mem_bw": machine["dram_bandwidth"] / config.dram_derate / GIB,
                    "hw.mem_size": machine["dram_capacity"] / GIB, "hw.L2_bw": machine["l2_bandwidth"] / TIB,
                    "hw.L2_size": machine["l2_capacity"] / MIB, "hw.sm_size": machine["shared_memory_capacity"] / MIB,
                    "hw.link_bw": machine["link_bandwidth"] / GIB}  # fmt: skip
        shape = np.broadcast_shapes(*(values.shape for values in config.columns().values()), (1,))
        return {name: np.broadcast_to(values, shape) for name, values in figures.items()}


def plain(figures: Figures) -> dict[str, Any]:
    """Figures of the first design; whole numbers as integers."""
    values = {name: float(column[0]) for name, column in figures.items()}
    return {name: int(v) if v.is_integer() else v for name, v in values.items()}
