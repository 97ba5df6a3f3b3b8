"""Every file that ships loads, says where it comes from, and is plausible."""

import time

import numpy as np
import pytest

from costmodel import DseError, load_model, load_system, system_names
from costmodel.formats import shipped
from costmodel.formats.input_files import dump
from costmodel.formats.system_file import KINDS
from costmodel.machine import chip_price, die_area
from costmodel.rules.registry import NATIVE
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate
from dse.spaces.space import Space
from tests.support.cases import cases

# Parameters as the makers print them. [1e9]
PRINTED = {
    "gpt2_xl": 1.5, "gpt_22b": 22, "gpt3_175b": 175, "gpt_530b": 530, "gpt_1t": 1008,
    "llama2_7b": 6.7, "llama2_70b": 69, "llama3_8b": 8.0, "llama3_70b": 70.6, "llama3_405b": 405,
    # Printed for a softmax with hidden_size inputs, of which it has projection_size.
    "lstm_24b": 38.37 - (19968 - 2048) * 800000e-9,
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_a_model_has_as_many_parameters_as_its_name_says(name):
    assert load_model(name).num_parameters / 1e9 == pytest.approx(PRINTED[name], rel=0.04)


# Peak 16-bit dense rate [TFLOP/s], die [mm2], price of a chip [$], as datasheets and the market have them.
MACHINES = cases(__file__, "MACHINES")


@pytest.mark.parametrize("name", MACHINES)
def test_a_system_is_what_its_datasheet_says(name):
    system = load_system(name)
    rate, die, price = MACHINES[name]
    links = sum(tier.bandwidth * tier.price for tier in system.network)
    assert system.chip.peak_flop_rate / 1e12 == pytest.approx(rate, rel=0.01)
    assert die_area(system) * 1e6 == pytest.approx(die, rel=0.01)
    assert chip_price(system) - system.host.price - links == pytest.approx(price, rel=0.02)


@pytest.mark.parametrize("name", system_names())
def test_every_constant_says_where_it_comes_from(name):
    _, _, section = shipped.opened(name, "systems")
    parts = [section.data["chip"], section.data["host"], *section.data["memory"].values()]
    for part in [*parts, *section.data["network"].values()]:
        for constant in part.values():
            assert constant["kind"] in KINDS
            assert len(constant["source"]) > 5
    assert section.data["description"]


WRONG_SYSTEM = cases(__file__, "WRONG_SYSTEM")


@pytest.mark.parametrize(("at", "value", "message"), WRONG_SYSTEM)
def test_a_wrong_system_says_what_is_wrong(tmp_path, at, value, message):
    _, _, section = shipped.opened("a100_80g_dgx", "systems")
    data = section.data
    for key in at[:-1]:
        data = data[key]
    data[at[-1]] = value
    (tmp_path / "own.yaml").write_text(dump(section.data), encoding="utf-8")
    with pytest.raises(DseError) as caught:
        load_system(tmp_path / "own.yaml")
    assert message in str(caught.value)


WRONG_MODEL = cases(__file__, "WRONG_MODEL")


@pytest.mark.parametrize(("keys", "message"), WRONG_MODEL)
def test_a_wrong_model_says_what_is_wrong(tmp_path, keys, message):
    _, _, section = shipped.opened("gpt3_175b", "models")
    (tmp_path / "own.yaml").write_text(dump({**section.data, **keys}), encoding="utf-8")
    with pytest.raises(DseError) as caught:
        load_model(tmp_path / "own.yaml")
    assert message in str(caught.value)


#: Spaces whose columns only some profiles know -> one that does.
PROFILE = {"gpt_1t_4096_dfmodel": "dfmodel-gen1"}


@pytest.mark.parametrize("name", shipped.names("spaces"))
def test_a_space_loads_quickly_and_has_designs_that_fit(name):
    start = time.process_time()
    space = Space.load(name)
    assert space.legal.count >= 1000
    assert time.process_time() - start < 1  # some 20 ms where nothing else runs
    assert Space.from_text(space.text).fingerprint == space.fingerprint
    designs = space.legal.random(500, np.random.default_rng(0))
    actual = evaluate(space, designs, rules=rules_for(space, PROFILE.get(name, NATIVE)))
    assert 0.01 < actual.feasible.mean() < 0.99
    assert np.isfinite(actual.values).all()


def test_the_published_split_of_gpt3_is_among_the_designs():
    """Korthikanti et al. 2022, table 3: tp 8, pp 8, three chunks, micro-batch 1, selective recomputation."""
    space = Space.load("gpt3_175b_1024_a100")
    space = space.pinned({"tp": 8, "pp": 8, "vpp": 3, "micro_batch_size": 1, "sequence_parallel": True,
                          "recompute": "selective", "distributed_optimizer": False})  # fmt: skip
    assert space.legal.count == 1
    [columns] = space.legal.enumerate()
    assert evaluate(space, columns).feasible.all()


def test_unknown_names_get_a_suggestion():
    with pytest.raises(DseError, match="did you mean 'gpt3_175b'"):
        load_model("gpt3_175")
    with pytest.raises(DseError, match="did you mean 'a100_80g_dgx'"):
        load_system("a100_80gb_dgx")
