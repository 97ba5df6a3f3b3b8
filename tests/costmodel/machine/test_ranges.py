"""Impossible quantities are refused wherever they are given, in a line with the range: `matrix_efficiency: 5`."""

import numpy as np
import pytest
import yaml

from costmodel import Chip, load_system
from costmodel.errors import DseError
from costmodel.formats.system_file import system_names
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.commands import stderr_of

#: What a space says, and the message.
WRONG = cases(__file__, "WRONG")


@pytest.mark.parametrize(("said", "message"), WRONG)
def test_a_space_cannot_open_what_cannot_be(said, message, small_space):
    data = yaml.safe_load(small_space)
    said = {key: values | data.get(key, {}) if key != "parameters" else values for key, values in said.items()}
    with pytest.raises(DseError) as caught:
        Space.from_data({**data, **said}).legal.random(1, np.random.default_rng(0))
    assert message in str(caught.value)


def test_neither_can_a_command_a_framework_or_python(tmp_path, small_space):
    error = stderr_of("evaluate", "gpt3_175b_1024_a100", "--set", "matrix_efficiency=5")
    assert "matrix_efficiency: 5: expected a share, at most 1" in error
    (tmp_path / "mine.yaml").write_text(
        "schema: framework/v1\ndescription: wrong\n"
        "given: {software_blocking_launches: {value: 3, kind: assumed, source: a guess}}\n"
    )
    data = yaml.safe_load(small_space)
    with pytest.raises(DseError, match="software_blocking_launches: 3: expected a share"):
        Space.from_data({**data, "framework": str(tmp_path / "mine.yaml")})
    chip = {name: float(values) for name, values in load_system("a100_80g_dgx").chip.columns().items()}
    with pytest.raises(DseError, match=r"Chip: sustained: 1\.25: expected a share, at most 1"):
        Chip.of(**chip | {"sustained": [0.9, 1.25]})


@pytest.mark.parametrize("name", system_names())
def test_every_system_that_ships_is_in_range(name):
    system = load_system(name)
    ranges = system.ranges()
    assert ranges.keys() == system.units().keys()
    assert all(ranges[quantity].holds(values).all() for quantity, values in system.quantities().items())
