"""Modules of a layer that may be computed again in the backward pass, as rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from costmodel.training.blocks import STREAM
from costmodel.training.kernel_kind import Kernel
from costmodel.training.kinds import kept_mask

#: What a module that is recomputed keeps. A checkpoint keeps its input, and all of it runs again. An output
#: that is discarded is made again for those that read it, from inputs that are kept anyway.
Recomputation = Literal["checkpoint", "output discarded"]


@dataclass(frozen=True, slots=True)
class RecomputeModule:
    """A part of a layer that is recomputed for itself, one of Megatron-LM's `recompute_modules`."""

    name: str
    has: Callable[[Kernel], bool]  #: whether a row of a block is of it
    kind: Recomputation
    pieces: tuple[str, ...] = ()  #: pieces of other rows' work that are of it too
    selective: bool = False  #: whether "selective" recomputation is of it

    @property
    def column(self) -> str:
        """The switch of a design that asks for it."""
        return f"recompute_{self.name}"

    def frees(self, start: Kernel, end: Kernel) -> bool:
        """True if the input that a row keeps of the row before it is dropped; masks of dropouts are kept."""
        if end.kind.kept.input is kept_mask or not self.has(start):
            return False
        return self.kind == "output discarded" or self.has(end)

    def frees_inside(self, kernel: Kernel) -> bool:
        """True if intermediate results of a row are dropped: scores of attention, of experts."""
        return self.kind == "checkpoint" and self.has(kernel)


def _by_kind(name: str) -> Callable[[Kernel], bool]:
    return lambda kernel: name in kernel.kind.recompute_modules


def _by_features(*features: str) -> Callable[[Kernel], bool]:
    return lambda kernel: kernel.reads in features or kernel.makes in features


def _is_layer_norm(kernel: Kernel) -> bool:
    return _by_kind("layernorm")(kernel) and kernel.inputs == (STREAM,) and kernel.reads == "hidden"


def _is_of_experts(kernel: Kernel) -> bool:
    return _by_kind("moe")(kernel) or _by_features("expert_in")(kernel)


#: In the order of a design's columns. What collectives run again follows from the rows: products gather what
#: they read and reduce what they make, cores exchange keys and values, dispatch and combine exchange tokens.
MODULES: Final = (
    RecomputeModule("core_attn", _by_kind("core_attn"), "checkpoint", selective=True),
    RecomputeModule("layernorm", _is_layer_norm, "output discarded"),
    RecomputeModule(
        "mla_up_proj", lambda kernel: kernel.makes in ("queries", "keys_values"), "output discarded", pieces=("rotary",)
    ),
    RecomputeModule("moe_act", _by_kind("moe_act"), "output discarded"),
    RecomputeModule("mlp", _by_features("up", "ffn"), "checkpoint"),
    RecomputeModule("shared_experts", _by_features("shared_up", "shared_ffn", "unit"), "checkpoint"),
    RecomputeModule("moe", _is_of_experts, "checkpoint"),
)


def recompute_groups(kernels: Iterable[Kernel]) -> dict[tuple[RecomputeModule, ...], list[Kernel]]:
    """Modules -> rows that are of all of them and of no other: they run again once, if any of them does."""
    groups: dict[tuple[RecomputeModule, ...], list[Kernel]] = {}
    for kernel in kernels:
        modules = tuple(module for module in MODULES if module.has(kernel))
        if modules:
            groups.setdefault(modules, []).append(kernel)
    return groups
