"""Numerics of a model, such as its norm and positions: times and bytes do not depend on them, exports do."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

#: Methods that balance the tokens of experts, in words: a loss, or a bias that is added to scores.
BALANCING: Final = {"aux_loss": "an auxiliary loss", "bias": "a bias of the router"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """Constants of a model's functions, as its published configuration has them. [-]

    Launch files carry them to the framework; where a framework has no setting for one, it says so.
    """

    rotary_base: float = 10_000.0  #: theta of rotary positions
    local_rotary_base: float = 0.0  #: of layers with a window; 0: the same
    rotary_percent: float = 1.0  #: share of a head that is rotated
    rotary_interleaved: bool = False  #: pairs of neighbours are rotated, not halves
    no_rope_every: float = 0.0  #: every so many layers have no positions; 0: none
    rotary_scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    rotary_scaling_factor: float = 1.0
    original_positions: float = 0.0  #: positions before scaling
    rotary_low_freq_factor: float = 1.0  #: of Llama 3's scaling
    rotary_high_freq_factor: float = 4.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_mscale: float = 1.0
    yarn_mscale_all_dim: float = 0.0
    norm_epsilon: float = 1e-5
    zero_centered_norms: bool = False  #: weights of norms are kept as their distance from 1
    qk_l2_norm: bool = False  #: queries and keys are divided by their length, without weights
    gate: Literal["swiglu", "quick_geglu", "geglu"] = "swiglu"  #: of gated MLPs
    glu_clamp: float = 0.0  #: both halves of a gated MLP stay within; 0: no limit
    glu_offset: float = 0.0  #: added to the half that is not gated
    embedding_scale: bool = False  #: embeddings are multiplied by the root of the hidden size
    attention_scale: float = 0.0  #: scores are divided by the root of it; 0: of the size of a head
    attention_softcap: float = 0.0  #: scores stay within; 0: no limit
    logit_softcap: float = 0.0
    router_score: Literal["softmax", "sigmoid"] = "softmax"
    router_pre_softmax: bool = False  #: shares of all experts, of which the chosen are not normalized
    router_scaling: float = 1.0  #: factor of what experts add
    router_bias_update_rate: float = 0.0  #: of a bias that balances experts without a loss
    router_aux_loss: float = 0.0  #: coefficient of the loss that balances experts
    #: tokens that this loss counts together: a micro-batch, each sequence, or the global batch
    router_balance: Literal["aux_loss", "seq_aux_loss", "global_aux_loss"] = "aux_loss"
    mtp_loss_scale: float = 0.0  #: weight of losses of multi-token prediction; 0: the framework's

    @property
    def balancing(self) -> str:
        """Method that balances the tokens of experts, a word of `BALANCING`."""
        return "bias" if self.router_bias_update_rate else "aux_loss"

    def said(self) -> dict[str, Any]:
        """Fields that are not as usual, as a model file has them."""
        return {
            member.name: plain(value)
            for member in fields(self)
            if (value := getattr(self, member.name)) != member.default
        }


def plain(value: Any) -> Any:
    """A number as files write it: whole ones without a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: Of a model whose file says nothing.
USUAL = Numerics()
