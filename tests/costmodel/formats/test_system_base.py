"""System files that change a few constants of another system."""

import re

import numpy as np
import pytest

from costmodel import load_system
from costmodel.errors import DseError
from dse.api.files import compare_systems
from tests.support.cases import cases
from tests.support.commands import stderr_of, stdout_of

CHIP = cases(__file__, "CHIP")


@pytest.fixture
def chip(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mychip.yaml").write_text(CHIP)
    return "./mychip.yaml"


def test_a_file_changes_the_constants_that_it_names_and_no_others(chip):
    table = compare_systems("h100_80g_dgx", chip).set_index("quantity")
    changed = {"clock", "dram_bandwidth", "dram_capacity", "dram_nominal"}
    assert {*table.index} - {"peak_flop_rate", "chip_price", "chip_power"} <= changed
    assert table.loc["clock", chip] == 1.6e9
    assert table.loc["dram_capacity", chip] == 141e9
    system = load_system(chip)
    assert system.name == "mychip"
    assert np.ravel(system.dram.sold_capacity)[0] == 141e9  # no longer the 80 GB that the base is sold with


@pytest.mark.parametrize(("before", "after", "message"), cases(__file__, "a_mistake_gives_one_line"))
def test_a_mistake_gives_one_line(before, after, message, chip, tmp_path):
    (tmp_path / "mychip.yaml").write_text(CHIP.replace(before, after, 1))
    with pytest.raises(DseError, match=re.escape(message)):
        load_system(chip)
    assert len(stderr_of("compare", "h100_80g_dgx", chip).splitlines()) == 1


def test_a_base_of_a_base_is_refused(chip, tmp_path):
    (tmp_path / "other.yaml").write_text("base: ./mychip.yaml\nchip: {clock: 1 GHz}\n")
    with pytest.raises(DseError, match=r"base: \./mychip\.yaml has a base itself"):
        load_system("./other.yaml")


def test_two_files_are_compared(chip):
    assert re.search(r"clock +1\.83 GHz +1\.6 GHz +0\.874", stdout_of("compare", "h100_80g_dgx", chip))
