"""Rules that hold in every space: what a schedule, a group of ranks or a switch can be beside the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from costmodel.training.design import DesignPoints
from dse.spaces.formulas.expressions import Expression


@dataclass(frozen=True, slots=True)
class UsualRule:
    """A condition, and the columns of which one must be open for it to matter."""

    name: str
    formula: str
    of: frozenset[str] = frozenset()

    def written_with(self, known: Collection[str]) -> str:
        """The formula with defaults in the place of columns that a space does not name.

        >>> UsualRule("r", "pp % 2 == 0 or schedule != zb_v", frozenset()).written_with({"schedule"})
        '1 % 2 == 0 or schedule != zb_v'
        >>> UsualRule("r", "pp % 2 == 0 or schedule != zb_v", frozenset()).written_with({"pp"})
        'pp % 2 == 0 or 1 != 5'
        """
        defaults, words = _defaults(), _words()

        def compared(found: re.Match[str]) -> str:
            column, sign, word = found.groups()
            if column in known or word not in words.get(column, ()):
                return found[0]
            return f"{defaults[column]:g} {sign} {words[column].index(word)}"

        def default(found: re.Match[str]) -> str:
            name = found[0]
            return f"{defaults[name]:g}" if name in defaults and name not in known else name

        return re.sub(r"\b[A-Za-z_]\w*", default, re.sub(r"\b(\w+) (==|!=) (\w+)", compared, self.formula))

    def expression(self, known: Collection[str]) -> Expression | None:
        """The formula as a space has it that knows some names; nothing where its model lacks one of them."""
        formula = Expression.parse(self.written_with(known))
        words = {word for column in _words().values() for word in column}
        return formula if formula.names <= {*known, *words} else None


@cache
def _defaults() -> dict[str, float]:
    """Column, or alias of one -> its default."""
    columns = {name: values.item() for name, values in DesignPoints().columns().items()}
    return {**columns, **dict.fromkeys(DesignPoints.aliases, 0.0)}


@cache
def _words() -> dict[str, Sequence[str]]:
    """Column -> its words, in the order of their codes."""
    return {name: domain.words for name, domain in DesignPoints.declared().items() if domain.words}


def rule(name: str, formula: str, *of: str) -> UsualRule:
    """A rule that matters where one of some columns is open."""
    return UsualRule(name, formula, frozenset(of))


_M: Final = "gradient_accumulation_steps"

_V_SHAPED: Final = "(schedule == zb_v or schedule == dualpipe_v)"
_OVERLAPPING: Final = "(schedule == dualpipe or schedule == dualpipe_v)"
_FIRST_AND_LAST: Final = "(first_stage_layers + last_stage_layers)"
_TOLD: Final = "((first_stage_layers > 0) + (last_stage_layers > 0))"
_COUNTED: Final = "(count_embedding + count_loss)"

_CUT_BY: Final = "(num_attention_heads / tp % {0} == 0 and num_query_groups / tp % {0} == 0)"
_SHARDED: Final = "zero > 0 or distributed_optimizer > 0"
_SHARED_SEQUENCES: Final = "sequence_parallel > 0 or sharding == megatron_sp"
_SIXTEEN_BITS: Final = "precision == bf16 or precision == fp16"
_WIDE: Final = (
    "hidden_size / tp % {0} == 0 and ffn_hidden_size / tp % {0} == 0 and moe_ffn_hidden_size / etp % {0} == 0"
)

#: Formulas as space files have them.
USUAL_RULES: Final = (
    rule(
        "schedules_of_one_chunk",
        f"vpp == 1 or schedule == 1f1b or schedule == breadth_first or {_V_SHAPED}",
        "schedule",
    ),
    rule("schedules_of_two_chunks", f"vpp == 2 or not {_V_SHAPED}", "schedule"),
    rule("schedules_of_two_halves", f"(pp % 2 == 0 and {_M} % 2 == 0) or schedule != dualpipe", "schedule"),
    rule("overlapping_schedules_are_filled", f"{_M} >= 2 * pp or not {_OVERLAPPING}", "schedule"),
    rule(
        "groups_fill_the_pipeline",
        f"vpp == 1 or group_size == 0 or (group_size >= pp and group_size <= {_M}"
        f" and ({_M} % group_size == 0 or {_M} % group_size >= pp))",
        "group_size",
    ),
    rule(
        "layers_of_told_stages",
        f"{_FIRST_AND_LAST} == 0 or ({_FIRST_AND_LAST} < num_layers and pp > {_TOLD}"
        f" and (num_layers - {_FIRST_AND_LAST}) % ((pp - {_TOLD}) * vpp) == 0"
        f" and {_COUNTED} == 0)",
        "first_stage_layers",
        "last_stage_layers",
    ),
    rule(
        "counted_layers_fill_chunks",
        f"{_COUNTED} == 0 or (num_layers + {_COUNTED}) % (pp * vpp) == 0",
        "count_embedding",
        "count_loss",
    ),
    rule("cp_cuts_sequences_in_halves", "cp == 1 or seq_len % (2 * cp) == 0", "cp"),
    rule("tp_cuts_shared_sequences", f"not ({_SHARED_SEQUENCES}) or seq_len / cp % tp == 0", "cp"),
    rule("a2a_cuts_heads", f"cp_communication != a2a or {_CUT_BY.format('cp')}", "cp_communication", "cp"),
    rule(
        "inner_a2a_cuts_heads",
        f"cp_communication != a2a_p2p or (cp % cp_a2a == 0 and {_CUT_BY.format('cp_a2a')})",
        "cp_communication",
        "cp_a2a",
        "cp",
    ),
    rule("inner_a2a_is_of_a2a_p2p", "cp_a2a == 1 or cp_communication == a2a_p2p", "cp_a2a"),
    rule("experts_divide", "num_experts % ep == 0", "ep"),
    rule("experts_fill_a_stage", "tp * cp * dp % (ep * etp) == 0", "ep", "etp"),
    rule("etp_divides_experts", "moe_ffn_hidden_size % etp == 0", "etp"),
    rule("tp_beside_experts_cuts_sequences", f"tp == 1 or {_SHARED_SEQUENCES}", "ep", "etp"),
    rule(
        "capacity_is_of_all_to_all", "capacity_factor == 0 or dispatcher == all_to_all", "capacity_factor", "dispatcher"
    ),
    rule("shards_have_replicas", "dp * cp % shard_replicas == 0", "shard_replicas"),
    rule("replicas_are_of_shards", f"shard_replicas == 1 or {_SHARDED}", "shard_replicas", "zero"),
    rule(
        "gathers_overlap_where_weights_are_gathered", f"overlap_param_gather > 0 or {_SHARDED}", "overlap_param_gather"
    ),
    rule("overlap_tp_needs_sequence_parallel", f"overlap_tp == 0 or (tp >= 2 and ({_SHARED_SEQUENCES}))", "overlap_tp"),
    rule(
        "overlap_ep_has_a_micro_batch_beside",
        f"overlap_ep == 0 or (ep > 1 and (vpp > 1 or pp == 1 or {_OVERLAPPING}))",
        "overlap_ep",
    ),
    rule("overlap_ep_keeps_activations", "overlap_ep == 0 or (recompute != full and recompute_moe == 0)", "overlap_ep"),
    rule(
        "experts_overlap_once", "overlap_ep == 0 or overlap_shared_expert == 0", "overlap_ep", "overlap_shared_expert"
    ),
    rule(
        "shared_expert_is_recomputed_or_overlapped",
        "recompute_shared_experts == 0 or overlap_shared_expert == 0",
        "recompute_shared_experts",
        "overlap_shared_expert",
    ),
    rule("chip_has_fp8", f"{_SIXTEEN_BITS} or fp8_speedup > 0", "precision"),
    rule("chip_has_mx", "precision != mxfp8 or mx_speedup > 0", "precision"),
    rule("chip_has_fp4", "precision != nvfp4 or fp4_speedup > 0", "precision"),
    rule("widths_fill_blocks", f"{_SIXTEEN_BITS} or ({_WIDE.format(16)})", "precision"),
    rule(
        "widths_fill_small_blocks", f"(precision != mxfp8 and precision != nvfp4) or ({_WIDE.format(32)})", "precision"
    ),
)
