"""DeepFlow's memory of one device, by part of the model and by kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray
from costmodel.profiles.deepflow.configuration import PARTS, Configuration
from costmodel.workload.split import Split

#: What the bytes of a part are for.
PURPOSES = ("weight", "activation", "pointwise")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes by (part, purpose); (points,) columns."""

    bytes: dict[tuple[str, str], FloatArray]

    def of(self, part: str) -> FloatArray:
        """A part, whatever for. [B]"""
        return self.bytes[part, "weight"] + self.bytes[part, "activation"] + self.bytes[part, "pointwise"]

    def to(self, purpose: str) -> FloatArray:
        """A purpose, whichever part. [B]"""
        hidden_and_softmax = self.bytes["hidden", purpose] + self.bytes["softmax", purpose]
        return hidden_and_softmax + self.bytes["projection", purpose] + self.bytes["embedding", purpose]

    @property
    def total(self) -> FloatArray:
        """Everything; rule MF1. [B]"""
        return self.of("embedding") + self.of("hidden") + self.of("softmax") + self.of("projection")


def footprint(config: Configuration, *, sharded: bool) -> Footprint:
    """Bytes of a data shard, of the whole model or of one model shard.

    Parameters
    ----------
    config : Configuration
        Model and split; (points,) columns.
    sharded : bool
        Whether the model is split, or a device is taken to hold all of it.

    Returns
    -------
    footprint : Footprint
        (points,) columns. [B]

    Notes
    -----
    The softmax counts projection_size inputs although its products have hidden_size (`part_sizes`).
    Shares are true fractions. Weights of the embedding are never shared out.
    """
    whole = Split(np.zeros(1), np.ones(1), np.ones(1))
    split = {part: config.split(part) if sharded else whole for part in PARTS}
    layers = config.num_layers / (config.hlp if sharded else 1.0)
    steps, vocab = config.seq_len, config.vocab_size

    def share(part: str) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Sequences, pieces of the inner dimension and of the columns."""
        own = split[part]
        return config.shard_batch / own.rows, np.where(own.is_rc, 1.0, own.dim1), own.columns

    batch, inner, columns = share("hidden")
    inputs = 2 * config.hidden_size / inner
    hidden = (
        (inputs + 1) * (config.gate_size / columns) * layers,
        batch * inputs * steps * layers,
        9 * layers * steps * (batch * inputs / 2),
    )
    batch, inner, columns = share("softmax")
    logits = batch * steps * (vocab / columns)
    softmax = (
        (config.projection_size / inner + 1) * (vocab / columns),
        logits,
        2 * logits + batch * steps,
    )
    batch, inner, columns = share("projection")
    projected = batch * steps * (config.projection_size / columns)
    projection = (
        (config.hidden_size / inner + 1) * (config.projection_size / columns),
        projected,
        projected,
    )
    own = split["embedding"]
    batch = config.shard_batch / np.where(own.is_cr, own.dim1, own.dim1 * own.dim2)
    embedding = (vocab * config.hidden_size, batch * steps * config.hidden_size, 0.0 * batch)
    elements = {"embedding": embedding, "hidden": hidden, "softmax": softmax, "projection": projection}
    return Footprint(
        {
            (part, purpose): count * config.element_bytes
            for part, counts in elements.items()
            for purpose, count in zip(PURPOSES, counts, strict=True)
        }
    )
