"""Designs of one batch cost the same as each design alone, and as a batch whose rows share nothing.

Stages evaluate rows once that agree in all columns that the stage reads. A column that a stage forgets shows
here: rows that differ in this column alone would share a result.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from costmodel import DesignPoints, LstmDesign, LstmShape, ModelShape, System, load_model, load_system, lstm_step, step
from costmodel.columns import UniqueRows, concatenated, layout_of, of_points
from costmodel.machine import Modules
from costmodel.steps.breakdown import Breakdown
from costmodel.training import run as runs
from costmodel.training.blocks import BLOCKS, Block
from costmodel.training.design import MODERN, SCHEDULE_WORDS, TILE_EDGE, splits_kernels
from costmodel.training.design_table import Design, Domain
from costmodel.training.run import Run
from dse.adapters.dfmodel.design import DataflowDesign, dataflow_step
from dse.adapters.simai.design_rows import simai_step
from dse.adapters.xla import hlo
from dse.adapters.xla.steps.program import program_step
from tests.support.cases import cases
from tests.support.paths import TEST_DATA

#: Values that a column takes in one batch, where it holds a count.
COUNTS = (1.0, 2.0)


def values_of(domain: Domain) -> list[float]:
    """Values that a batch of a column takes: every code, or a few counts."""
    if domain == TILE_EDGE:
        return [64.0, 128.0]
    return list(np.arange(domain.low, domain.high + 1)) if domain.high < 1e30 else [*COUNTS]


#: The first split and the first tile of every kernel.
FIRST_WAYS = {name: values_of(domain)[0] for name, domain in DesignPoints.domains().items() if splits_kernels(name)}
#: Base designs, between them sensitive to every column: named splits, explicit ones, unfused attention.
SPLIT: Mapping[str, Any] = cases(__file__, "SPLIT")
BASES: dict[str, Mapping[str, Any]] = cases(__file__, "BASES")
BASES["explicit"] = {**FIRST_WAYS, **BASES["explicit"]}
#: Columns that a schedule can follow beside some values of another one.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "schedule": {"schedule": SCHEDULE_WORDS, "vpp": [1, 2, 2, 1, 1, 2, 1, 2]},
    "group_size": {"group_size": [0, 4, 8]},
    "pipeline_layout": {"pipeline_layout": ["even"]},  # whatever the model: see test_pipeline_layout.py
}
#: Base designs in formats of fewer than 16 bits, and the quantities of a chip that these read.
FORMATS: Mapping[str, Mapping[str, Any]] = {
    word: {**SPLIT, "precision": word, "zero": 1} for word in ("fp8_blockwise", "mxfp8", "nvfp4")
}
UNITS = {"fp8_speedup": 2, "mx_speedup": 2, "fp4_speedup": 4}
#: Base designs of a model with experts.
EXPERT_BASES: Mapping[str, Mapping[str, Any]] = cases(__file__, "EXPERT_BASES")


def assert_same(batch: Breakdown, singles: list[Breakdown]) -> None:
    """To the last bit, in every column."""
    tables = [one.columns() for one in singles]
    for name, values in batch.columns().items():
        alone = np.concatenate([np.atleast_1d(table[name]) for table in tables])
        np.testing.assert_array_equal(values, alone, err_msg=name)


def test_columns_are_taken_as_arrays_are():
    table = np.arange(24.0).reshape(2, 3, 4)
    for values in (table, table[0, 0], np.broadcast_to(2.0, 4), np.broadcast_to(table[..., :1], table.shape)):
        for rows in (slice(1, 3), np.array([2, 0]), np.array([1] * 6), np.array([[0, 1], [2, 3]]), table[0, 0] > 1):
            np.testing.assert_array_equal(of_points(values, rows), values[..., rows])


def batches(
    table: type[Design], base: Mapping[str, Any], blocks: Iterable[Block] = BLOCKS
) -> Iterator[tuple[str, Design]]:
    """For each column of a table, designs that differ in it alone."""
    for column, domain in table.domains(blocks).items():
        if column in table.aliases:  # whose values are those of another column
            continue
        options = BESIDE.get(column, {column: values_of(domain)})
        yield column, table.of(blocks=blocks, **{**base, **options})


def unshared(price: Callable[[Any], Breakdown], batch: Any) -> Breakdown:
    """The price of a batch in which stages evaluate every row, equal ones too."""

    def every_row(*columns: np.ndarray) -> UniqueRows:
        return UniqueRows(np.arange(max((values.shape[-1] for values in columns if values.ndim), default=1)), None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UniqueRows, "of", every_row)
        return price(batch)


class Alone:
    """Prices designs one by one; the base of many batches once."""

    def __init__(self, price: Callable[[Any], Breakdown]) -> None:
        self.price = price
        self.known: dict[tuple[tuple[str, float], ...], Breakdown] = {}

    def rows(self, designs: Design, every: int = 1) -> list[Breakdown]:
        """Prices of each n-th design of a table, one by one."""
        costs = []
        for row in range(0, designs.num_points, every):
            one = designs.take(np.array([row]))
            key = tuple((name, float(values.item())) for name, values in one.columns().items())
            if key not in self.known:
                self.known[key] = self.price(one)
            costs.append(self.known[key])
        return costs


def check_columns(
    table: type[Design], base: Mapping[str, Any], price: Callable[[Any], Breakdown],
    blocks: Iterable[Block] = BLOCKS, known: Collection[str] = (), idle: Collection[str] = (),
) -> set[str]:  # fmt: skip
    """Columns that change a price, after checks of all columns in one batch.

    The batch costs what it does where its rows share nothing, and columns that are not known yet cost the same
    alone. Idle columns change no price, all together.
    """
    designs_of, alone = {c: t for c, t in batches(table, base, blocks) if c not in idle}, Alone(price)
    ends = np.cumsum([designs.num_points for designs in designs_of.values()])
    batch = concatenated([*designs_of.values()])
    assert {*batch.columns()} >= designs_of.keys()
    together = price(batch)
    assert_same(together, [unshared(price, batch)])
    telling = set()
    for (column, designs), end in zip(designs_of.items(), ends, strict=True):
        costs = together.take(np.arange(end - designs.num_points, end))
        if column not in known:
            assert_same(costs, alone.rows(designs))
        if any(np.unique(values).size > 1 for values in costs.columns().values()):
            telling.add(column)
    if idle:
        last = {name: values_of(domain)[-1] for name, domain in table.domains(blocks).items() if name in idle}
        assert_same(price(table.of(blocks=blocks, **{**last, **base})), [price(table.of(blocks=blocks, **base))])
    return telling


MODELS = ("gpt2_xl", "llama3_8b")
#: Bases that differ in the kernels that they run.
KERNELS = ("named", "unfused", "explicit", "full")


@pytest.mark.parametrize("model", MODELS)
def test_every_column_of_a_transformer_counts_for_its_row_alone(model):
    """And every column changes some price; columns of the first model, shardings and a fourth of kernels alone too."""
    system = load_system("a100_80g_dgx").with_quantities(UNITS)
    price, columns = partial(step, load_model(model), system), {*DesignPoints.domains()}
    first, of_kernels = model == MODELS[0], sorted(name for name in columns if splits_kernels(name))
    bases = {**BASES, "narrow": FORMATS["fp8_blockwise"]} if first else {name: BASES[name] for name in KERNELS}
    read = set()
    for name, base in bases.items():
        known = read | {*of_kernels} - {*of_kernels[::4], "sharding"} if first else columns
        idle = () if name == "explicit" else {*of_kernels} - {"sharding", "tiling"}
        read |= check_columns(DesignPoints, base, price, known=known, idle=idle)
    assert not first or read == columns - {"pipeline_layout", *DesignPoints.aliases}


def test_every_column_of_experts_counts_for_its_row_alone():
    """And every column that designs of other models have not changes some price."""
    model, read = load_model("deepseek_v2_lite"), set()
    price = partial(step, model, load_system("a100_80g_dgx"))
    columns = {*DesignPoints.domains(model.blocks)}
    idle = {name for name in columns if splits_kernels(name)} - {"sharding", "tiling"}
    for base in EXPERT_BASES.values():
        known = {*DesignPoints.domains()} | read - {*base}
        read |= check_columns(DesignPoints, base, price, model.blocks, known, idle)
    assert read >= columns - {*DesignPoints.domains()} - idle


def check_rules(price: Callable[[Any], Breakdown], table: type[Design], base: Mapping[str, Any], every: int) -> None:
    """Columns of other rules than ours, all in one batch, of which each n-th row is evaluated alone."""
    read = [one for name, one in batches(table, base) if not splits_kernels(name) and name not in MODERN]
    designs = concatenated(read)
    rows = np.arange(0, designs.num_points, every)
    assert_same(price(designs).take(rows), Alone(price).rows(designs, every))


@pytest.mark.parametrize(("base", "every"), [("named", 1), ("unfused", 2), ("full", 2)])
def test_every_column_counts_for_its_row_alone_by_simais_rules(base, every):
    """Which know the named assignments only, one schedule, and one way to share a sequence: none."""
    model, system = load_model("gpt2_xl"), load_system("a100_80g_dgx")
    check_rules(lambda designs: simai_step(Run(model, system, designs)), DesignPoints, BASES[base], every)


@pytest.mark.parametrize(("generation", "every"), [("gen1", 1), ("gen2a", 3), ("gen2b", 3), ("gen3", 3)])
def test_every_column_counts_for_its_row_alone_by_dfmodels_rules(generation, every):
    def price(designs: DataflowDesign) -> Breakdown:
        run = Run(load_model("gpt2_xl"), load_system("a100_80g_dgx"), designs)
        return dataflow_step(run, generation=generation)

    check_rules(price, DataflowDesign, {**SPLIT, "vpp": 1, "topology": "r_sw_sw", "tile_size": 2}, every)


LSTM = LstmShape(num_layers=2, hidden_size=4800, projection_size=512, vocab_size=9600)


def test_every_column_of_an_lstm_counts_for_its_row_alone():
    price = partial(lstm_step, LSTM, load_system("a100_80g_dgx"))
    base = {"dp": 2, "micro_batch_size": 16, "hidden_kind": "rc", "hidden_dim1": 2, "hidden_dim2": 2,
            "softmax_kind": "rc", "softmax_dim1": 2, "softmax_dim2": 2}  # fmt: skip
    assert check_columns(LstmDesign, base, price) == {*LstmDesign.domains()}


def another(name: str, value: Any) -> Any:
    """A value that a quantity might have instead."""
    if name.endswith("in_switch"):
        return 1 - value
    if name.endswith("_ramp"):
        return 1e7
    if "torus" in name:
        return 3.0 if name.endswith("wrap") else 1.0 if value else 4.0
    if name.endswith(("_used", "_collective_cores")):
        return 2.0
    return np.where(np.isfinite(value), value, 1e8) * 0.03 + 1e-12


def torus(system: System) -> System:
    """The same chips in nodes of 2 x 2, and those in a torus of two axes too."""
    axes = {"node_torus_x": 2.0, "node_torus_y": 2.0, "fabric_torus_x": 2.0, "fabric_torus_y": 16.0}
    return system.with_quantities({**axes, "node_in_switch": 0.0})


def opened(system: System) -> System:
    """Dies of which some are spoilt, at a clock so slow that voltage follows it no further."""
    clock = {"nominal_clock": 4 * float(system.chip.clock), "least_voltage": 0.7}
    return system.with_quantities({"defect_density": 1000.0, "area_price": 1e6, "exponentials": 0.1, **clock})


#: What no step of a dense model reads.
UNREAD = {*cases(__file__, "UNREAD"), *(f"modules_{name}" for name in layout_of(Modules).units)}


def check_quantities(
    system: System, price: Callable[[System], Breakdown], known: Collection[str] = (), *, apart: bool = False
) -> set[str]:
    """Quantities that change a price, after checks of every quantity, in one batch with the system.

    The batch costs what it does where its rows share nothing. Quantities that change its prices and are not
    known yet cost the same alone; those that change none change none together, unless they are kept apart.
    """
    values = system.quantities()
    changed = {name: np.asarray(another(name, value)) for name, value in values.items()}
    every = {name: np.full(1 + len(values), value) for name, value in values.items()}
    for row, (name, value) in enumerate(changed.items(), 1):
        every[name][row] = value

    def alone(*names: str) -> Breakdown:
        return price(system.with_quantities({name: changed[name] for name in names}))

    together = price(system.with_quantities(every))
    assert_same(together, [unshared(price, system.with_quantities(every))])
    rows = {name: together.take(np.array([row])) for row, name in enumerate(changed, 1)}
    usual = price(system)
    telling = {name for name, one in rows.items() if differs(usual, one)}
    for name in telling - {*known}:
        assert_same(rows[name], [alone(name)])
    if not apart:
        assert_same(alone(*(rows.keys() - telling)), [usual])
    return telling


def differs(one: Breakdown, other: Breakdown) -> bool:
    """True if some column of two batches of one design differs in a bit."""
    columns = other.columns()
    return any(not np.array_equal(values, columns[name]) for name, values in one.columns().items())


def stepped(model: ModelShape, design: DesignPoints, system: System) -> Breakdown:
    """A design on machines."""
    return step(model, system, design)


@pytest.mark.slow
def test_every_quantity_of_a_system_counts_for_its_row_alone(toy_system):
    """And every one changes some price, but those that nothing reads."""
    model, read = load_model("gpt2_xl"), set()
    launching, around = toy_system.with_quantities({"host_dispatch": 0.01}), torus(toy_system)
    machines = {"named": (launching, around, opened(toy_system)), "long": (around,)}
    for name, base in BASES.items():
        if name in ("in line", "some layers"):  # whose schedules read what others do
            continue
        design = DesignPoints.of(**base)
        for machine in (toy_system, *machines.get(name, ())):
            read |= check_quantities(machine, partial(stepped, model, design), read)
    for base in FORMATS.values():
        design = DesignPoints.of(**base)
        machine = toy_system.with_quantities(UNITS)
        read |= check_quantities(machine, partial(stepped, model, design), read)
    assert read == {*toy_system.quantities()} - UNREAD


@pytest.mark.slow
def test_every_quantity_counts_for_its_row_alone_where_the_sharding_is_solved(toy_system):
    design = DesignPoints.of(**SPLIT, sharding="solve")
    known = {*toy_system.quantities()} - {*[*toy_system.quantities()][::4]}  # one of four is evaluated alone too
    check_quantities(toy_system, partial(stepped, load_model("gpt2_xl"), design), known)


def test_every_quantity_counts_for_its_row_alone_with_lstm_cells(toy_system):
    design = LstmDesign.of(dp=2, micro_batch_size=16, hidden_kind="cr", hidden_dim1=4)
    check_quantities(toy_system, lambda system: lstm_step(LSTM, system, design), apart=True)


@pytest.mark.slow
def test_every_quantity_counts_for_its_row_alone_with_a_compiled_program(toy_system):
    program = hlo.program(hlo.Analysis(hlo.load_module(TEST_DATA / "hlo" / "loop.hlo")))
    check_quantities(toy_system, lambda system: program_step(program, system))


def test_models_of_any_dimension_are_priced_from_it(gpt):
    """A model is not a row: every dimension of it changes the step."""
    system, design = load_system("a100_80g_dgx"), DesignPoints.of(**SPLIT)
    base = step(gpt, system, design).step_time
    for name in gpt.dimensions:
        if name not in ("num_query_groups", "moe_layer_freq"):  # only fewer heads of keys; no experts
            assert step(replace(gpt, **{name: 2 * getattr(gpt, name)}), system, design).step_time > base, name


# Tables of single designs are remembered across calls

DESIGN: dict[str, Any] = {"tp": 4, "pp": 4, "dp": 8, "gradient_accumulation_steps": 16}


@pytest.fixture
def forgotten():
    runs._REMEMBERED.clear()


def price_of(model: str = "gpt3_175b", system: str = "a100_80g_dgx", **changes: Any) -> dict[str, np.ndarray]:
    return step(load_model(model), load_system(system), DesignPoints.of(**DESIGN, **changes)).columns()


@pytest.mark.parametrize("model", ["gpt3_175b", "deepseek_v3", "llama3_8b"])
def test_a_design_costs_the_same_again_and_in_a_batch(model, forgotten):
    first, again = price_of(model), price_of(model)
    both = price_of(model, micro_batch_size=[1, 2])
    for name, values in first.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)
        np.testing.assert_array_equal(np.broadcast_to(both[name], (2,))[:1], np.atleast_1d(values), err_msg=name)


def test_tables_that_are_remembered_are_few(monkeypatch, forgotten):
    monkeypatch.setattr(runs, "MOST_REMEMBERED", 5)
    for size in range(1, 9):
        price_of(micro_batch_size=size)
    assert len(runs._REMEMBERED) == 5
