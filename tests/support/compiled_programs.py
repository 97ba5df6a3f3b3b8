"""Small training steps that the installed JAX compiles when a test asks, and what XLA says of each.

`compiled(Step(...))` gives the text with XLA's cost and memory analysis. A step takes seconds to compile,
once in a session: share few of them. Where JAX is absent, importing this module skips the tests that do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

import pytest

from dse.adapters.xla import hlo

jax = pytest.importorskip("jax", reason="jax is not installed")
jnp, lax = jax.numpy, jax.lax
P = jax.sharding.PartitionSpec

#: Devices that this processor stands for, by conftest.py.
DEVICES = 8

MODEL = {"vocabulary": 256, "hidden": 64, "ffn": 160, "heads": 4}


@dataclass(frozen=True)
class Step:
    """A training step of a decoder; every choice may be made for itself."""

    mesh: tuple[tuple[str, int], ...] = ()  #: axes data, fsdp, tensor, outermost first; one device
    layers: int = 2
    scan: bool = True  #: over layers, in place of one after the other
    remat: bool = False
    dtype: str = "float32"  #: of activations; weights and states are float32
    optimizer: str = "adamw"  #: or "adam", "momentum", "muon", "sgd"
    clip: bool = False  #: gradients by their global norm
    accumulate: int = 1  #: micro-batches
    batch: int = 8  #: sequences
    sequence: int = 32  #: tokens
    donate: bool = True


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program, and what XLA says of it."""

    text: str  #: `compiled.as_text()`
    stablehlo: str  #: `lowered.as_text()`
    cost: Mapping[str, float]  #: "flops", "transcendentals", "bytes accessed", "bytes accessedout{}"
    memory: Any  #: argument_size_in_bytes, output_size_in_bytes, alias_size_in_bytes, temp_size_in_bytes, ...

    @cached_property
    def analysis(self) -> hlo.Analysis:
        """Analysis of the text."""
        return hlo.Analysis(hlo.parse(self.text, "compiled"))


def compiled_function(function: Callable[..., Any], *inputs: Any, **options: Any) -> CompiledProgram:
    """A function as XLA compiles it; `options` are those of `jax.jit`, inputs may be shapes alone."""
    lowered = jax.jit(function, **options).lower(*inputs)
    program = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})  # of machine code alone
    return CompiledProgram(program.as_text(), lowered.as_text(), program.cost_analysis(), program.memory_analysis())


@cache
def compiled(step: Step) -> CompiledProgram:
    """A training step of XLA's making, from shapes alone."""
    weights = jax.eval_shape(lambda: _weights(step))
    states = jax.eval_shape(lambda: _states(step, weights))
    tokens = jax.ShapeDtypeStruct((step.batch, step.sequence), jnp.int32)
    options: dict[str, Any] = {"donate_argnums": (0, 1)} if step.donate else {}
    if step.mesh:
        specs = _specs([name for name, _ in step.mesh])
        split = (specs, {key: specs if isinstance(states[key], dict) else P() for key in states})
        placed = jax.tree.map(lambda spec: _on(step, spec), split, is_leaf=lambda spec: isinstance(spec, P))
        options["in_shardings"] = (*placed, _on(step, _rows(step)))
        options["out_shardings"] = (*placed, _on(step, P()))

    def update(weights: Any, states: Any, tokens: Any) -> Any:
        return _step(step, weights, states, tokens)

    return compiled_function(update, weights, states, tokens, **options)


@cache
def _mesh(axes: tuple[tuple[str, int], ...]) -> Any:
    names, sizes = zip(*axes, strict=True)
    automatic = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(sizes, names, axis_types=automatic, devices=jax.devices()[: prod(sizes)])


def _on(step: Step, spec: Any) -> Any:
    return jax.NamedSharding(_mesh(step.mesh), spec)


def _rows(step: Step) -> Any:
    """Sequences split over all axes but that of tensor parallelism."""
    return P(tuple(name for name, _ in step.mesh if name != "tensor"))


def _in_rows(step: Step, stream: Any) -> Any:
    return lax.with_sharding_constraint(stream, _on(step, _rows(step))) if step.mesh else stream


def _specs(names: list[str]) -> dict[str, Any]:
    """Shardings of weights: along their hidden size over fsdp, and over tensor as in Megatron."""
    shard = "fsdp" if "fsdp" in names else None
    tensor = "tensor" if "tensor" in names else None
    column, row = P(None, shard, tensor), P(None, tensor, shard)
    return {
        "embedding": P(None, shard), "head": P(shard, tensor), "norm": P(None, None),
        "qkv": P(None, shard, None, tensor), "out": row, "up": column, "down": row,
    }  # fmt: skip


