"""Defaults of training software for measured runs that do not state a setting: one rule for all rows of a source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from costmodel.formats.framework_file import load_framework
from costmodel.formats.quantity import quantity
from dse.registry import all_columns
from dse.validation.expressed import NotExpressed, Value
from dse.validation.table import MeasuredRow


@dataclass(frozen=True, slots=True)
class Convention:
    """Meaning of rows of some source for settings that a row does not state, besides the defaults of its software."""

    framework: str  #: its software, a framework that ships
    columns: Mapping[str, Value] = field(default_factory=dict)  #: columns of designs, before the framework's
    model: Mapping[str, Any] = field(default_factory=dict)  #: fields of models made of a row's columns
    micro_batches: str = "one sequence"  #: where unstated: each of one sequence, or one for each stage
    layers_repeated: float = 1 / 2  #: share that selective recomputation of layers repeats [-]
    #: Whether stages of a pipeline share out the work of the head as well: fewer layers are on the last.
    balanced: bool = False
    head: float = 51200.0  #: vocabulary, where unstated [-]
    halved: bool = False  #: whether its model FLOPs count the causal half of attention

    @property
    def stated(self) -> dict[str, Value]:
        """Columns of designs that its rows have unless they say otherwise."""
        return {**given(self.framework)[0], **self.columns}

    @property
    def quantities(self) -> dict[str, float]:
        """Quantities of systems that its software decides. [SI units]"""
        return given(self.framework)[1]


@cache
def given(framework: str) -> tuple[dict[str, Value], dict[str, float]]:
    """Settings of a built-in framework for designs, and for systems; switches as 0 or 1.

    Without the imbalance of experts: published rows are of balance by force, or state it.
    """
    columns: dict[str, Value] = {}
    quantities: dict[str, float] = {}
    for name, value in load_framework(framework).said(None).items():
        number = float(value) if isinstance(value, bool | int | float) else value
        if name in all_columns():
            columns[name] = number
        else:
            quantities[name] = quantity(number).value if isinstance(number, str) else number
    return columns, quantities


#: Start of a data set's name, or a word of the column `framework` -> its conventions.
CONVENTIONS: Final[Mapping[str, Convention]] = {
    **dict.fromkeys(
        ("megatron_v1", "megatron_2020", "megatron_2021", "megatron_sc21", "megatron_lm_2021", "sc21"),
        Convention("megatron_lm_2021"),
    ),
    # Performance recipes reduce 16-bit gradients (perf_recipes/_common.py; since 2025-09) and keep
    # weights in 8 bits alone with tensorwise scales and MX formats (training/mixed_precision.py).
    "megatron_bridge": Convention(
        "megatron_core", columns={"gradient_reduction": "bf16", "fp8_parameters": 1}, halved=True
    ),
    "megatron_llama_example": Convention("megatron_core"),
    "megascale": Convention(
        "megatron_core", columns={"recompute": "selective", "tp_overlap": "gradients"}, head=64000.0
    ),
    "megatron_core": Convention("megatron_core"),
    "dgxc": Convention("megatron_core"),
    "mlperf": Convention("megatron_core"),
    "simumax": Convention("megatron_core_b200", columns={"cp_communication": "a2a"}),
    "nemo": Convention("megatron_core", halved=True),
    "llama3_405b": Convention(
        "megatron_core",
        # Chunks of one layer, 128 with the embedding and the head; gathered keys and values; ranks of a
        # pipeline inside of those of data parallelism (section 3.3); the kernels of its time.
        columns={
            "zero": 2,
            "vpp": 8,
            "cp_communication": "all_gather",
            "rank_order": "tp_cp_pp_dp",
            "attention": "flash_attention_2",
            "tp_overlap": "gradients",
        },
    ),
    "llm_foundry": Convention("pytorch_fsdp", model={"biases": False, "dropout": False}),
    "pytorch_fsdp": Convention("pytorch_fsdp"),
    "internevo": Convention("internevo"),
    # All of them by default; half would need 120 GB of 80. Its layers are compiled.
    "fms_fsdp": Convention("torchtitan", layers_repeated=1.0),
    "torchtitan": Convention(
        "torchtitan", columns={"cp_communication": "all_gather"}, micro_batches="one for each stage"
    ),
    # Its printed memory, 30 and 39 GB for 1F1B of the two smaller models, is that of scores in memory; the
    # vocabulary is GPT-2's.
    "zero_bubble": Convention("megatron_lm_2022", head=50304.0),
    "hf_ultrascale": Convention("nanotron", model={"tied_embeddings": True}, balanced=True),
    "nanotron": Convention("nanotron", balanced=True),
    "bloom": Convention("megatron_deepspeed"),
    "megatron_deepspeed": Convention("megatron_deepspeed"),
}
#: Of others: software of the time of their chips.
LATER_CHIPS: Final = r"H[128]00|H20\b|B[23]00|MI3|TPU|Gaudi|Trn|Trainium"
PLAIN, LATER = Convention("megatron_lm_2022"), Convention("megatron_core")


def convention_of(row: MeasuredRow) -> Convention:
    """The conventions of what a row names as its software, or of its data set, or of its chip's time.

    Raises `NotExpressed` if it names software of which nothing is known.
    """
    name = row.framework or row.dataset
    if row.framework and not any(row.framework.startswith(start) for start in CONVENTIONS):
        raise NotExpressed(f"a framework {row.framework}")
    usual = LATER if re.search(LATER_CHIPS, row.hw) else PLAIN
    return next((own for start, own in CONVENTIONS.items() if name.startswith(start)), usual)
