"""DeepFlow's memory of one device, by part of the model and by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray
from costmodel.profiles.deepflow.configuration import Configuration
from costmodel.training.lstm import Split

#: What the bytes of a part are for.
PURPOSES = ("weight", "activation", "pointwise")
Elements = tuple[FloatArray, ...]


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
    Shares are true fractions. Weights of the embedding are never shared out.
    """
    whole = Split(np.zeros(1), np.ones(1), np.ones(1))
    parts = {
        part: elements(config, config.split(part) if sharded else whole)
        for part, elements in ELEMENTS.items()
    }
    stages = config.hlp if sharded else np.ones(1)
    parts["hidden"] = tuple(count / stages for count in parts["hidden"])
    return Footprint(
        {
            (part, purpose): count * config.element_bytes
            for part, counts in parts.items()
            for purpose, count in zip(PURPOSES, counts, strict=True)
        }
    )


def shard_sizes(config: Configuration, split: Split) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sequences of one shard; pieces of the inner dimension, and of the columns. [-]"""
    return config.shard_batch / split.rows, np.where(split.is_rc, 1.0, split.dim1), split.columns


def hidden_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the cells, of all layers and steps. [elements]"""
    batch, inner, columns = shard_sizes(config, split)
    inputs, steps = 2 * config.hidden_size / inner, config.seq_len * config.num_layers
    weights = (inputs + 1) * (config.gate_size / columns) * config.num_layers
    return weights, batch * inputs * steps, 9 * steps * (batch * inputs / 2)


def softmax_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the softmax, which counts projection_size inputs here, unlike its products. [elements]"""
    batch, inner, columns = shard_sizes(config, split)
    words, rows = config.vocab_size / columns, batch * config.seq_len
    return (config.projection_size / inner + 1) * words, rows * words, 2 * rows * words + rows


def projection_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the projection. [elements]"""
    batch, inner, columns = shard_sizes(config, split)
    outputs = config.projection_size / columns
    projected = batch * config.seq_len * outputs
    return (config.hidden_size / inner + 1) * outputs, projected, projected


def embedding_elements(config: Configuration, split: Split) -> Elements:
    """Elements of the embedding. [elements]"""
    batch = config.shard_batch / np.where(split.is_cr, split.dim1, split.dim1 * split.dim2)
    size = config.hidden_size
    return config.vocab_size * size, batch * config.seq_len * size, np.zeros_like(batch)


#: Part -> elements by purpose.
ELEMENTS: Mapping[str, Callable[[Configuration, Split], Elements]] = {
    "embedding": embedding_elements,
    "hidden": hidden_elements,
    "softmax": softmax_elements,
    "projection": projection_elements,
}
