"""What an LSTM language model is: its dimensions, and the parameter and FLOP counts that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costmodel.training.dimensions import check_dimensions


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
    counts: ClassVar[tuple[str, ...]] = ()

    name: str = "model"
    title: str = ""  #: as it is published
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
