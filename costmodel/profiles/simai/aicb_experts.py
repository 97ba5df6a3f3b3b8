"""The rows of a layer's experts, as the releases of AICB's generator write them [AICB]_.

Tokens are sent to the ranks of their experts, gathered over the tensor-parallel group, and back.
"""

from __future__ import annotations

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.profiles.simai.aicb_rows import NOTHING
from costmodel.profiles.simai.aicb_run import GeneratorRun, Release
from costmodel.profiles.simai.rows import Pass, Row

#: Bytes of what DeepSeek's models send to experts, 8 bits and a scale in 32 for every 128, over 16-bit ones.
NARROW = (1 + 4 / 128) / 2

#: Forward pass and gradient of the input.
Both = tuple[Pass, Pass]


def expert_rows(run: GeneratorRun, time: FloatArray, release: Release) -> list[Row]:
    """Those of layers that have been timed; `time` is of all experts of a rank, forward. [s]"""
    split, size = run.tp > 1, run.activation_bytes
    spread, sent = run.ep > 1, np.floor(size * run.experts_per_token / run.tp)
    if release == "2025-09":
        routed = Pass(time, "all_gather", routing_bytes(run), happens=split | spread)
        return rows_of(run, [(routed, Pass(time)), *exchanges(run, happens=(split, spread), sent=sent)])
    routed = Pass(time, "all_gather", 2 * run.micro_batch_size * run.seq_len * run.num_experts, happens=split)
    near = Pass(NOTHING, "all_to_all", np.floor(size / run.tp), happens=split)
    middle = exchanges(run, happens=(split, spread), sent=sent)
    return rows_of(run, [(routed, routed), (near, near), *middle, (near, near)])


def untimed_expert_rows(run: GeneratorRun, release: Release) -> list[Row]:
    """Those of layers that nobody has timed: all collectives are there, over groups of one too."""
    size, always = run.activation_bytes, np.ones_like(run.tp) > 0
    sent = np.floor(size * run.experts_per_token / run.tp)
    if release == "2025-09":
        routed = Pass(NOTHING, "all_gather", routing_bytes(run))
        middle = exchanges(run, happens=(always, always), sent=sent)
        return rows_of(run, [(routed, Pass(NOTHING)), *middle])
    routed = Pass(NOTHING, "all_gather", 2 * run.seq_len * run.num_experts)
    near = Pass(NOTHING, "all_to_all", np.floor(size / run.tp))
    far = Pass(NOTHING, "all_to_all", sent, "ep")
    part, whole = (Pass(NOTHING, "all_gather", each) for each in (sent, size * run.experts_per_token))
    scattered = Pass(NOTHING, "reduce_scatter", sent)
    one_way = [(routed, routed), (near, near), (far, far), (part, whole)]
    return rows_of(run, [*one_way, (scattered, part), (far, far), (near, near)])


def exchanges(run: GeneratorRun, *, happens: tuple[BoolArray, BoolArray], sent: FloatArray) -> list[Both]:
    """To the experts, over the tensor-parallel group there and back, and from the experts.

    `happens` says whether ranks exchange anything over the two groups, tensor-parallel and expert-parallel.
    """
    split, spread = happens
    narrow = np.where(run.is_latent, np.floor(NARROW * sent), sent)
    there, back = (Pass(NOTHING, "all_to_all", each, "ep", spread) for each in (narrow, sent))
    whole = run.activation_bytes * run.experts_per_token
    return [(there, back), *within_experts(whole, split), (back, back)]


def within_experts(whole: FloatArray, happens: BoolArray) -> list[Both]:
    """What ranks that share out experts gather and scatter."""
    gathered, scattered = (
        Pass(NOTHING, kind, whole, happens=happens) for kind in ("all_gather", "reduce_scatter")
    )
    return [(gathered, scattered), (scattered, gathered)]


def routing_bytes(run: GeneratorRun) -> FloatArray:
    """How many tokens each rank has for each expert, as all ranks learn. [B]"""
    return 2 * run.ep * run.num_experts * run.tp


def rows_of(run: GeneratorRun, pairs: list[Both]) -> list[Row]:
    """Rows of experts from their passes."""
    present = (run.num_experts > 0) & (run.sequence_parallel > 0)
    return [Row("mlp_moelayer", "layer", *pair, Pass(NOTHING), present) for pair in pairs]
