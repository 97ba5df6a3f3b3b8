"""Messages, training, memory and bounds of time, told of programs that XLA compiled here from small sources."""

from math import prod

import pytest

from costmodel import load_system
from dse.adapters.xla import hlo
from dse.adapters.xla.steps.overlap import program_times
from dse.adapters.xla.steps.program import program, program_step
from dse.adapters.xla.summary.training_figures import model_figures, training_figures
from dse.adapters.xla.training.messages import Collective
from tests.adapters.xla.test_hlo_overlap import bounds_hold
from tests.support.compiled_programs import P, Step, compiled, compiled_function, jax, jnp, lax
from tests.support.hlo_texts import analysed, without_metadata

pytestmark = pytest.mark.slow  # JAX compiles each program

TENSOR_OUTERMOST = Step(mesh=(("tensor", 4), ("data", 2)), optimizer="sgd", layers=3)
SHARDED = Step(mesh=(("fsdp", 4),), optimizer="adam", clip=True, remat=True, dtype="bfloat16", layers=3)
MUON = Step(mesh=(("fsdp", 4),), optimizer="muon")
ACCUMULATING = Step(mesh=(("data", 2),), optimizer="momentum", accumulate=4, batch=16, donate=False)
UNROLLED = Step(scan=False, optimizer="momentum", donate=False)


def purposes(messages: dict[int, Collective]) -> set[tuple[str, str]]:
    """Purposes of messages of more than numbers, with their kinds."""
    pairs = {(purpose, message.name) for message in messages.values() for purpose, _ in message.payloads}
    return {message for message in pairs if message[0] not in ("scalars", "input", "unknown")}


def told(step: Step) -> dict[str, object]:
    """Figures of how a compiled step trains."""
    return {name.removeprefix("model."): value for name, value in training_figures(compiled(step).analysis).items()}


def test_a_tensor_axis_that_lies_outermost_is_none_of_the_data():
    analysis = compiled(TENSOR_OUTERMOST).analysis
    assert purposes(analysis.collectives) == {
        ("tensor parallel", "all-reduce"), ("data parallel", "all-reduce"),
    }  # fmt: skip
    strides = {collective.purpose: collective.placement.stride for collective in analysis.collectives.values()}
    assert (strides["tensor parallel"], strides["data parallel"]) == (2, 1)
    assert analysis.axes == {"tp": 4, "dp": 2}
    assert model_figures(analysis)["model.global_batch"] == TENSOR_OUTERMOST.batch


def test_weights_are_gathered_and_gradients_scattered():
    """XLA sums on processors and cuts out each device's part; norms, which all devices hold, are summed."""
    assert purposes(compiled(SHARDED).analysis.collectives) == {
        ("fully sharded", "all-gather"), ("fully sharded", "all-reduce"), ("data parallel", "all-reduce"),
    }  # fmt: skip


def test_products_of_an_optimizer_send_no_activations():
    """Newton and Schulz multiply momentum that lies in pieces; the one axis of the mesh is that of data."""
    analysis = compiled(MUON).analysis
    assert {purpose for purpose, _ in purposes(analysis.collectives)} <= {"fully sharded", "data parallel"}
    assert analysis.axes == {"dp": 4}
    assert told(MUON)["optimizer"] == "muon"
    assert {weight.argument for weight in analysis.state.weights} == {str(index) for index in range(7)}


def test_purposes_need_no_names():
    for step in (TENSOR_OUTERMOST, SHARDED):
        text = compiled(step).text
        stripped = analysed(without_metadata(text)).collectives
        assert [message.payloads for message in stripped.values()] == [
            message.payloads for message in analysed(text).collectives.values()
        ]


TRAINS = {
    "a scan over layers": (TENSOR_OUTERMOST, ("no", "no", "no", "SGD")),
    "a scan over layers that are computed again": (SHARDED, ("yes", "no", "yes", "Adam")),
    "micro-batches, and nothing donated": (ACCUMULATING, ("no", "yes", "no", "momentum")),
}


@pytest.mark.parametrize("kind", TRAINS)
def test_how_a_step_trains(kind):
    step, expected = TRAINS[kind]
    actual = told(step)
    names = ("rematerialisation", "gradient_accumulation", "gradient_clipping", "optimizer")
    assert tuple(actual.get(name) for name in names) == expected
    assert actual.get("gradient_accumulation_steps", 1) == step.accumulate


