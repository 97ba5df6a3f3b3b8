"""What training software does where a measured run does not say: one rule for all rows of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dse.validation.expressed import Value
from dse.validation.table import MeasuredRow

#: The attention of PyTorch and of frameworks on it until 2024.
FLASH_2: Final = "flash_attention_2"


@dataclass(frozen=True, slots=True)
class Framework:
    """What some software does where a row does not say."""

    model: Mapping[str, Any] = field(default_factory=dict)  #: fields of models made of a row's columns
    columns: Mapping[str, Value] = field(default_factory=dict)  #: columns of designs
    sequence_parallel: bool = True  #: with tp
    attention: str = "fused"
    micro_batches: str = "one sequence"  #: where unstated: each of one sequence, or one for each stage
    layers_repeated: float = 1 / 2  #: share that selective recomputation of layers repeats [-]
    head: float = 51200.0  #: vocabulary, where unstated [-]
    halved: bool = False  #: whether its model FLOPs count the causal half of attention


#: Megatron-LM's distributed optimizer, whose exchanges its recipes overlap.
SHARDED: Final[Mapping[str, Value]] = {"zero": 1, "overlap_grad_reduce": 1, "overlap_param_gather": 1}
FULLY_SHARDED: Final[Mapping[str, Value]] = {"zero": 3, "overlap_grad_reduce": 1}
MEGATRON: Final = Framework(columns=SHARDED)
BRIDGE: Final = Framework(columns=SHARDED, halved=True)

#: Start of a data set's name, or a word of the column `framework` -> its software.
FRAMEWORKS: Final[Mapping[str, Framework]] = {
    "megatron_bridge": BRIDGE,
    "megatron_llama_example": MEGATRON,
    "megascale": Framework(columns={**SHARDED, "recompute": "selective"}, head=64000.0),
    "dgxc": MEGATRON,
    "mlperf": MEGATRON,
    # Its guide for B200 keeps every overlap off, and exchanges heads for tokens.
    "simumax": Framework(columns={"zero": 1, "cp_communication": "a2a"}),
    "nemo": BRIDGE,
    "llama3_405b": Framework(
        # Chunks of one layer, 128 with the embedding and the head; gathered keys and values; ranks of a
        # pipeline inside of those of data parallelism (section 3.3); the kernels of its time.
        columns={
            "zero": 2,
            "overlap_grad_reduce": 1,
            "vpp": 8,
            "cp_communication": "all_gather",
            "rank_order": "tp_cp_pp_dp",
        },
        attention=FLASH_2,
    ),
    "llm_foundry": Framework(
        attention=FLASH_2, columns=FULLY_SHARDED, model={"biases": False, "dropout": False}
    ),
    "internevo": Framework(attention=FLASH_2, columns={"overlap_grad_reduce": 1}),
    # All of them by default; half would need 120 GB of 80.
    "fms_fsdp": Framework(attention=FLASH_2, columns=FULLY_SHARDED, layers_repeated=1.0),
    "torchtitan": Framework(
        attention=FLASH_2,
        columns={**FULLY_SHARDED, "cp_communication": "all_gather"},
        micro_batches="one for each stage",
    ),
    # Its printed memory, 30 and 39 GB for 1F1B of the two smaller models, is that of scores in memory; the
    # vocabulary is GPT-2's.
    "zero_bubble": Framework(attention="unfused", head=50304.0, sequence_parallel=False),
    "hf_ultrascale": Framework(
        attention=FLASH_2, model={"tied_embeddings": True}, columns={"overlap_grad_reduce": 1}
    ),
}
PLAIN: Final = Framework(sequence_parallel=False, attention="unfused")


def framework_of(row: MeasuredRow) -> Framework:
    """The software that a row names, or that of its data set."""
    name = row.framework or row.dataset
    return next((framework for start, framework in FRAMEWORKS.items() if name.startswith(start)), PLAIN)
