"""Names of what a step is made of, as people read them: items of the cost model as paths of a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.training.blocks import Layer
from costmodel.training.model import ModelShape
from dse.spaces.space import Space

#: Names from the top of a tree to a leaf.
Path = tuple[str, ...]

#: Kind of kernel -> what a layer that has one is called, where the model has other layers too.
LAYER_WORDS: Final = {"experts": "expert", "delta_net": "delta-net", "window": "window"}
#: Kinds of kernels, the first name of their items within a part.
KERNEL_KINDS: Final = ("product", "pointwise", "attention")


@dataclass(frozen=True, slots=True)
class Portion:
    """One quantity of one thing."""

    path: Path
    quantity: str  #: such as "time", "flops", "bytes"
    value: float  #: in SI units
    kind: str = ""  #: of a kernel: one of `KERNEL_KINDS`


def label(column: str) -> str:
    """A breakdown column as the first name of a path.

    >>> label("tp_communication_time"), label("weights_memory")
    ('tp communication', 'weights')
    """
    return column.rpartition("_")[0].replace("_", " ")


def leaves(space: Space, items: Mapping[str, FloatArray]) -> Iterator[Portion]:
    """Items of one design as leaves; items of (1,) arrays. [s], [B], [FLOP], [-]"""
    parts, blocks = part_names(space), block_names(space)
    for item, values in items.items():
        path, _, quantity = item.rpartition(":")
        column, *names = path.split("/")
        top = label(column) if column.endswith(("_time", "_memory")) else column
        kind = next((name for name in names if name in KERNEL_KINDS), "")
        part = parts.get(names[0], names[0]) if names else ""
        if kind:
            named = kernel_names(kind, names[names.index(kind) + 1 :], blocks, column)
            below = [part, *named]
        elif names[2:3] == ["tp"] or names[2:3] == ["cp"]:
            below = [part, names[1], names[-1], *names[3:-1]]
        else:
            below = [part, *names[1:]]
        yield Portion((top, *[name for name in below if name]), quantity, float(np.ravel(values)[0]), kind)


def kernel_names(kind: str, names: list[str], blocks: Mapping[str, str], column: str) -> list[str]:
    """Block, kernel, what of it this is, and the pass where a direction has several."""
    kernel, name, of_pass = names
    kernel = kernel or name
    if kind == "pointwise" and of_pass == "weight_gradient" and name == kernel and kernel in blocks:
        name = "accumulation"
    shown = [blocks.get(kernel, ""), kernel.replace("_", " ")]
    if name != kernel:
        shown.append(name.replace("_", " "))
    if column == "backward_time" and of_pass != "backward":
        shown.append(of_pass.replace("_", " "))
    return shown


def kernel_of(path: Path, blocks: Collection[str]) -> Path:
    """Part, block and kernel that a leaf of a pass belongs to, whatever of the kernel it is.

    >>> kernel_of(("backward", "layers", "mlp", "mlp up", "weight gradient"), {"attention", "mlp"})
    ('layers', 'mlp', 'mlp up')
    """
    return path[1:4] if path[2:3] and path[2] in blocks else path[1:3]


def part_names(space: Space) -> dict[str, str]:
    """Parts of a model, as the cost model numbers them -> their names."""
    if not isinstance(space.model, ModelShape):
        return {}
    kinds = [*space.model.kinds]
    if len(kinds) == 1:
        return {"layer 0": "layers", "mtp": "multi-token prediction"}
    names = [layer_name(layer) for layer in kinds]
    numbered = [
        f"{name} {names[:place].count(name) + 1}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]
    return {f"layer {n}": name for n, name in enumerate(numbered)} | {"mtp": "multi-token prediction"}


def layer_name(layer: Layer) -> str:
    """A kind of layer, by what it has that plain ones have not."""
    kinds = {kernel.kind for kernel in layer.kernels}
    words = [word for kind, word in LAYER_WORDS.items() if kind in kinds]
    return f"{' '.join(words) or 'plain'} layers"


def block_names(space: Space) -> dict[str, str]:
    """Kernel -> block that it is in."""
    if not isinstance(space.model, ModelShape):
        return {}
    return {k.name: block.name for block in space.model.blocks for k in block.kernels}
