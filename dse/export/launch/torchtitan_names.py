"""Words of torchtitan 0.2.2: models, schedules, number formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Model that ships here -> its name and flavor there.
FLAVORS: Final[Mapping[str, tuple[str, str]]] = {
    "llama3_8b": ("llama3", "8B"),
    "llama3_70b": ("llama3", "70B"),
    "llama3_405b": ("llama3", "405B"),
    "qwen3_8b": ("qwen3", "8B"),
    "qwen3_32b": ("qwen3", "32B"),
    "qwen3_30b_a3b": ("qwen3", "30B-A3B"),
    "qwen3_235b_a22b": ("qwen3", "235B-A22B"),
    "deepseek_v2_lite": ("deepseek_v3", "16B"),
    "deepseek_v2": ("deepseek_v3", "236B"),
    "deepseek_v3": ("deepseek_v3", "671B"),
    "llama_4_scout": ("llama4", "17bx16e"),
    "llama_4_maverick": ("llama4", "17bx128e"),
    "gpt_oss_20b": ("gpt_oss", "20b"),
    "gpt_oss_120b": ("gpt_oss", "120b"),
}
#: Word of `schedule` -> PyTorch's, of one chunk and of several.
SCHEDULES: Final[Mapping[str, tuple[str, str]]] = {
    "gpipe": ("GPipe", ""),
    "1f1b": ("1F1B", "Interleaved1F1B"),
    "breadth_first": ("GPipe", "LoopedBFS"),
    "zb_v": ("", "ZBVZeroBubble"),
    "dualpipe_v": ("", "DualPipeV"),
}
ROTATIONS: Final = {"all_gather": "allgather", "p2p": "alltoall"}
DISPATCHERS: Final = {"all_to_all": "standard", "two_hop": "deepep"}
CONVERTERS: Final = {
    "bf16": [],
    "fp8_tensorwise": ["quantize.linear.float8"],
    "mxfp8": ["quantize.linear.mx"],
}
RECOMPUTE: Final = {"none": "none", "selective": "selective", "full": "full"}
