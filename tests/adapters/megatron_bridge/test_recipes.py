"""Recipes of Megatron-Bridge in Python, as configurations that are read."""

import subprocess
import sys

from dse.launches.launch import read_launch
from tests.support.cases import cases
from tests.support.paths import ROOT


def test_recipes_of_a_checkout_are_the_designs_that_they_state(tmp_path):
    for name, text in cases(__file__, "MODULES").items():
        file = tmp_path / "src/megatron/bridge" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    command = [sys.executable, "-m", "benchmarks.bridge_recipes", tmp_path, tmp_path / "recipes"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    unknown = "gpt9_pretrain_8gpu_b200_bf16_config: not written: model unknown: not built in"
    assert said == f"{unknown}\nwritten 3, not written 1\n"
    for name, columns in cases(__file__, "READ").items():
        launch, _ = read_launch(tmp_path / "recipes/gb200" / f"{name}.yaml", "nemo")
        assert {column: launch[column] for column in columns} == columns
