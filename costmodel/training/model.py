"""What a model is: its dimensions, and the parameter and FLOP counts that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from costmodel.errors import DseError
from costmodel.training.blocks import DECODER, Block, Layer


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A decoder-only transformer: dimensions in elements, tokens and counts. [-]

    GPT-3 has ``layer_norm``, biases, learned positions and tied embeddings; Llama has ``rms_norm``, a
    gated MLP, rotary positions, grouped queries and none of the rest.

    Raises
    ------
    DseError
        If a dimension is not positive, or heads and query groups do not divide.
    """

    #: Fields that count something, and so must be whole and positive.
    dimensions: ClassVar[tuple[str, ...]] = (
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "head_size",
        "ffn_hidden_size",
        "seq_len",
        "vocab_size",
    )

    name: str = "model"
    num_layers: float
    hidden_size: float
    num_attention_heads: float
    num_query_groups: float = 0.0  #: 0 means one per head
    head_size: float = 0.0  #: 0 means hidden_size / num_attention_heads
    ffn_hidden_size: float = 0.0  #: 0 means 4 * hidden_size
    seq_len: float = 2048.0
    vocab_size: float = 51200.0
    gated_mlp: bool = False
    normalization: Literal["layer_norm", "rms_norm"] = "layer_norm"
    position_embedding: Literal["learned", "rotary"] = "learned"
    biases: bool = True
    dropout: bool = True
    tied_embeddings: bool = True
    #: Kinds of layers and how many of each, in order; () means `DECODER` alone. They sum to `num_layers`.
    layers: tuple[tuple[Layer, float], ...] = ()

    def __post_init__(self) -> None:
        defaults = {
            "num_query_groups": self.num_attention_heads,
            "head_size": self.hidden_size / self.num_attention_heads if self.num_attention_heads else 0.0,
            "ffn_hidden_size": 4 * self.hidden_size,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        check_dimensions(self)
        if self.num_attention_heads % self.num_query_groups:
            raise DseError(
                f"model {self.name}: num_query_groups: {self.num_query_groups:g} does not divide "
                f"num_attention_heads, {self.num_attention_heads:g}"
            )
        if sum(count for _, count in self.sequence) != self.num_layers:
            raise DseError(
                f"model {self.name}: layers: expected {self.num_layers:g} in all, as num_layers says"
            )

    @property
    def sequence(self) -> tuple[tuple[Layer, float], ...]:
        """Kinds of layers and how many of each, in order."""
        return self.layers or ((DECODER, self.num_layers),)

    @property
    def kinds(self) -> dict[Layer, float]:
        """The kinds of its layers, and how many it has of each in all."""
        counts = dict.fromkeys((layer for layer, _ in self.sequence), 0.0)
        for layer, count in self.sequence:
            counts[layer] += count
        return counts

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of its layers, each once."""
        return tuple(dict.fromkeys(block for layer in self.kinds for block in layer.blocks))

    @property
    def features(self) -> Mapping[str, float]:
        """Features of a token in the activations that kernels read and make, by word. [elements]"""
        return {
            "hidden": self.hidden_size,
            "qkv": self.attention_size + 2 * self.key_value_size,
            "attention": self.attention_size,
            "up": (2 if self.gated_mlp else 1) * self.ffn_hidden_size,
            "ffn": self.ffn_hidden_size,
            "vocabulary": self.vocab_size,
        }

    @property
    def attention_size(self) -> float:
        """Width of all query heads together. [elements]"""
        return self.num_attention_heads * self.head_size

    @property
    def key_value_size(self) -> float:
        """Width of all key heads together, or of all value heads. [elements]"""
        return self.num_query_groups * self.head_size

    @property
    def norm_parameters(self) -> float:
        """Parameters of one normalization: a gain, and in layer norm a bias. [-]"""
        return (2 if self.normalization == "layer_norm" else 1) * self.hidden_size

    def matrix_parameters(self, layer: Layer) -> float:
        """Weights of a layer that multiply activations. [-]"""
        sizes = self.features
        return sum(sizes[k.reads] * sizes[k.makes] for k in layer.kernels if k.kind == "product")

    def layer_parameters(self, layer: Layer) -> float:
        """All parameters of a layer: weights, biases, norms; 12 h^2 + 13 h for GPT [Narayanan2021]_. [-]"""
        products = [kernel for kernel in layer.kernels if kernel.kind == "product"]
        biases = sum(self.features[kernel.makes] for kernel in products) if self.biases else 0.0
        norms = sum(kernel.kind == "norm" for kernel in layer.kernels)
        return self.matrix_parameters(layer) + biases + norms * self.norm_parameters

    @property
    def embedding_parameters(self) -> float:
        """Word table, and position table where positions are learned. [-]"""
        positions = self.seq_len if self.position_embedding == "learned" else 0.0
        return (self.vocab_size + positions) * self.hidden_size

    @property
    def head_parameters(self) -> float:
        """Output matrix where it is not the word table. [-]"""
        return 0.0 if self.tied_embeddings else self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> float:
        """Every parameter once, the final normalization included. [-]"""
        layers = sum(count * self.layer_parameters(layer) for layer, count in self.sequence)
        return layers + self.embedding_parameters + self.head_parameters + self.norm_parameters

    @property
    def forward_flops_per_sequence(self) -> float:
        """Multiply-adds of the forward pass of one sequence, each counted as two. [FLOP]

        Matrices, full (not causally halved) attention, and the logits: for GPT this is
        24 s l h^2 (1 + s/(6h) + V/(12 l h)), a third of the model FLOPs per sequence of [Narayanan2021]_.
        """
        layers = 0.0
        for layer, count in self.sequence:
            cores = sum(kernel.kind == "attention" for kernel in layer.kernels)
            attention = cores * 4 * self.seq_len**2 * self.attention_size
            layers += count * (2 * self.seq_len * self.matrix_parameters(layer) + attention)
        return layers + 2 * self.seq_len * self.hidden_size * self.vocab_size


def check_dimensions(model: ModelShape | LstmShape) -> None:
    """Refuse dimensions that are not whole and positive.

    Raises
    ------
    DseError
        For the first one.
    """
    for name in model.dimensions:
        value = getattr(model, name)
        if not (value >= 1 and float(value).is_integer()):
            raise DseError(f"model {model.name}: {name}: expected a whole number from 1, got {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmShape:
    """An LSTM language model: embedding, layers of cells, projection, softmax over a vocabulary. [-]

    Raises
    ------
    DseError
        If a dimension is not positive.
    """

    #: Fields that count something, and so must be whole and positive.
    dimensions: ClassVar[tuple[str, ...]] = (
        "num_layers",
        "hidden_size",
        "projection_size",
        "vocab_size",
        "gates",
        "seq_len",
    )

    name: str = "model"
    num_layers: float
    hidden_size: float
    projection_size: float
    vocab_size: float
    gates: float = 4.0
    seq_len: float = 20.0

    def __post_init__(self) -> None:
        check_dimensions(self)

    @property
    def gate_size(self) -> float:
        """Outputs of a cell's product, all gates together. [elements]"""
        return self.gates * self.hidden_size

    @property
    def parameters_per_layer(self) -> float:
        """The matrix from input and state to gates, and a bias per gate. [-]"""
        return (2 * self.hidden_size + 1) * self.gate_size

    @property
    def projection_parameters(self) -> float:
        """The matrix into the projection, with a bias. [-]"""
        return (self.hidden_size + 1) * self.projection_size

    @property
    def embedding_parameters(self) -> float:
        """Word table. [-]"""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> float:
        """The matrix into the vocabulary, with a bias. [-]"""
        return (self.projection_size + 1) * self.vocab_size

    @property
    def num_parameters(self) -> float:
        """Every parameter once. [-]"""
        cells = self.num_layers * self.parameters_per_layer
        return self.embedding_parameters + cells + self.projection_parameters + self.head_parameters

    @property
    def forward_flops_per_sequence(self) -> float:
        """Multiply-adds of the forward pass of one sequence, each counted as two. [FLOP]"""
        cell = self.num_layers * 2 * self.hidden_size * self.gate_size
        outside = self.projection_size * (self.hidden_size + self.vocab_size)
        return 2 * self.seq_len * (cell + outside)


#: What any model is described by.
AnyModel = ModelShape | LstmShape
