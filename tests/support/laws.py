"""Laws of costs of any model on any machine, whatever the design: checks of short and long tests.

A design whose number format the chip has no units for costs nothing that is known: every column is NaN then,
and in no other case. Designs that no rule of a space would let through (sizes that divide nothing, more
experts than ranks) have costs like others: ratios are taken as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np

from costmodel import LstmDesign, System, load_model
from costmodel.columns import BoolArray, FloatArray, grouped
from costmodel.kernels.products import is_possible
from costmodel.lstm import lstm_step_of
from costmodel.machine import chip_power, chip_price
from costmodel.rules.registry import design_rules
from costmodel.rules.rules import Workload
from costmodel.steps.breakdown import PARTS, Breakdown
from costmodel.steps.transformer import transformer_items, transformer_step
from costmodel.training.design import MEGATRON_SP, DesignPoints, splits_kernels
from costmodel.training.run import Run, TransformerRun, rank_run
from dse.adapters.dfmodel.design import DataflowDesign
from dse.registry import adapters
from tests.support.random_designs import (
    lawful_columns,
    random_columns,
    random_designs,
    random_lstm,
    random_model,
    random_system,
)

#: Relative size of what adding up in another order may change. [-]
ROUNDING: Final = 1e-12

#: Units of a chip for products of fewer than 16 bits.
UNITS: Final = ("fp8", "mx", "fp4")

WHOLE: Final = ("cores", "arrays_per_core")
#: What follows from a quantity: a core has its own port to on-chip memory.
FOLLOWING: Final = {"cores": "sram_bandwidth", "clock": "sram_bandwidth"}
#: Quantities of which more never speeds a step up: what is waited for, and what is lost. Endings of names.
NEVER_FASTER: Final = (
    *("kernel_launch", "tile_latency", "collective_cores", "host_dispatch", "host_step_overhead"),
    *("host_straggler", "pointwise_kernels", "blocking_launches"),
    *("expert_casts", "collective_launches", "pipelined_launches"),
    *("_latency", "_launch", "_ramp", "_own_share", "_oversubscription"),
)
#: Endings of rates, and of times that a step waits. [1/s], [s]
RATES: Final = ("clock", "_bandwidth")
WAITS: Final = ("_latency", "_launch", "host_dispatch", "host_step_overhead")


def random_run(seed: int, points: int) -> TransformerRun:
    """Designs of a random model on random machines: all on one, or each on one of its own about that."""
    rng = np.random.default_rng(seed)
    model, system = random_model(rng), random_system(rng)
    design = random_designs(rng, model, points)
    return Run(model, system.with_quantities(around(rng, system, points) if seed % 2 else {}), design)


def around(rng: np.random.Generator, system: System, points: int) -> dict[str, FloatArray]:
    """Half to twice what a machine has of what it works with, a share at most 1; (points,) each. [SI units]"""
    known, ranges = {name: system.quantities()[name] for name in system.never_slower()}, system.ranges()
    drawn = {name: value * rng.uniform(0.5, 2.0, points) for name, value in known.items() if np.isfinite(value)}
    drawn = {name: np.minimum(values, ranges[name].high) for name, values in drawn.items()}
    return {**drawn, **{name: np.ceil(drawn[name]) for name in WHOLE}}


def check_numbers(costs: Breakdown, legal: BoolArray) -> None:
    """Numbers from 0 where there is a cost, or else none; and parts add up to their totals."""
    columns = costs.columns()
    for name, values in columns.items():
        assert np.isfinite(values[legal]).all(), name
        assert ((values >= 0) | np.isnan(values)).all(), name
    for total, parts in PARTS.items():
        whole = sum(columns[part][legal] for part in parts)
        np.testing.assert_allclose(whole, columns[total][legal], rtol=ROUNDING, err_msg=total)


def check_columns(costs: Breakdown, run: Run, legal: BoolArray) -> None:
    """Numbers and their sums; columns that follow from others; every step takes time; kernels wait within theirs."""
    check_numbers(costs, legal)
    rows = np.flatnonzero(legal)
    chosen, system = costs.take(rows), run.system.take(rows)
    assert (chosen.step_time > 0).all()
    assert (chosen.peak_memory >= system.chip.reserved_memory).all()
    for column, expected in {
        "system_price": chosen.world_size * chip_price(system),
        "system_power": chosen.world_size * chip_power(system),
        "average_power": chosen.energy_per_step / chosen.step_time * system.host.power_overhead,
        "idle_energy": chosen.world_size * chosen.step_time * (system.chip.idle_power + system.host.power),
        "tokens_per_second_per_gpu": chosen.tokens_per_second / chosen.world_size,
        "mfu": chosen.model_flops / (chosen.step_time * chosen.world_size * system.chip.peak_flop_rate),
    }.items():
        np.testing.assert_allclose(getattr(chosen, column), expected, rtol=ROUNDING, err_msg=column)
    kernels = chosen.forward_time + chosen.backward_time + chosen.recompute_time
    assert (chosen.memory_bound_time + chosen.launch_bound_time <= kernels * (1 + ROUNDING)).all()


def check_bounds(costs: Breakdown, run: TransformerRun, legal: BoolArray) -> None:
    """No step is better than its FLOP at the peak rate, and its weights over all ranks.

    Of designs whose experts have the ranks that they ask for, and drop no tokens.
    """
    design, model, chip = run.design, run.model, run.system.chip
    whole = (design.ep * design.etp <= design.tp * design.cp * design.dp) & (design.capacity_factor == 0)
    whole = legal & whole & (design.ep <= max(model.num_experts, 1))
    rates = np.max(np.broadcast_arrays(costs.world_size**0, *map(chip.format_rate, UNITS)), axis=0)
    assert (costs.mfu <= rates * (1 + ROUNDING))[whole].all()
    element = np.where(design.fp8_parameters > 0, 1.0, run.precision.element_bytes)
    element = np.where((design.quantized_base > 0) & (design.lora_rank > 0), 0.5, element)
    held = costs.peak_memory * costs.world_size
    assert (held >= element * model.num_parameters * (1 - ROUNDING))[whole].all()


def check_transformers(seed: int, points: int) -> None:
    """Laws of `costmodel.step`."""
    run = random_run(seed, points)
    with np.errstate(all="raise", under="ignore"):
        actual = transformer_step(run)
    legal = np.broadcast_to(is_possible(rank_run(run)), (points,))
    check_columns(actual, run, legal)
    check_bounds(actual, run, legal)


def check_lstm(seed: int, points: int) -> None:
    """The same of language models of LSTM cells."""
    rng = np.random.default_rng(seed)
    model, system = random_lstm(rng), random_system(rng)
    design = LstmDesign.of(**random_columns(rng, LstmDesign, (), points))
    run = Run(model, system.with_quantities(around(rng, system, points) if seed % 2 else {}), design)
    with np.errstate(all="raise", under="ignore"):
        actual = lstm_step_of(run)
    check_columns(actual, run, np.ones(points, dtype=bool))


def check_profile(profile: str, seed: int, points: int) -> None:
    """Costs of a reference profile are numbers from 0, or none; of the first without one it says why."""
    rng = np.random.default_rng(seed)
    model, system = load_model("gpt3_175b" if seed % 2 else "gpt2_xl"), random_system(rng)
    assert adapters()  # whose profiles are known now
    rules = design_rules(profile, Workload.of(model))
    drawn = lawful_columns(rng, DataflowDesign, model, points)
    drawn |= {name: rng.integers(0, 2, points).astype(float) for name in ("sequence_parallel",)}
    columns = {name: drawn[name] for name in rules.columns & drawn.keys() if not splits_kernels(name)}
    actual = rules.step(system, columns)
    assert isinstance(actual, Breakdown)
    legal = np.isfinite(actual.step_time)
    check_numbers(actual, legal)
    for row in np.flatnonzero(~legal)[:3]:
        assert rules.reasons(system, {name: values[row : row + 1] for name, values in columns.items()})


def is_lawful(design: DesignPoints) -> BoolArray:
    """Designs for which more of a resource is never slower, as `System.never_slower` says; (points,).

    Of two passes that wait for one host, less work of one is more waiting of the other, behind which fewer states
    may be exchanged. So it is of overlapped passes of two micro-batches that wait for one link to the host.
    """
    plain = design.is_1f1b & ((design.pp == 1) & (design.overlap_ep == 0) | (design.zero <= 1))
    plain &= (design.overlap_shared_expert == 0) & ((design.overlap_ep == 0) | ~design.offloads_activations)
    named = design.sharding <= MEGATRON_SP
    legal: BoolArray = np.broadcast_to(plain & named, (design.num_points,))
    return legal


def on_machines(
    run: Run[Any, Any], changes: Sequence[Mapping[str, FloatArray]], cost: Callable[[Any], Breakdown]
) -> list[Breakdown]:
    """Costs of the designs of a run on each of several changed machines, all in one batch."""
    known, points = run.system.quantities(), run.design.num_points
    columns = {
        name: np.concatenate([np.broadcast_to(change.get(name, known[name]), points) for change in changes])
        for name in {*chain(*changes)}
    }
    batch = run.take(np.tile(np.arange(points), len(changes)))
    costs = cost(replace(batch, system=batch.system.with_quantities(columns)))
    return [costs.take(rows) for rows in np.arange(points * len(changes)).reshape(-1, points)]


def more_of_each(quantities: Mapping[str, FloatArray], rng: np.random.Generator) -> dict[str, dict[str, FloatArray]]:
    """Machines with up to 50 times as much of one quantity, by its name."""
    better = {name: {name: values * np.exp(rng.uniform(0.05, 4.0, values.size))} for name, values in quantities.items()}
    for quantity, more in better.items():
        if quantity in WHOLE:
            more[quantity] = np.ceil(more[quantity])
        if other := FOLLOWING.get(quantity):
            more[other] = quantities[other] * more[quantity] / quantities[quantity]
    return better


def check_resources(seed: int, points: int) -> None:
    """More of what a machine works with is never slower, cheaper or less hungry; more waits never faster."""
    rng = np.random.default_rng(seed)
    model, system = random_model(rng), random_system(rng)
    design, quantities = random_designs(rng, model, 4 * points), around(rng, system, 4 * points)
    possible = is_possible(rank_run(Run(model, system.with_quantities(quantities), design)))
    rows = np.flatnonzero(is_lawful(design) & possible)[:points]
    design, quantities = design.take(rows), {name: values[rows] for name, values in quantities.items()}
    # nodes straggle by the work of the slowest stage, which may be another one of less work on a better machine
    straggling = np.where(design.pp > 1, 0.0, system.host.straggler)
    run = Run(model, system.with_quantities({"host_straggler": straggling, **quantities}), design)
    check_changes(run, quantities, rng, transformer_step)


def check_lstm_resources(seed: int, points: int) -> None:
    """The same of language models of LSTM cells."""
    rng = np.random.default_rng(seed)
    model, system = random_lstm(rng), random_system(rng)
    design, quantities = LstmDesign.of(**random_columns(rng, LstmDesign, (), points)), around(rng, system, points)
    check_changes(Run(model, system.with_quantities(quantities), design), quantities, rng, lstm_step_of)


def check_changes(
    run: Run[Any, Any], quantities: Mapping[str, FloatArray], rng: np.random.Generator, cost: Callable[[Any], Breakdown]
) -> None:
    """Laws of a run on machines that have more of one quantity, or wait longer."""
    better = more_of_each(quantities, rng)
    known = {name: np.broadcast_to(value, run.num_points) for name, value in run.system.quantities().items()}
    worse = {
        name: {name: value * rng.uniform(1.05, 10.0, run.num_points)}
        for name, value in known.items()
        if name.endswith(NEVER_FASTER) and np.isfinite(value).all()
    }
    before, *after = on_machines(run, [{}, *better.values(), *worse.values()], cost)
    for quantity, costs in zip(better, after, strict=False):
        assert (costs.step_time <= before.step_time * (1 + ROUNDING)).all(), quantity
        assert (costs.system_price >= before.system_price * (1 - ROUNDING)).all(), quantity
        assert (costs.system_power >= before.system_power * (1 - ROUNDING)).all(), quantity
    for quantity, costs in zip(worse, after[len(better) :], strict=True):
        assert (costs.step_time >= before.step_time * (1 - ROUNDING)).all(), quantity


def check_zero(seed: int, points: int) -> None:
    """Stages of ZeRO change nothing where one rank holds each share: one replica, or as many copies as replicas."""
    run = random_run(seed, points)
    design, one = run.design, np.ones(points)
    alone = {"dp": one, "cp": one, "cp_a2a": one}
    copied = {"shard_replicas": design.dp * design.cp * one, "outer_dp_sharding_strategy": 0 * one}
    of_one = copied if seed % 3 else alone
    design = replace(design, **of_one, ep=one, etp=design.tp * one, zero=0 * one)
    assert (design.sharing.shards.size == 1).all()
    assert (design.expert_sharing.shards.size == 1).all()
    before = transformer_step(Run(run.model, run.system, design)).columns()
    stages = (1.0, 2.0, 3.0)
    of_stages = Run(run.model, run.system, design).take(np.tile(np.arange(points), len(stages)))
    zero = np.repeat(stages, points)
    costs = transformer_step(replace(of_stages, design=replace(of_stages.design, zero=zero)))
    for name, values in costs.columns().items():
        after = np.broadcast_to(values, zero.shape).reshape(len(stages), points)
        np.testing.assert_allclose(after, np.broadcast_to(before[name], after.shape), rtol=ROUNDING, err_msg=name)


def check_items(seed: int, points: int) -> None:
    """Items in seconds and bytes add up to the columns that they name."""
    run = random_run(seed, points)
    run = run.take(np.flatnonzero(is_lawful(run.design) & np.isfinite(transformer_step(run).step_time)))
    columns, items = transformer_step(run).columns(), transformer_items(run).items()
    for column, of_column in grouped((i.column, v) for i, v in items if i.quantity in ("time", "bytes")).items():
        np.testing.assert_allclose(sum(of_column), columns[column], rtol=ROUNDING, atol=1e-12, err_msg=column)


def check_scale(seed: int, points: int) -> None:
    """A machine whose rates are twice as high, and whose waits are half as long, takes half the time."""
    run = random_run(seed, points)
    known = run.system.quantities()
    rates = {name: 2 * values for name, values in known.items() if name.endswith(RATES)}
    waits = {name: values / 2 for name, values in known.items() if name.endswith(WAITS)}
    before = transformer_step(run)
    after = transformer_step(Run(run.model, run.system.with_quantities(rates | waits), run.design))
    np.testing.assert_allclose(2 * after.step_time, before.step_time, rtol=ROUNDING)
    np.testing.assert_allclose(after.peak_memory, before.peak_memory, rtol=ROUNDING)


def check_work(seed: int, points: int) -> None:
    """A step with twice the micro-batches takes at least as long, at most twice as long, and no less memory."""
    run = random_run(seed, points)
    left = np.mod(2 * run.design.gradient_accumulation_steps, np.maximum(run.design.group_size, 1))
    whole_groups = (left == 0) | (left >= run.design.pp)
    lawful = is_lawful(run.design) & whole_groups & np.isfinite(transformer_step(run).step_time)
    run = run.take(np.flatnonzero(lawful))
    before = transformer_step(run)
    more = replace(run.design, gradient_accumulation_steps=2 * run.design.gradient_accumulation_steps)
    after = transformer_step(Run(run.model, run.system, more))
    assert (after.step_time >= before.step_time * (1 - ROUNDING)).all()
    assert (after.step_time <= 2 * before.step_time * (1 + ROUNDING)).all()
    assert (after.peak_memory >= before.peak_memory * (1 - ROUNDING)).all()


def check_order(seed: int, points: int) -> None:
    """A permutation of a batch permutes its costs, and each design alone costs the same, bit for bit."""
    run, rng = random_run(seed, points), np.random.default_rng(seed)
    actual = transformer_step(run).columns()
    order = rng.permutation(points)
    alone = rng.integers(points, size=10)
    for rows in (order, order[: points // 3], *(np.array([row]) for row in alone)):
        costs = transformer_step(run.take(rows)).columns()
        for name, values in costs.items():
            np.testing.assert_array_equal(values, actual[name][rows], err_msg=name)
