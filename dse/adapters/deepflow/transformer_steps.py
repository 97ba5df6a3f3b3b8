"""Transformers by the rules of DeepFlow's present generation: all tokens of a training run, and one training step.

Both have the six products of a layer, with the batch among their rows: no grouped queries and no gate, and all of a
sequence attends to all of it. The time of all tokens has nothing else. A step has pointwise kernels, embedding, head
and reductions; these begin when gradients are ready and overlap each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.formats.input_files import data_beside
from costmodel.lstm import Split
from dse.adapters.deepflow.chips import Values
from dse.adapters.deepflow.lstm_steps import HOST_BANDWIDTH, Device, split_products
from dse.adapters.deepflow.setups import ChipSetup

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
