"""Calls of libraries have the products of the instructions that they stand for; others are named."""

import json
from typing import Any

import pytest

from costmodel import DseError
from dse.adapters.xla import hlo
from dse.adapters.xla.work.matrix_products import Product, call_flops, is_known, products_of
from tests.support.cases import cases
from tests.support.hlo_texts import figures, program


def call(target: str, result: str, *operands: str, more: str = "", config: object = None) -> hlo.Instruction:
    """A custom call of some arrays."""
    lines = [f"  a{index} = {shape} parameter({index})" for index, shape in enumerate(operands)]
    names = ", ".join(f"a{index}" for index in range(len(operands)))
    settings = "" if config is None else f", backend_config={json.dumps(config)}"
    lines.append(f'  ROOT c = {result} custom-call({names}), custom_call_target="{target}"{more}{settings}')
    return hlo.parse(program("\n".join(lines)), "text").entry.root


def sizes(instruction: hlo.Instruction) -> list[tuple[int, int, int, int]]:
    """Batch, m, n and k of each product."""
    return [(product.batch, product.m, product.n, product.k) for product in products_of(instruction)]


def onednn(a: str, b: str, result: str, **settings: bool) -> hlo.Instruction:
    return call("__onednn$matmul", result, a, b, config={"onednn_matmul_config": settings})


def test_onednn_multiplies_the_last_two_dimensions():
    assert sizes(onednn("bf16[5,7]", "bf16[7,3]", "(bf16[5,3], u8[64])", transpose_a=False)) == [(1, 5, 3, 7)]
    assert sizes(onednn("f32[7,5]", "f32[3,7]", "f32[5,3]", transpose_a=True, transpose_b=True)) == [(1, 5, 3, 7)]
    assert sizes(onednn("f32[2,4,5,7]", "f32[2,4,7,3]", "f32[2,4,5,3]")) == [(8, 5, 3, 7)]
    assert sizes(onednn("f32[2,4,5,7]", "f32[7,3]", "f32[2,4,5,3]")) == [(1, 40, 3, 7)]


DOT = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}


@pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__triton_gemm"])
def test_cublas_by_its_dimensions(target):
    config = {"gemm_backend_config": {"dot_dimension_numbers": DOT, "beta": 1, "epilogue": "BIAS_RELU"}}
    actual = call(target, "(f16[5,3], s8[1024])", "f16[5,7]", "f16[7,3]", "f16[5,3]", "f16[3]", config=config)
    (product,) = products_of(actual)
    assert (product.m, product.n, product.k, product.beta, product.flops) == (5, 3, 7, True, 2 * 5 * 3 * 7)


WINDOW = ", window={size=3x3 pad=1_1x1_1 stride=2x2}, dim_labels=bf01_oi01->bf01"
DATA, KERNEL, RESULT = "f32[2,6,8,8]", "f32[10,6,3,3]", "f32[2,10,4,4]"
CONVOLUTIONS = {
    "Forward": (RESULT, DATA, KERNEL),
    "BiasActivationForward": (RESULT, DATA, KERNEL, "f32[10]", RESULT),
    "BackwardInput": (DATA, RESULT, KERNEL),
    "BackwardFilter": (KERNEL, DATA, RESULT),
}


@pytest.mark.parametrize("way", CONVOLUTIONS)
def test_cudnn_convolves_as_often_forwards_as_backwards(way):
    """Each gradient multiplies what the forward pass did, in other roles."""
    result, *operands = CONVOLUTIONS[way]
    (product,) = products_of(call(f"__cudnn$conv{way}", f"({result}, u8[0])", *operands, more=WINDOW))
    given = f"  x = {DATA} parameter(0)\n  w = {KERNEL} parameter(1)\n"
    forward = program(f"{given}  ROOT y = {RESULT} convolution(x, w){WINDOW}")
    assert product.flops == figures(forward)["gemm.flops_total"]
    assert product.output.dims == hlo.parse(program(f"  a = {result} parameter(0)"), "t").entry.root.shape.dims
    assert product.m * product.n * product.batch * product.k >= product.flops / 2


def attention(way: str, *operands: str, **settings: object) -> list[Product]:
    scores = {"intermediate_tensor_shape": {"dimensions": ["2", "4", "128", "96"]}, "is_flash_attention": True}
    config = {"cudnn_fmha_backend_config": {**scores, **settings}}
    return products_of(call(f"__cudnn$fmhaSoftmax{way}", f"({operands[0]}, u8[0])", *operands, config=config))


def test_fused_attention_is_its_products():
    """Scores and their use; backwards five, one of which makes the scores anew. A causal mask halves them."""
    query, key = "bf16[2,128,4,16]", "bf16[2,96,4,16]"
    product = 2 * 2 * 4 * 128 * 96 * 16
    forward, backward = attention("", query, key, key), attention("Backward", query, key, key, query, query)
    assert [gemm.flops for gemm in forward] == [product] * 2
    assert [gemm.flops for gemm in backward] == [product] * 5
    kept = sum(min(row + 1, 96) for row in range(128))
    causal = attention("", query, key, key, mask_type="CAUSAL")
    assert [gemm.flops for gemm in causal] == [2 * 2 * 4 * 16 * kept] * 2
    shared = attention("", query, "bf16[2,96,1,16]", "bf16[2,96,1,16]")  # one group of keys for four heads
    assert [gemm.flops for gemm in shared] == [product] * 2


def test_an_estimate_that_the_program_carries_is_taken():
    """As JAX's own kernels have it; settings in forms of other libraries are nobody's business."""
    config = {"custom_call_config": {"body": "x", "cost_estimate": {"flops": "640", "bytes_accessed": "10"}}}
    assert call_flops(call("tpu_custom_call", "f32[8]", "f32[8]", config=config)) == 640
    estimated = call("__gpu$xla.gpu.triton", "f32[8]", "f32[8]", more=', backend_config={grid_x = 1 : i32, name = "k"}')
    assert call_flops(estimated) is None
    assert not is_known(estimated)


WRONG: dict[str, tuple[str, dict[str, Any]]] = cases(__file__, "WRONG")


@pytest.mark.parametrize("message", WRONG)
def test_a_library_that_is_known_must_tell_its_dimensions(message):
    target, config = WRONG[message]
    with pytest.raises(DseError, match=message):
        products_of(call(target, "f32[5,4]", "f32[5,7]", "f32[7,3]", "f32[7,3]", config=config))