def _weights(step: Step) -> dict[str, Any]:
    hidden, ffn, layers = MODEL["hidden"], MODEL["ffn"], step.layers
    shapes = {
        "embedding": (MODEL["vocabulary"], hidden), "head": (hidden, MODEL["vocabulary"]),
        "norm": (layers, hidden), "qkv": (layers, hidden, 3, hidden), "out": (layers, hidden, hidden),
        "up": (layers, hidden, ffn), "down": (layers, ffn, hidden),
    }  # fmt: skip
    return {name: jnp.zeros(shape) for name, shape in shapes.items()}


def _states(step: Step, weights: Any) -> dict[str, Any]:
    moments = {"adamw": ("mu", "nu"), "adam": ("mu", "nu"), "momentum": ("mu",), "muon": ("mu",), "sgd": ()}[
        step.optimizer
    ]
    zeros = {name: jax.tree.map(lambda w: jnp.zeros(w.shape), weights) for name in moments}
    return {"count": jnp.zeros((), jnp.int32), **zeros}


def _layer(step: Step, stream: Any, layer: Any) -> Any:
    dtype, heads = step.dtype, MODEL["heads"]
    layer = jax.tree.map(lambda weight: weight.astype(dtype), layer)
    wide = stream.astype(jnp.float32)
    normed = (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(dtype) * layer["norm"]
    features = jnp.einsum("bsh,hcf->cbsf", normed, layer["qkv"])
    q, k, v = features.reshape(*features.shape[:-1], heads, -1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(stream.shape)
    stream = stream + mixed @ layer["out"]
    return stream + jax.nn.gelu(stream @ layer["up"]) @ layer["down"]


def _loss(step: Step, weights: Any, tokens: Any) -> Any:
    table = weights["embedding"].astype(step.dtype)
    if step.mesh:
        table = lax.with_sharding_constraint(table, _on(step, P()))
    stream = _in_rows(step, table[tokens])
    layers = {name: weights[name] for name in ("norm", "qkv", "out", "up", "down")}

    def one(stream: Any, layer: Any) -> tuple[Any, None]:
        return _in_rows(step, _layer(step, stream, layer)), None

    body = jax.checkpoint(one) if step.remat else one
    if step.scan:
        stream, _ = lax.scan(body, stream, layers)
    else:
        for index in range(step.layers):
            stream, _ = body(stream, {name: weight[index] for name, weight in layers.items()})
    logits = (stream @ weights["head"].astype(step.dtype)).astype(jnp.float32)
    told = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1)
    return -jnp.mean(told)


def _gradients(step: Step, weights: Any, tokens: Any) -> Any:
    if step.accumulate == 1:
        return jax.value_and_grad(lambda given: _loss(step, given, tokens))(weights)
    whole = replace(step, accumulate=1)

    def add(summed: Any, micro: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, summed, _gradients(whole, weights, micro)), None

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights))
    summed, _ = lax.scan(add, zeros, tokens.reshape(step.accumulate, -1, step.sequence))
    return jax.tree.map(lambda gradient: gradient / step.accumulate, summed)


def _orthogonal(momentum: Any) -> Any:
    """Five steps of Newton and Schulz, as Muon takes them, of each matrix in a stack."""
    stack = momentum.reshape(-1, momentum.shape[-2], momentum.shape[-1])
    near = stack / (jnp.sqrt(jnp.sum(stack**2, (-2, -1), keepdims=True)) + 1e-7)
    for _ in range(5):
        gram = near @ near.mT
        near = 3.4445 * near + (-4.775 * gram + 2.0315 * gram @ gram) @ near
    return near.reshape(momentum.shape)


def _step(step: Step, weights: Any, states: Any, tokens: Any) -> tuple[Any, Any, Any]:
    loss, gradients = _gradients(step, weights, tokens)
    if step.clip:
        norm = jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda gradient: gradient * jnp.minimum(1.0, 1.0 / norm), gradients)
    count = states["count"] + 1
    if step.optimizer == "sgd":
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), {"count": count}, loss
    decay = 0.1 if step.optimizer.startswith("adam") else 1.0
    mu = jax.tree.map(lambda m, g: 0.9 * m + decay * g, states["mu"], gradients)
    if not step.optimizer.startswith("adam"):
        made = _orthogonal if step.optimizer == "muon" else lambda momentum: momentum
        return jax.tree.map(lambda w, m: w - 0.01 * made(m), weights, mu), {"count": count, "mu": mu}, loss
    nu = jax.tree.map(lambda n, g: 0.999 * n + 0.001 * g**2, states["nu"], gradients)
    first, second = 1 - 0.9 ** count.astype(jnp.float32), 1 - 0.999 ** count.astype(jnp.float32)
    shrink = 1e-4 if step.optimizer == "adamw" else 0.0
    weights = jax.tree.map(
        lambda w, m, n: w - 0.01 * ((m / first) / (jnp.sqrt(n / second) + 1e-8) + shrink * w), weights, mu, nu
    )
    return weights, {"count": count, "mu": mu, "nu": nu}, loss
