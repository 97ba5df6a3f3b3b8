"""Hardware from a power budget: shares that sum to one, the machine that they buy, and wrong budgets."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.formats.shipped import ROOT
from costmodel.machine import chip_power
from dse.adapters.deepflow.configuration import hardware, load_configuration
from dse.pricing.evaluated import machine
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.paths import TEST_DATA

PROBE = TEST_DATA / "lstm_power_probe.yaml"
SPACE = cases(__file__, "SPACE")
SHARES = ("core", "sram", "l2", "dram", "node", "fabric")


def space(tmp_path: Path, *changes: tuple[str, str]) -> Space:
    """The space above, with some text exchanged."""
    text = SPACE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "split.yaml"
    path.write_text(text)
    return Space.load(path)


def shares(actual: Space, columns: dict[str, FloatArray]) -> list[FloatArray]:
    """Every part's share of the power, designs in columns."""
    known = actual.known_values(columns)
    return [known[f"{part}_fraction"] for part in SHARES]


def test_every_split_that_leaves_something_is_legal_and_no_other(tmp_path):
    actual = space(tmp_path)
    percents = product(range(30, 71, 5), (2, 4), (8,), range(5, 36, 5), (2, 5))
    splits = sum(sum(split) < 100 for split in percents)
    assert actual.legal.count == splits * 2 * 4  # two budgets, four sizes of tp


def test_the_chip_draws_what_the_budget_gives_it(tmp_path):
    """Up to one core: their number is whole."""
    actual = space(tmp_path)
    columns = actual.legal.random(200, np.random.default_rng(5))
    system = machine(actual, actual.known_values(columns))
    drawn = chip_power(system) / system.host.power_overhead - system.host.power
    one_core = system.chip.matrix_flop_rate / system.chip.cores * system.chip.energy_per_flop
    assert np.all(drawn <= columns["tdp"] * (1 + 1e-12))
    assert np.all(drawn > columns["tdp"] - one_core)


def test_capacity_comes_in_banks_of_the_base(tmp_path):
    actual = space(tmp_path)
    system = machine(actual, actual.known_values(actual.legal.random(50, np.random.default_rng(5))))
    for bought, bank in zip(system.memory, actual.system.memory, strict=True):
        assert bought.capacity / bought.bandwidth == pytest.approx(float(bank.capacity / bank.bandwidth))


def test_the_rules_are_those_of_the_reference(tmp_path):
    """The same energies, shares and power buy what DeepFlow's first generation says before derating."""
    probe = load_configuration(PROBE)
    reference = hardware(replace(probe, dp=np.array([2.0])))
    actual = space(
        tmp_path,
        ("tdp: [500 W, 700 W]", "tdp: 360 W"),  # of which 60 W are drawn by an idle chip
        ("{from: 0.05, to: 0.35, step: 0.05}", "0.2592"),
        ("l2: 0.08", "l2: 0.16896000000000005"),
        ("[0.02, 0.05]", "0.2"),
        ("given: {", "given: {dram_energy: 6 pJ/bit, l2_energy: 5 fJ/bit, node_energy: 10 pJ/bit, "),
    )
    system = machine(actual, actual.known_values(actual.legal.random(1, np.random.default_rng(0))))
    _, l2, dram = system.memory
    links = 2  # of which each of the two data shards has one
    assert float(dram.bandwidth) == pytest.approx(float(reference["dram_bandwidth"][0] / probe.dram_derate[0]))
    assert float(l2.bandwidth) == pytest.approx(float(reference["l2_bandwidth"][0]))
    assert float(system.network[0].bandwidth) == pytest.approx(float(links * reference["link_bandwidth"][0]))


def test_the_documented_budget_loads(tmp_path):
    text = (PROBE.parents[2] / "docs" / "deepflow.md").read_text()
    [documented] = re.findall(r"```yaml\n(system:.*?)```", text, flags=re.DOTALL)
    budget = SPACE[SPACE.index("system:") : SPACE.index("given:")]
    assert space(tmp_path, (budget, documented)).legal.count > 100


def test_a_space_whose_sections_are_wrong_is_told_so(tmp_path):
    with pytest.raises(DseError, match=r"given: expected keys and values"):
        space(tmp_path, ("given: {world_size: 64, global_batch_size: 256}", "given: [64, 256]"))


def test_shares_can_be_pinned_and_the_rest_cannot(tmp_path):
    actual = space(tmp_path)
    assert actual.pinned({"core_fraction": 0.5, "tdp": "700 W"}).legal.count < actual.legal.count
    with pytest.raises(DseError, match=r"no legal design .*; core_fraction can be 0.3, 0.35"):
        actual.pinned({"core_fraction": 0.7, "dram_fraction": 0.3})
    with pytest.raises(DseError, match="fabric_fraction: follows from other names"):
        actual.pinned({"fabric_fraction": 0.1})


@pytest.mark.parametrize(("old", "new", "said"), cases(__file__, "WRONG"))
def test_a_wrong_budget_is_told_in_one_line(tmp_path, old, new, said):
    with pytest.raises(DseError) as raised:
        space(tmp_path, (old, new))
    [line] = str(raised.value).splitlines()
    assert said in line


def test_work_that_costs_no_energy_is_refused(tmp_path):
    base = tmp_path / "free.yaml"
    text = (ROOT / "systems" / "open_chip_pod.yaml").read_text()
    base.write_text(text.replace("energy: {value: 28 pJ/B", "energy: {value: 0 pJ/B"))
    with pytest.raises(DseError, match=r"dram_energy of .* is 0, so that power does not bound dram"):
        space(tmp_path, ("open_chip_pod", "./free.yaml"))
