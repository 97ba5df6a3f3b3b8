"""Steps of LSTM language models and of transformers by the rules of DeepFlow's second and present generation.

In an LSTM, kernels without reuse, reductions and copies count one level of memory, the registers. Gradients are reduced
after the last step of a layer. The schedule runs each task when its inputs and its device are free, first come, first
served.

Transformers have the time of all tokens of a training run, and one training step. Both have the six products of a
layer, with the batch among their rows: no grouped queries and no gate, and all of a sequence attends to all of it. The
time of all tokens has nothing else. A step has pointwise kernels, embedding, head and reductions; these begin when
gradients are ready and overlap each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.formats.input_files import data_beside
from costmodel.kernels.collectives import RING
from costmodel.kernels.kernel_tables import optimizer_work
from costmodel.lstm import Split
from dse.adapters.deepflow.chips import Values, links
from dse.adapters.deepflow.configuration import LstmWorkload
from dse.adapters.deepflow.setups import ChipSetup
from dse.adapters.deepflow.step import Figures, between_products
from dse.adapters.deepflow.tiled_products import ProductTimes, level_time, products

#: Bandwidth from host to device, which inputs of an embedding in one piece take. [B/s]
HOST_BANDWIDTH: Final = 12.4 * 2.0**30


@dataclass(frozen=True, slots=True)
class Device:
    """A chip with its links and the rules of a generation, as kernels and products read them."""

    setup: ChipSetup
    unit: Values  #: (points,) columns of `products`, and links

    @classmethod
    def of(cls, setup: ChipSetup, blocks: dict[str, Values]) -> Device:
        """The device of a set-up, from the blocks of its chip."""
        sheet = setup.sheet
        columns = {"element_bytes": "sw_param.precision", "launch": "sw_param.kernel_launch_overhead",
                   "fma_outputs": "tech_param.core.FMA_d1", "fma_depth": "tech_param.core.FMA_d2",
                   "dataflow": "tech_param.core.dataflow"}  # fmt: skip
        unit = {name: sheet[path] for name, path in columns.items()}
        unit["rate"] = blocks["core"]["throughput"] * sheet["tech_param.core.util"]
        unit["bundles"] = blocks["core"]["num_bundle"]
        for index, level in enumerate(list(blocks.values())[1:5]):
            unit |= {f"bandwidth{index}": level["used_bandwidth"], f"latency{index}": level["latency"]}
            unit[f"share{index}"] = level["share"]
        names = {"kp1": "kp_hidden_dim1", "kp2": "kp_hidden_dim2", "dp": "dp", "lp": "lp"}
        return cls(setup, unit | links(sheet, blocks, {name: setup.split(key) for name, key in names.items()}))

    def products(self, sizes: Sequence[Sequence[FloatArray]]) -> ProductTimes:
        """ProductTimes (m, k, n) on one device."""
        stated, rules = self.setup.sheet["search.tile_candidates"][0], self.setup.rules
        return products(sizes, self.unit, candidates=int(stated or rules["candidates"]), nested=rules["nested"])

    def kernel(self, flops: FloatArray | float, moved: FloatArray) -> FloatArray:
        """Time of a kernel whose traffic, in whole bytes, counts for the registers alone. [s]"""
        return level_time(np.asarray(flops), np.trunc(moved), self.unit, 0)

    def exchange(self, amount: FloatArray, dimension: str) -> FloatArray:
        """Time to read an amount, pass it on and write it, without latency. [s]"""
        return self.kernel(0.0, 2 * amount) + amount / self.unit[f"bandwidth.{dimension}"]

    def ring(self, collective: str, rows: FloatArray, columns: FloatArray, members: FloatArray,
             dimension: str) -> FloatArray:  # fmt: skip
        """Time of a ring collective (a key of `RING`) on a matrix, (points,). [s]

        `rows` and `columns` are those of the whole matrix [elements]; one of `members` alone sends nothing. [-] A
        gather copies the whole matrix in the end.
        """
        w, launch = self.unit["element_bytes"], self.unit["launch"]
        steps, _ = RING[collective](members)
        piece = w * rows * columns / members
        bandwidth, latency = self.unit[f"bandwidth.{dimension}"], self.unit[f"latency.{dimension}"]
        hop = piece / bandwidth + self.kernel(0.0, 2 * piece) + latency
        copied = self.kernel(0.0, 3 * rows * columns * w) + launch
        added = (self.kernel(rows * columns / members, 3 * w * rows * columns / members) + launch) * (members - 1)
        return np.where(members > 1, hop * steps + (copied if collective == "all_gather" else added), 0.0)

    def between_products(self, split: Split, *sizes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Collectives of a split product (m, k, n), forward and backward. [s]"""
        return between_products(self.ring, split, *sizes, counted=(1.0, 0.5, 0.0), divided=np.floor_divide)

    def optimizer(self, weights: FloatArray) -> FloatArray:
        """Time of the update and clipping of `weights` weights, without launches. [s]"""
        w = self.unit["element_bytes"]
        clipping = self.kernel(*optimizer_work("gradclip", weights, element_bytes=w))
        return self.kernel(3 * weights, 4 * weights * w) + clipping


