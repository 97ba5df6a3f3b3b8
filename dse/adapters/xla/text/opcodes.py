"""XLA's instructions by name, and what its cost analysis counts for those that work element by element."""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: One flop per element of the output.
ARITHMETIC: Final = _words(
    """abs add and bitcast-convert ceil clamp compare complex convert count-leading-zeros divide floor
    imag is-finite maximum minimum mulhi multiply negate not or popcnt real reduce-precision remainder
    round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic shift-right-logical sign
    stochastic-convert subtract xor"""
)
#: One transcendental, and no flop, per element of the output.
TRANSCENDENTAL: Final = _words(
    """acos acosh asin asinh atan atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log
    log-plus-one logistic power rng rng-bit-generator rsqrt sine sinh sqrt tan tanh"""
)
#: Messages between devices.
COLLECTIVES: Final = _words(
    """all-gather all-reduce all-to-all collective-broadcast collective-permute collective-reduce
    ragged-all-to-all reduce-scatter send"""
)
#: Values under another name: no kernel, and each element is seen through.
VIEWS: Final = _words("add-dependency bitcast domain get-tuple-element opt-barrier tuple")
#: No kernel, and nothing that a kernel waits for.
SOURCES: Final = _words("after-all constant parameter partition-id replica-id")
#: Run other computations, whose kernels take their place.
CALLS: Final = _words("async-start call conditional while")
#: Kernels of their own: what moves data, reduces, multiplies matrices, or is opaque.
OTHERS: Final = _words(
    """async-done async-update batch-norm-grad batch-norm-inference batch-norm-training broadcast cholesky
    concatenate convolution copy custom-call dot dynamic-reshape dynamic-slice dynamic-update-slice fft fusion
    gather get-dimension-size infeed iota map outfeed pad ragged-dot recv recv-done
    reduce reduce-window reshape reverse rng-get-and-update-state scaled-dot scan scatter select-and-scatter
    send-done set-dimension-size shuffle slice sort topk transpose triangular-solve"""
)
KNOWN: Final = ARITHMETIC | TRANSCENDENTAL | COLLECTIVES | VIEWS | SOURCES | CALLS | OTHERS
#: Any instruction may be split in two, or three, around what runs beside it.
_ASYNC_PARTS: Final = ("-start", "-update", "-done")


def known(opcode: str) -> bool:
    """True if XLA has an instruction of this name.

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
