"""Flavors of torchtitan that are no built-in models, converters of formats, and layers of each stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.framework_file import Framework
from costmodel.formats.model_file import load_model
from costmodel.training.model import ModelShape
from dse.adapters.torchtitan.python_calls import Call

#: Name and flavor there -> built-in model, and what differs: `model_args` of torchtitan's models.
VARIANTS: Final[Mapping[tuple[str, str], tuple[str, Mapping[str, Any]]]] = {
    **{
        ("qwen3", flavor): (
            "qwen3_8b",
            {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
             "ffn_hidden_size": ffn, "tied_embeddings": tied},
        )
        for flavor, layers, hidden, heads, ffn, tied in (
            ("0.6B", 28.0, 1024.0, 16.0, 3072.0, True),
            ("1.7B", 28.0, 2048.0, 16.0, 6144.0, True),
            ("4B", 36.0, 2560.0, 32.0, 9728.0, True),
            ("14B", 40.0, 5120.0, 40.0, 17408.0, False),
        )
    },
}  # fmt: skip
#: Endings of flavors that choose a kernel of attention, not another model.
_KERNELS: Final = re.compile(r"_(flex|varlen|sdpa|flex_attn|varlen_attn)$")


def flavors(framework: Framework) -> list[tuple[str, str]]:
    """Names and flavors of torchtitan that are models here."""
    named = [(names[0], names[1]) for names in framework.models.values()]
    kinds = {name for name, _ in named}
    return [*named, *(names for names in VARIANTS if names[0] in kinds)]


def flavored(framework: Framework, name: str, flavor: str) -> ModelShape | None:
    """The model of a name and flavor of torchtitan; None where there is none here."""
    for wanted in ((name, flavor), (name, _KERNELS.sub("", flavor))):
        shipped = next((model_name for model_name, known in framework.models.items() if tuple(known) == wanted), "")
        beside = {names: VARIANTS[names] for names in flavors(framework) if names in VARIANTS}
        shipped, changes = beside.get(wanted, (shipped, {}))
        if shipped:
            model = load_model(shipped)
            assert isinstance(model, ModelShape)
            title = f"{name} {flavor}"
            named: dict[str, Any] = {"name": re.sub(r"\W", "_", title).lower(), "title": title}
            return replace(model, **changes, **(named if changes else {}))
    return None


def layers_of_chunks(parallel: Call, layers: int, stages: int, *, several: bool) -> list[int]:
    """Layers of each chunk of a pipeline, by the layers of a chunk, or the schedule.

    Raises `DseError` if they do not share out over the stages.
    """
    first, last = (int(parallel.literal(f"pipeline_parallel_{end}_stage_less_layers", 1)) for end in ("first", "last"))
    chunk_layers = parallel.literal("pipeline_parallel_layers_per_stage", None)
    total = layers + first + last
    chunks = -(-total // int(chunk_layers)) if chunk_layers else stages * (2 if several else 1)
    sizes = stage_sizes(chunks, layers, first, last)
    if len(sizes) % stages:
        raise DseError(f"{len(sizes)} chunks: expected a multiple of pipeline_parallel_degree = {stages}")
    return sizes


def stage_sizes(chunks: int, layers: int, first: int, last: int) -> list[int]:
    """Layers of each chunk, where embedding and output count as so many: `generate_llm_fqn_per_model_part`.

    Raises `DseError` if a chunk would have none.

    >>> stage_sizes(4, 48, 1, 1)
    [12, 13, 12, 11]
    """
    even, more = divmod(layers + first + last, max(chunks, 1))
    if not max(first, last, 1) <= even or chunks < 1:
        raise DseError(f"{layers} layers: too few for {chunks} chunks")
    sizes = [even + (chunk < more) for chunk in range(chunks)]
    sizes[0] -= first
    sizes[-1] -= last
    return sizes
