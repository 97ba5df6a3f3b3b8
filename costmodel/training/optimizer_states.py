"""States of parameters: what optimizers keep, and what of it replicas share out: ZeRO [Rajbhandari2020]_."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from costmodel.columns import FloatArray

#: Words of `moments`, and bytes of one of them. [B]
MOMENTS: Final[Mapping[str, float]] = {"fp32": 4.0, "bf16": 2.0}

FULL_BYTES: Final = 4.0  #: of an fp32 number [B]
#: That a master weight needs less beside a 16-bit weight, which holds its upper half. [B]
REMAINDER_BYTES: Final = 2.0


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """States that an optimizer keeps of each parameter, beside a master weight in full precision."""

    moments: int  #: running sums of gradients, or of their squares
    #: Steps of Newton-Schulz iteration that make a matrix's update orthogonal; 0: each parameter by itself.
    newton_schulz_steps: int = 0

    def state_bytes(self, usual: FloatArray | float, moment_bytes: FloatArray, remainders: FloatArray) -> FloatArray:
        """States of one parameter. [B]

        `usual` is a master weight and two moments of full precision [B]; `moment_bytes` are those of one moment,
        (points,) [B]; `remainders` is 1 where of master weights only what weights lack is kept, (points,). [-]

        Beside 2 of a weight and 4 of its gradient, replicas share out 12 B, 8 with 16-bit moments, 2 less
        with remainders, as in Megatron-LM's precision-aware optimizer; Muon has one moment less.
        """
        fewer = (2 - self.moments) * FULL_BYTES
        narrower = self.moments * (FULL_BYTES - moment_bytes)
        return usual - fewer - narrower - remainders * REMAINDER_BYTES

    def accesses(self, moment_bytes: FloatArray) -> FloatArray:
        """Reads and writes of one parameter's update, in full-precision numbers. [-]

        The gradient is read; the weight and each moment are read and written.
        """
        return 3 + 2 * self.moments * moment_bytes / FULL_BYTES


#: Word of `optimizer` -> what it is. Muon [Jordan2024]_ is for the matrices of layers; word tables, the head,
#: norms and biases have Adam beside it.
OPTIMIZERS: Final[Mapping[str, OptimizerRule]] = {
    "adam": OptimizerRule(moments=2),
    "muon": OptimizerRule(moments=1, newton_schulz_steps=5),
}
ADAM: Final = OPTIMIZERS["adam"]
MUON: Final = OPTIMIZERS["muon"]

State = Literal["weights", "gradients", "optimizer"]
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of a rank's weights or gradients over replicas of them."""

    collective: str
    of: State
    every: Literal["step", "micro_batch"]  #: how often it runs
    behind: Literal["forward", "backward"]  #: the pass over the layers that may hide it
    again: bool = False  #: left out where what the forward pass gathered is kept
    #: Replicas that take part: all; or those that share out one copy of the states, or have the same share.
    over: Literal["whole", "shards", "copies"] = "shards"


@dataclass(frozen=True, slots=True)
class ZeroStage:
    """A stage of sharded data parallelism: states that replicas share out, and exchanges for it."""

    sharded: tuple[State, ...]  #: over the replicas; each of them has all of the others
    exchanges: tuple[Exchange, ...]


_GATHERED: Final = Exchange("all_gather", "weights", "step", "forward")
_SCATTERED: Final = Exchange("reduce_scatter", "gradients", "micro_batch", "backward")
_FOR_PASSES: Final = (
    Exchange("all_gather", "weights", "micro_batch", "forward"),
    Exchange("all_gather", "weights", "micro_batch", "backward", again=True),
)
_SUMMED: Final = Exchange("all_reduce", "gradients", "step", "backward", over="copies")

#: Stage -> what it is. Gradients that are all-reduced; or reduce-scattered before and weights gathered after
#: each replica's update of its share, Megatron-LM's distributed optimizer; or reduce-scattered for each
#: micro-batch; or weights gathered too, for each pass of each micro-batch: PyTorch's fully sharded data
#: parallelism. In a pipeline it accumulates whole gradients and reduces them once, the last row (torchtitan). Where
#: sharded states have copies, their gradients are added up once in a step.
ZERO: Final = (
    ZeroStage((), (Exchange("all_reduce", "gradients", "step", "backward", over="whole"),)),
    ZeroStage(("optimizer",), (Exchange("reduce_scatter", "gradients", "step", "backward"), _SUMMED, _GATHERED)),
    ZeroStage(("optimizer", "gradients"), (_SCATTERED, _SUMMED, _GATHERED)),
    ZeroStage(("optimizer", "gradients", "weights"), (_SCATTERED, _SUMMED, *_FOR_PASSES)),
    ZeroStage(
        ("optimizer", "weights"), (Exchange("reduce_scatter", "gradients", "step", "backward"), _SUMMED, *_FOR_PASSES)
    ),
)