@pytest.mark.parametrize("step", [TENSOR_OUTERMOST, SHARDED, ACCUMULATING, UNROLLED])
def test_memory_is_that_of_xlas_assignment(step):
    """Argument + output - alias + temporary bytes of memory_analysis(), within 10 %."""
    actual = compiled(step)
    told = actual.memory
    whole = told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
    _, held = actual.analysis.memory
    assert held.arguments == told.argument_size_in_bytes
    assert held.arguments + held.results + held.temporaries == pytest.approx(whole + told.temp_size_in_bytes, rel=0.1)


@pytest.mark.parametrize("step", [TENSOR_OUTERMOST, ACCUMULATING])
def test_a_compiled_step_lies_between_its_bounds(step):
    analysis = compiled(step).analysis
    actual = program_times(analysis, hlo.program(analysis), analysis.barrier_graph, load_system("h100_80g_dgx"))
    bounds_hold(actual)
    assert 0 < sum(actual.exposed.values())[0] < actual.breakdown.step_time[0] - actual.kernels[0]


def mesh_of(**axes: int):
    """Devices on named axes."""
    automatic = (jax.sharding.AxisType.Auto,) * len(axes)
    devices = jax.devices()[: prod(axes.values())]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=automatic, devices=devices)


def mapped(function, mesh, *specs):
    """A function that each device runs on its own pieces; its result is summed over all of them."""
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)


def descended(loss, weights, given):
    """A step of gradient descent, gradients summed over the data axis."""
    gradients = jax.grad(loss)(weights, given)
    return jax.tree.map(lambda w, g: w - 0.1 * lax.psum(g, "data"), weights, gradients)


def pipelined(weights, rows):
    """Four micro-batches through stages that pass on what they make."""
    stages = lax.axis_size("stage")
    forward = [(stage, (stage + 1) % stages) for stage in range(stages)]

    def loss(weights, rows):
        def tick(state, row):
            state = jnp.where(lax.axis_index("stage") == 0, row, state)
            state = jnp.tanh(state @ weights[0])
            return lax.ppermute(state, "stage", forward), state

        return jnp.mean(lax.scan(tick, rows[0], rows)[1] ** 2)

    return descended(loss, weights, rows)


def exchanged(weights, rows):
    """Tokens to the experts of other devices and back; all devices share the last weight."""

    def loss(weights, rows):
        made = rows @ weights["shared"]
        places = lax.top_k(jnp.sum(made, 1), len(rows))[1]  # a router, without weights of its own
        sent = lax.all_to_all(made[places], "data", 0, 0, tiled=True)
        made = jnp.tanh(sent @ weights["expert"][0])
        return jnp.mean((lax.all_to_all(made, "data", 0, 0, tiled=True) @ weights["shared"]) ** 2)

    gradients = jax.grad(loss)(weights, rows)
    gradients["shared"] = lax.psum(gradients["shared"], "data")
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def ringed(weights, rows):
    """Attention whose keys and values go round a ring; here the ring lies along the data."""

    def loss(weights, rows):
        size = lax.axis_size("data")
        ring = [(device, (device + 1) % size) for device in range(size)]
        query, keys = rows @ weights, rows @ weights.T

        def turn(state, _):
            keys, total = state
            total = total + jax.nn.sigmoid(query @ keys.T) @ keys
            return (lax.ppermute(keys, "data", ring), total), None

        return jnp.mean(lax.scan(turn, (keys, query), None, length=size)[0][1] ** 2)

    return descended(loss, weights, rows)


