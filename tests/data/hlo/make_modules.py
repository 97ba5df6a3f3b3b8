"""Writes the HLO modules beside this file but gpt.hlo: small programs, compiled by XLA for eight devices.

    pip install jax && python tests/data/hlo/make_modules.py

The text depends on the version of XLA, and the tests do not: they ask for laws, and for counts that are
worked out from the program below.
"""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HERE = Path(__file__).parent
LAYERS, HIDDEN, FFN, HEADS, VOCAB, SEQ_LEN, BATCH = 2, 64, 256, 4, 512, 32, 16
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
COLUMNS, ROWS = PartitionSpec(None, "model"), PartitionSpec("model", None)
SPLIT = {"qkv": COLUMNS, "out": ROWS, "up": COLUMNS, "down": ROWS, "table": ROWS}


def main() -> None:
    """Compile and write every module."""
    write("transformer", train_step(), *training_inputs())
    write("loop", jax.jit(loop), jnp.ones((48, 48)), jnp.ones((8, 48)))
    weights = {"in": jnp.ones((16, 24)), "out": jnp.ones((24, 8))}
    rows = jnp.ones((4, 8, 16))
    write("trainer", jax.jit(trainer, donate_argnums=0), dict.fromkeys(("w", "m", "v"), weights), rows)


def write(name, function, *inputs) -> None:
    text = function.lower(*inputs).compile().as_text()
    (HERE / f"{name}.hlo").write_text(text + "\n")


def loop(weight, rows):
    """Seven products in a row, the compiler's loop around one."""
    return jax.lax.fori_loop(0, 7, lambda _, rows: jnp.tanh(rows @ weight), rows)


def trainer(state, batches):
    """AdamW over four micro-batches, recomputed, gradients clipped by their norm."""

    def error(weights, rows):
        for name in ("in", "out"):
            rows = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(weights[name], rows)
        return jnp.mean(rows**2)

    def added(total, rows):
        return jax.tree.map(jnp.add, total, jax.grad(error)(state["w"], rows)), None

    gradient, _ = jax.lax.scan(added, jax.tree.map(jnp.zeros_like, state["w"]), batches)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / norm), gradient)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradient)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], gradient)
    weights = jax.tree.map(lambda w, m, v: w - 0.01 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w), state["w"], mean, square)
    return {"w": weights, "m": mean, "v": square}


def parameters():
    """Weights of a transformer with one table for words and head."""
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) * 0.02

    return {
        "table": matrix(VOCAB, HIDDEN),
        "layers": [
            {
                "gain": jnp.ones(HIDDEN),
                "qkv": matrix(HIDDEN, 3 * HIDDEN),
                "out": matrix(HIDDEN, HIDDEN),
                "up": matrix(HIDDEN, FFN),
                "down": matrix(FFN, HIDDEN),
            }
            for _ in range(LAYERS)
        ],
    }


def layer(weights, hidden):
    """Attention and MLP, each after a norm and around a residual."""
    normed = hidden * jax.lax.rsqrt(jnp.mean(hidden**2, -1, keepdims=True) + 1e-6) * weights["gain"]
    query, key, value = jnp.split((normed @ weights["qkv"]).reshape(*normed.shape[:2], HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    scores = jnp.where(jnp.tril(jnp.ones((SEQ_LEN, SEQ_LEN), bool)), scores, -1e9)
    context = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    hidden = hidden + context.reshape(hidden.shape) @ weights["out"]
    return hidden + jax.nn.gelu(hidden @ weights["up"]) @ weights["down"]


def loss(weights, words):
    """Mean negative log-likelihood of the next word."""
    hidden = weights["table"][words]
    for block in weights["layers"]:
        hidden = jax.checkpoint(layer)(block, hidden)
    likelihood = jax.nn.log_softmax(hidden @ weights["table"].T)
    return -jnp.mean(jnp.take_along_axis(likelihood[:, :-1], words[:, 1:, None], -1))


def train_step():
    """Adam's step, state overwritten in place."""

    def step(state, words):
        gradient = jax.grad(loss)(state["weights"], words)
        count = state["count"] + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["square"], gradient)
        weights = jax.tree.map(lambda w, m, v: w - 0.01 * m / (jnp.sqrt(v) + 1e-8), state["weights"], mean, square)
        return {"weights": weights, "count": count, "mean": mean, "square": square}

    return jax.jit(step, donate_argnums=0, out_shardings=sharding_of(state()))


def state():
    """Weights and both moments."""
    weights = parameters()
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return {"weights": weights, "count": jnp.zeros((), jnp.int32), "mean": zeros, "square": zeros}


def sharding_of(tree):
    """Matrices by their names, all else replicated."""

    def spec(path, _):
        names = [getattr(key, "key", None) for key in path]
        return NamedSharding(MESH, next((SPLIT[n] for n in names if n in SPLIT), PartitionSpec()))

    return jax.tree_util.tree_map_with_path(spec, tree)


def training_inputs():
    """State and words as the mesh holds them."""
    words = jnp.zeros((BATCH, SEQ_LEN), jnp.int32)
    placed = jax.device_put(words, NamedSharding(MESH, PartitionSpec("data")))
    return jax.device_put(state(), sharding_of(state())), placed


if __name__ == "__main__":
    main()