def split_products(split: Split, m: FloatArray, k: FloatArray, n: FloatArray) -> list[Sequence[FloatArray]]:
    """(m, k, n) of a product on one device, of the gradient of weights, and of that of activations. [elements]"""
    rows, inner, columns = split.rows, split.inner, split.columns
    gradients = (k / rows, m // inner, n / columns), (m / rows, n // inner, k / columns)
    return [(m // rows, k // inner, n // columns), *gradients]


def lstm_times(work: LstmWorkload, device: Device) -> Values:
    """Times of a cell, softmax and embedding in one step, of reductions, and of both passes, (points,). [s]"""
    hidden, softmax, unit = work.split("hidden"), work.split("softmax"), device.unit
    batch, size, gates, vocab = work.shard_batch, work.hidden_size, work.gate_size, work.vocab_size
    parts = {"C": (hidden, (batch, 2 * size, gates)), "softmax_": (softmax, (batch, size, vocab))}
    triples = [triple for split, sizes in parts.values() for triple in split_products(split, *sizes)]
    time, times = device.products(triples).time.T, Figures()
    for index, (name, (split, sizes)) in enumerate(parts.items()):
        forward, weights, activations = time[3 * index : 3 * index + 3]
        kernel_f, kernel_b = (cell_kernels, softmax_kernels)[index](work, device)
        sent_f, sent_b = device.between_products(split, *sizes)
        times |= {f"{name}f": forward + sent_f + kernel_f, f"{name}b": weights + activations + sent_b + kernel_b}
    times["embedding_f"], times["embedding_b"] = embedding_times(work, device)
    for name, part, rows, columns in (
        ("R", "hidden", 2 * size, gates), ("Rs", "softmax", size, vocab), ("Re", "embedding", vocab, size)
    ):  # fmt: skip
        times[name] = reduction_time(work, device, part, rows, columns)
    message = work.element_bytes * (batch / hidden.rows) * (size / np.where(hidden.is_rc, hidden.dim2, hidden.inner))
    hop = message / unit["bandwidth.lp"] + unit["latency.lp"] + device.kernel(0.0, 2 * message)
    times["hop"] = np.where(work.lp > 1, hop, 0.0)
    forward_pass = [times[name] for name in ("embedding_f", "Cf", "softmax_f", "hop")]
    backward_pass = [times[name] for name in ("softmax_b", "Cb", "embedding_b", "hop", "Rs", "R", "Re")]
    times["forward"], times["backward"] = (scheduled(work, entries) for entries in (forward_pass, backward_pass))
    return times


def cell_kernels(work: LstmWorkload, device: Device) -> tuple[FloatArray, FloatArray]:
    """Pointwise kernels of a cell and their exchange between devices, forward and backward. [s]

    Odd, and kept: the second dimension of the softmax decides whether row-column cells exchange anything; backward, a
    cell in one piece counts no gates, and weights are accumulated in every step.
    """
    split, w, batch = work.split("hidden"), work.element_bytes, work.shard_batch
    accesses = 3 * 3 + 2 * 2  # of each gate: three operations of two inputs, two of one
    columns, rows = work.gate_size / (split.inner * split.columns), batch / split.rows
    weights, launches = 2 * work.hidden_size * columns, 5 * device.unit["launch"]
    back_columns = np.where(split.sharded, columns, work.hidden_size)
    forward = device.kernel(rows * columns * 5, w * rows * columns * accesses)
    moved = w * rows * back_columns * accesses + w * weights * 3
    backward = device.kernel(rows * back_columns * 5 + weights, moved)
    exchanges = split.is_cr | (split.is_rc & (work.softmax_dim2 > 1))
    sent = [4 * rows * columns * w, 4 * np.where(split.is_rc, batch, rows) * columns * w]
    passed = [np.where(split.is_cr, device.exchange(s, "kp1"), device.exchange(s, "kp2")) for s in sent]
    forward_sent, backward_sent = (np.where(exchanges, time, 0.0) for time in passed)
    return forward + launches + forward_sent, backward + launches + backward_sent


def softmax_kernels(work: LstmWorkload, device: Device) -> tuple[FloatArray, FloatArray]:
    """Pointwise kernels of the softmax and partial sums between devices, forward and backward. [s]"""
    split, w, batch = work.split("softmax"), work.element_bytes, work.shard_batch
    share = batch / split.rows * (work.vocab_size / split.columns) / split.inner
    launches = np.where(split.sharded, 1.0, 4.0) * device.unit["launch"]
    flops = np.where(split.sharded, 3 * share, batch * (3 * work.vocab_size - 1))
    sums = device.exchange(w * (batch / split.dim1) * split.dim2, "kp2")
    gathered = device.ring("all_gather", batch, np.ones(1), split.dim1, "kp1")
    exchanged = np.where(split.is_cr, gathered, np.where(split.is_rc & (split.dim2 > 1), sums, 0.0))
    forward, backward = device.kernel(flops, w * share * 7), device.kernel(share * 5, w * share * 11)
    return forward + launches + exchanged, backward + launches


def embedding_times(work: LstmWorkload, device: Device) -> tuple[FloatArray, FloatArray]:
    """Passes over the embedding: reads and writes of one row per sequence. [s]"""
    split, batch = work.split("embedding"), work.shard_batch
    columns = work.hidden_size / split.columns
    moved = 2 * (batch / split.rows) * columns * work.element_bytes
    kernel = device.kernel(0.0, moved) + device.unit["launch"]
    gathered = device.ring("all_gather", batch, columns, split.dim1, "kp1")
    from_host = np.where(split.sharded, 0.0, moved / HOST_BANDWIDTH)
    return kernel + np.where(split.is_cr, gathered, 0.0) + from_host, kernel + np.where(split.sharded, gathered, 0.0)


def reduction_time(work: LstmWorkload, device: Device, part: str, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Reduction of gradients of a weight matrix over data shards, and its optimizer. [s]

    The kind of split is that of the hidden layers for every part, as in the reference.
    """
    kind, split = work.split("hidden"), work.split(part)
    held = np.where(kind.sharded, rows / split.dim1, rows)
    width = np.where(kind.is_rc, columns / split.dim2, columns)
    gathered = np.where(kind.is_rc, device.ring("all_gather", rows, width, split.dim1, "kp1"), 0.0)
    reduced = device.ring("all_reduce", held, width, work.dp, "dp")
    return gathered + reduced + device.optimizer(np.where(kind.is_rc, rows, held) * width)


def scheduled(work: LstmWorkload, times: Sequence[FloatArray]) -> FloatArray:
    """End of a pass whose entries take `times`, in the order of `Simulation`, (points,). [s]

    With one stage the order of tasks does not depend on their times, and designs of as many steps and layers are
    scheduled together; otherwise each design is, as are those without a time.
    """
    points = work.num_points
    keys = [np.broadcast_to(values, points) for values in (work.seq_len, work.num_layers, work.lp)]
    alone = (keys[2] > 1) | ~np.isfinite(sum(times))
    groups, group = np.unique([*keys, np.where(alone, np.arange(points), -1)], axis=1, return_inverse=True)
    ends = np.empty(points)
    for index, (steps, layers, stages, _) in enumerate(groups.T.astype(int).tolist()):
        rows = np.flatnonzero(group.ravel() == index)
        ends[rows] = Simulation(steps, layers, stages, *(np.broadcast_to(v, points)[rows] for v in times)).end()
    return ends


class Simulation:
    """The schedule of a pass of as many steps and layers over pipeline stages, for designs that share its order.

    Tasks run on devices, transfers on links, both one at a time; entries of the schedule are tried in the order
    in which they became ready. Transfers within a device (index -1) take no link.
    """

    def __init__(self, steps: int, layers: int, stages: int, first: FloatArray, cell: FloatArray, last: FloatArray,
                 hop: FloatArray, *reductions: FloatArray) -> None:  # fmt: skip
        """Entries of the first, each cell's and the last task of every step; the backward pass reduces after each."""
        way = -1 if reductions else 1
        self.children: list[list[int]] = []
        self.waiting: list[int] = []  #: entries that each entry waits for
        self.entries: list[tuple[bool, int, FloatArray]] = []  #: is a transfer, its index, its time [s]
        self.devices, self.links = [True] * stages, [True] * (2 * stages - 1)
        per_stage = -(-layers // (stages - 2 if stages > 2 else stages))
        stage = [0 if stages == 1 else layer // per_stage + 1 for layer in range(layers)][::way]
        begin, finish = (0, stages - 1)[::way]
        rows = [[self.entry(False, index, time) for _ in range(steps)] for index, time in
                [(begin, first), *((index, cell) for index in stage), (finish, last)]]  # fmt: skip
        none, within = np.zeros_like(hop), [stage[index] == stage[index - 1] for index in range(1, layers)]
        links = [max(pair) - 1 for pair in pairwise(stage)]
        inlet, outlet = (0, stages - 2)[::way] if stages > 1 else (-1, -1)
        for row in rows[1:-1]:
            self.join(row[:-1], row[1:], -1, none)
        self.join(rows[0], rows[1], inlet, hop)
        self.join(rows[-2], rows[-1], outlet, hop)
        for index, (local, link) in enumerate(zip(within, links, strict=True), 1):
            self.join(rows[index], rows[index + 1], -1 if local else link, none if local else hop)
        for index, local in enumerate(within, 1):  # steps of the next layer on a device come first
            if local:
                self.join(rows[index + 1][:-1], rows[index][1:], -1, none)
        self.join(rows[0][:-1], rows[0][1:], -1, none)
        if reductions:
            places = [2 * stages - 2, *(0 if stages == 1 else at - 1 + stages for at in stage), stages - 1]
            times = [reductions[0], *[reductions[1]] * layers, reductions[2]]
            for row, index, time in zip(rows, places, times, strict=True):
                self.children[row[-1]].append(self.entry(True, index, time, waits=1))

    def entry(self, transfer: bool, index: int, time: FloatArray, waits: int = 0) -> int:
        """A new entry of the schedule."""
        self.entries.append((transfer, index, time))
        self.children.append([])
        self.waiting.append(waits)
        return len(self.entries) - 1

    def join(self, sources: Sequence[int], targets: Sequence[int], link: int, time: FloatArray) -> None:
        """Let each target wait for a transfer from its source."""
        for source, target in zip(sources, targets, strict=True):
            transfer = self.entry(True, link, time, waits=1)
            self.children[source].append(transfer)
            self.children[transfer].append(target)
            self.waiting[target] += 1

    def end(self) -> FloatArray:
        """End of the last entry of each design. [s]

        Odd, and kept: transfers within a device free the last link as they end, so that reductions overlap on it.
        """
        _, index, now = self.entries[0]
        self.devices[index] = False
        events, ready, latest, count = [(float(now[0]), 0, 0, now)], list[int](), np.zeros_like(now), 1
        while events:
            _, _, done, now = heappop(events)
            latest = np.maximum(latest, now)
            transfer, index, _ = self.entries[done]
            (self.links if transfer else self.devices)[index] = True
            for child in self.children[done]:
                self.waiting[child] -= 1
                if not self.waiting[child]:
                    ready.append(child)
            for child in ready[:]:
                transfer, index, time = self.entries[child]
                units = self.links if transfer else self.devices
                if index != -1 and not units[index]:
                    continue
                if index != -1:
                    units[index] = False
                ready.remove(child)
                end = now + time
                heappush(events, (float(end[0]), count, child, end))
                count += 1
        return latest


_POINTWISE: Final[Mapping[str, tuple[str, Any, Any]]] = data_beside(__file__)


def layer_products(setup: ChipSetup, batch: FloatArray) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    """(m, k, n) of the products of a layer. [elements]"""
    steps, size, heads = (setup.model(key) for key in ("seq_len", "hidden_dim", "num_heads"))
    multiple, rows = setup.model("ffn_mult"), batch * steps
    ffn = np.where(np.isnan(multiple), setup.model("ffn_dim"), size * multiple)
    return {
        "qkv_proj": (rows, size, 3 * size),
        "attention_score": (rows * heads, size // heads, steps),
        "attention_output": (rows * heads, steps, size // heads),
        "output_proj": (rows, size, size),
        "ffn1": (rows, size, ffn),
        "ffn2": (rows, ffn, size),
    }


def token_times(setup: ChipSetup, device: Device, split: Split) -> Values:
    """Times of the products of a layer, whose split all have, and of all tokens. [s]"""
    batch = setup.model("batch_size")
    sizes = layer_products(setup, batch)
    local = device.products([split_products(split, *size)[0] for size in sizes.values()]).time.T
    times = {
        f"gemm.{name}": time + device.between_products(split, *size)[0]
        for (name, size), time in zip(sizes.items(), local, strict=True)
    }
    compute = 3.0 * sum(times.values(), np.zeros(1))
    batches = setup.model("n_tokens") / (setup.model("seq_len") * batch)
    whole = setup.model("num_layers") * batches * compute / setup.model("N_PP")
    return times | {"compute": compute, "Time": whole + setup.model("communication_time")}


def step_times(setup: ChipSetup, device: Device) -> Values:
    """Kernels, reductions and passes of a training step of data shards; products are in one piece. [s]"""
    launch, w, zero = device.unit["launch"], device.unit["element_bytes"], np.zeros(1)
    batch = np.ceil(setup.model("batch_size") / setup.split("dp"))
    steps, size, vocab = (setup.model(key) for key in ("seq_len", "hidden_dim", "vocab_size"))
    sizes = layer_products(setup, batch)
    rows = batch * steps
    triples = [
        triple for m, k, n in (*sizes.values(), (rows, size, vocab)) for triple in ((m, k, n), (m, n, k), (k, m, n))
    ]
    time = device.products(triples).time.T
    passes = [
        dict(zip(sizes, products + launch, strict=True)) for products in (time[:-3:3], time[1:-3:3] + time[2:-3:3])
    ]
    elements = {"scores": sizes["attention_score"][0] * steps, "hidden": rows * size}
    for name, (of, *kernels) in _POINTWISE.items():
        for times, group in zip(passes, kernels, strict=True):
            times[name] = sum((device.kernel(flops * elements[of], accesses * w * elements[of]) + launches * launch
                               for flops, accesses, launches in group), zero)  # fmt: skip
    layers = [setup.model("num_layers") * sum(times.values(), zero) for times in passes]
    loss_f = device.kernel(rows * (3 * vocab - 1), 7 * w * rows * vocab) + 4 * launch
    loss_b = device.kernel(5 * rows * vocab, 11 * w * batch * vocab) + 4 * launch  # its traffic lacks the steps
    heads = time[-3] + loss_f, time[-2] + time[-1] + loss_b
    copied = 2 * batch * size * w
    embedding = device.kernel(0.0, copied) + launch
    passes[0] |= {"linear_softmax": heads[0], "embedding": embedding + copied / HOST_BANDWIDTH}
    passes[1] |= {"linear_softmax": heads[1], "embedding": embedding}
    reductions = reduction_times(setup, device, sizes["ffn1"][2])
    ends = np.cumsum(np.broadcast_arrays(heads[1], layers[1], embedding), axis=0)
    backward = np.max(ends + np.stack(np.broadcast_arrays(*reductions.values())), axis=0)
    forward = passes[0]["embedding"] + layers[0] + heads[0]
    return {
        **{f"{name}_{end}": values for end, times in zip("fb", passes, strict=True) for name, values in times.items()},
        **reductions, "step.forward": forward, "step.backward": backward, "step.total": forward + backward,
    }  # fmt: skip


def reduction_times(setup: ChipSetup, device: Device, ffn: FloatArray) -> Values:
    """Reductions of gradients over data shards: of the head, a layer with its optimizer, and the embedding. [s]"""
    steps, size, vocab = (setup.model(key) for key in ("seq_len", "hidden_dim", "vocab_size"))

    def reduced(rows: FloatArray, columns: FloatArray) -> FloatArray:
        return device.ring("all_reduce", rows, columns, setup.split("dp"), "dp")

    update = device.optimizer(3 * size * size) + device.optimizer(size * size) + 2 * device.optimizer(ffn * size)
    layer = reduced(size, 3 * size) + reduced(size, size) + 2 * reduced(ffn, size) + update
    embedding = reduced(vocab, size) + reduced(steps, size)
    return {"reduction.head": reduced(size, vocab), "reduction.layer": layer, "reduction.embedding": embedding}
