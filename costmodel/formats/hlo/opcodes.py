"""XLA's instructions by name, and what its cost analysis counts for those that work element by element."""

from __future__ import annotations

from typing import Final

#: One flop per element of the output.
ARITHMETIC: Final = frozenset(
    """abs add and bitcast-convert ceil clamp clz compare complex convert count-leading-zeros divide floor imag
    is-finite maximum minimum multiply negate not or popcnt real reduce-precision remainder
    round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic shift-right-logical sign
    stochastic-convert subtract xor""".split()
)

#: One transcendental, and no flop, per element of the output.
TRANSCENDENTAL: Final = frozenset(
    """acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log
    log-plus-one logistic power rng rng-bit-generator rsqrt sine sinh sqrt tan tanh""".split()
)

#: Messages between devices.
COLLECTIVES: Final = frozenset(
    """all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all
    reduce-scatter send""".split()
)

#: Values under another name: no kernel, and each element is seen through.
VIEWS: Final = frozenset("add-dependency bitcast domain get-tuple-element opt-barrier tuple".split())

#: No kernel, and nothing that a kernel waits for.
SOURCES: Final = frozenset("after-all constant parameter partition-id replica-id".split())

#: Run other computations, whose kernels take their place.
CALLS: Final = frozenset("async-start call conditional while".split())

#: Kernels of their own: what moves data, reduces, multiplies matrices, or is opaque.
OTHERS: Final = frozenset(
    """async-done async-update batch-norm-grad batch-norm-inference batch-norm-training broadcast cholesky
    concatenate convolution copy custom-call dot dynamic-reshape dynamic-slice dynamic-update-slice fft fusion
    gather get-dimension-size infeed iota map outfeed pad ragged-dot recv recv-done
    reduce reduce-window reshape reverse rng-get-and-update-state scan scatter select-and-scatter send-done
    set-dimension-size slice sort topk transpose triangular-solve""".split()
)

KNOWN: Final = ARITHMETIC | TRANSCENDENTAL | COLLECTIVES | VIEWS | SOURCES | CALLS | OTHERS

#: Any instruction may be split in two, or three, around what runs beside it.
_ASYNC_PARTS: Final = ("-start", "-update", "-done")


def known(opcode: str) -> bool:
    """Whether XLA has an instruction of this name.

    >>> known("all-reduce-start"), known("allreduce")
    (True, False)
    """
    return opcode in KNOWN or parts(opcode)[0] in KNOWN


def parts(opcode: str) -> tuple[str, str]:
    """An instruction's own name, and which part of an asynchronous pair it is.

    >>> parts("all-gather-done"), parts("dot"), parts("send-done")
    (('all-gather', 'done'), ('dot', ''), ('send', 'done'))
    """
    for ending in _ASYNC_PARTS:
        if opcode.endswith(ending):
            return opcode.removesuffix(ending), ending[1:]
    return opcode, ""