def array(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


MAPPED = {
    "pipelined": (pipelined, {"stage": 4, "data": 2}, array(4, 16, 16), array(4, 8, 16),
                  (P("stage"), P(None, "data")), ("pipeline parallel", "collective-permute")),
    "exchanged": (exchanged, {"data": 4}, {"shared": array(16, 16), "expert": array(4, 16, 16)},
                  array(64, 16), ({"shared": P(), "expert": P("data")}, P("data")),
                  ("expert parallel", "all-to-all")),
    "ringed": (ringed, {"data": 4}, array(16, 16), array(64, 16), (P(), P("data")),
               ("context parallel", "collective-permute")),
}  # fmt: skip


def test_ticks_that_fill_a_pipeline_are_its_bubble():
    """Eight micro-batches through four stages take eleven ticks, of which each stage waits three."""

    def own(weights, rows):
        def loss(weights, rows):
            def tick(state, index):
                state = jnp.where(lax.axis_index("stage") == 0, rows[jnp.minimum(index, 7)], state)
                state = jnp.tanh(state @ weights[0])
                return lax.ppermute(state, "stage", [(0, 1), (1, 2), (2, 3), (3, 0)]), state

            return jnp.mean(lax.scan(tick, rows[0], jnp.arange(11))[1][3:] ** 2)

        return weights - 0.1 * jax.grad(loss)(weights, rows)

    function = mapped(own, mesh_of(stage=4), P("stage"), P())
    text = compiled_function(function, array(4, 16, 16), array(8, 8, 16), donate_argnums=0).text
    analysis = analysed(text)
    assert set(analysis.pipelines.values()) == {(11, 3)}
    assert training_figures(analysis)["model.gradient_accumulation_steps"] == 8
    step = program_step(program(analysis), load_system("a100_80g_dgx"))
    inside = step.bubble_time / (step.bubble_time + step.forward_time + step.backward_time)
    assert inside == pytest.approx(3 / 11, rel=0.2)  # but for what stands outside of the loops
    assert program(analysis).model_flops < 4 * sum(
        kernel.count * product.flops for kernel in program(analysis).kernels for product in kernel.products
    )


def test_tokens_that_are_only_predicted_are_none_of_the_sequence():
    def step(weights, tokens):
        def loss(weights):
            logits = weights["table"][tokens[:, :-1]] @ weights["head"]
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
            return -jnp.mean(picked)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = {"table": array(64, 16), "head": array(16, 64)}
    for dims in ((8, 33), (4, 2, 33)):  # of all at once, and by micro-batch
        tokens = jax.ShapeDtypeStruct(dims, jnp.int32)
        whole = step if len(dims) == 2 else lambda w, t: step(w, t.reshape(8, 33))
        actual = model_figures(analysed(compiled_function(whole, weights, tokens, donate_argnums=0).text))
        assert (actual["model.global_batch"], actual["model.sequence"]) == (8, 32)


@pytest.mark.parametrize("kind", MAPPED)
def test_what_devices_pass_each_other(kind):
    function, axes, weights, given, specs, expected = MAPPED[kind]
    text = compiled_function(mapped(function, mesh_of(**axes), *specs), weights, given, donate_argnums=0).text
    actual = purposes(analysed(text).collectives)
    assert expected in actual
    assert actual - {expected} <= {("data parallel", "all-reduce")}


@pytest.mark.parametrize("stripped", [False, True])
def test_a_cache_that_is_filled_is_no_weight(stripped):
    """A step of inference that writes keys into a cache, of one layer or of many."""

    def decode(cache, weights, row, at):
        def layer(row, layer_weights):
            keys, weight = layer_weights
            keys = lax.dynamic_update_slice(keys, (row @ weight)[None], (at, 0))
            return jax.nn.softmax(row @ keys.T) @ keys, keys

        last, caches = lax.scan(layer, row, (cache["layers"], weights))
        return {"layers": caches, "last": layer(last, (cache["last"], weights[0]))[1]}, last

    cache = {"layers": array(3, 64, 16), "last": array(64, 16)}
    at = jax.ShapeDtypeStruct((), jnp.int32)
    text = compiled_function(decode, cache, array(3, 16, 16), array(16), at, donate_argnums=0).text
    analysis = analysed(without_metadata(text) if stripped else text)
    assert analysis.state.weights == ()
    assert len(analysis.state.others) == 2
    assert training_figures(analysis) == {}


def test_rows_that_the_compiler_moves_between_pieces_of_matrices_are_no_tokens_for_experts():
    """The one matrix cut over half of the devices, the other over all: activations are cut anew between."""
    mesh = mesh_of(rows=2, columns=4)

    def cut(dims, *spec):
        return jax.ShapeDtypeStruct(dims, jnp.float32, sharding=jax.NamedSharding(mesh, P(*spec)))

    def step(weights, rows):
        def loss(weights):
            return jnp.mean((jax.nn.relu(rows @ weights[0]) @ weights[1] - rows) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    every = ("rows", "columns")
    weights = (cut((64, 256), None, "columns"), cut((256, 64), every, None))
    text = compiled_function(step, weights, cut((32, 64), every, None), donate_argnums=0).text
    actual = {purpose for purpose, _ in purposes(analysed(text).collectives)}
    assert actual
    assert not actual & {"expert parallel", "pipeline parallel"}


def orthogonal(matrix):
    """A step of Newton and Schulz, as the Muon optimizer takes some."""
    square = matrix @ matrix.T
    return 3.4 * matrix - (4.8 * square - 2 * square @ square) @ matrix


def stacked_loss(weights, tokens):
    """A decoder whose layers are stacked, with several axes to each matrix of attention."""

    def layer(rows, layer_weights):
        query, keys, values = jnp.einsum("bsd,dthe->tbshe", rows, layer_weights["qkv"])
        scores = jax.nn.softmax(jnp.einsum("bshe,bthe->bhst", query, keys))
        rows = rows + jnp.einsum("bhst,bthe,hed->bsd", scores, values, layer_weights["out"])
        return rows + jnp.tanh(rows @ layer_weights["up"]) @ layer_weights["down"], None

    rows, _ = lax.scan(layer, weights["table"][tokens[:, :-1]], {k: v for k, v in weights.items() if k != "table"})
    picked = jnp.take_along_axis(jax.nn.log_softmax(rows @ weights["table"].T), tokens[:, 1:, None], -1)
    return -jnp.mean(picked)


#: Name -> mesh, how weights are cut, and micro-batches of a step; none of them has experts.
WITHOUT_EXPERTS = {
    "Muon, layers shared out, micro-batches": (
        {"fsdp": 8}, dict.fromkeys(("table", "qkv", "out", "up", "down"), P("fsdp")), 4),
    "matrices cut along both dimensions": (
        {"fsdp": 2, "tensor": 4},
        {"table": P("tensor"), "qkv": P(None, "fsdp", None, "tensor"), "out": P(None, "tensor", None, "fsdp"),
         "up": P(None, "fsdp", "tensor"), "down": P(None, "tensor", "fsdp")}, 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", WITHOUT_EXPERTS)
def test_no_message_is_of_experts_in_a_program_without_a_router(kind):
    axes, cut, batches = WITHOUT_EXPERTS[kind]
    mesh = mesh_of(**axes)
    sharding = {name: jax.NamedSharding(mesh, spec) for name, spec in cut.items()}

    def step(weights, moments, tokens):
        def turn(summed, shard):
            result = jax.grad(stacked_loss)(weights, shard)
            result = {k: lax.with_sharding_constraint(v, sharding[k]) for k, v in result.items()}
            return jax.tree.map(jnp.add, summed, result), None

        zero = jax.tree.map(jnp.zeros_like, weights)
        parts = tokens.reshape(batches, -1, 65)
        gradients = lax.scan(turn, zero, parts)[0] if batches > 1 else turn(zero, tokens)[0]
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        moved = {k: jax.vmap(orthogonal)(v) if k in ("up", "down") and batches > 1 else v for k, v in moments.items()}
        return jax.tree.map(lambda w, m: w - 0.1 * m, weights, moved), moments

    dims = {"table": (512, 256), "qkv": (8, 256, 3, 8, 32), "out": (8, 8, 32, 256), "up": (8, 256, 1024)}
    dims["down"] = (8, 1024, 256)
    weights = {k: jax.ShapeDtypeStruct(v, jnp.float32, sharding=sharding[k]) for k, v in dims.items()}
    tokens = jax.ShapeDtypeStruct((16, 65), jnp.int32, sharding=jax.NamedSharding(mesh, P("fsdp")))
    text = compiled_function(step, weights, weights, tokens, donate_argnums=(0, 1)).text
    result = {purpose for purpose, _ in purposes(analysed(text).collectives)}
    assert result
    assert "expert parallel" not in result
    assert "ep" not in analysed(text).axes
