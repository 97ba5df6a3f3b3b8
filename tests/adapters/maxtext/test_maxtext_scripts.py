"""Scripts that start MaxText: `base.yml KEY=VALUE ...`, alone or in a command for xpk."""

from dataclasses import replace
from math import prod

import pytest
import yaml

from costmodel import DseError, load_model
from dse.adapters.maxtext.launch import keys_model, read_script, script
from dse.launches.launch import Launch, read_launch
from dse.registry import recognized
from tests.support.cases import cases

RUN = "python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml"
#: As the recipes of AI-Hypercomputer/tpu-recipes, training/ironwood: a batch of 256 on 64 chips of two devices each.
XPK = f"""
export WORKLOAD="$(date)-llama"
MAXTEXT_ARGS="model_name=llama3.1-70b per_device_batch_size=2 ici_fsdp_parallelism=-1 max_target_length=8192 \\
  remat_policy=custom decoder_layer_input=offload mu_dtype=bfloat16 run_name=$WORKLOAD sa_block_q=1024"
xpk workload create --device-type=tpu7x-4x4x4 --num-slices=1 --workload=$WORKLOAD \\
  --command="set -e && export LIBTPU_INIT_ARGS='--xla_flag=1' && {RUN} ${{MAXTEXT_ARGS}} | tee train.log"
"""


def written(tmp_path, text, name="run.sh"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_a_recipe_for_xpk_has_the_batch_that_its_authors_publish(tmp_path):
    path = written(tmp_path, XPK)
    launch, notes = read_launch(path, recognized(path).name)
    assert (launch.framework, launch.world_size, launch.global_batch_size) == ("maxtext", 64, 256)
    assert (launch.model.num_layers, launch.model.seq_len, launch["offload_activations"]) == (80, 8192, 1)
    assert any("2 devices for each chip" in note for note in notes)
    assert "not read: mu_dtype=bfloat16" in notes


def test_a_command_with_two_slices_and_variables_of_its_caller(tmp_path):
    keys = "per_device_batch_size=$BATCH dataset_path=$DATA ici_expert_parallelism=4 base_num_decoder_layers=9"
    path = written(tmp_path, f"{RUN} model_name=deepseek3-671b {keys}")
    with pytest.raises(DseError, match=r"line 1: per_device_batch_size \$BATCH: no line of the script sets it"):
        read_script(path, 64)
    launch, _ = read_script(type(path)(f"BATCH=4 {path}"), 64)
    assert [launch[name] for name in ("ep", "dp", "micro_batch_size")] == [4, 64, 4]
    assert (launch.model.mtp_layers, launch.model.num_layers) == (0, 9)
    scaled = f"xpk --tpu-type=v5p-128 --num-slices=2 --command='{RUN} global_parameter_scale=16'"
    launch, _ = read_script(written(tmp_path, scaled))
    assert (launch.world_size, launch["shard_replicas"], launch["micro_batch_size"]) == (128, 2, 12)
    assert launch.model.num_parameters == pytest.approx(16e9, rel=0.02)  # configs/tpu/v5e/16b.sh


@pytest.mark.parametrize(("keys", "message"), cases(__file__, "REFUSED"))
def test_settings_that_are_not_understood_are_refused(tmp_path, keys, message):
    with pytest.raises(DseError, match=message):
        read_script(written(tmp_path, f"{RUN} {keys}"), 8)
    with pytest.raises(DseError, match=r"it reads mine.yml, which is not there"):
        read_script(written(tmp_path, f"python3 -m MaxText.train mine.yml {keys}"), 8)


@pytest.mark.parametrize(("name", "model"), cases(__file__, "MODELS").items())
def test_names_of_models(name, model):
    assert keys_model({"model_name": name}, name).num_parameters == load_model(model).num_parameters


@pytest.mark.parametrize(("tp", "micro", "axis"), [(1, 1, "tensor"), (1, 2, "fsdp"), (2, 2, "tensor")])
def test_a_mesh_has_all_devices_of_each_chip(tmp_path, tp, micro, axis):
    """Two of TPU v7: neighbours on the innermost axis, or with sequences for each."""
    run = Launch.of(load_model("llama2_7b"), {"tp": tp, "dp": 8, "zero": 3, "micro_batch_size": micro}, 9216)
    text, _ = script(replace(run, devices=2))
    sizes = {key: size for key, size in yaml.safe_load(text).items() if key.endswith("_parallelism")}
    assert (prod(sizes.values()), sizes[f"ici_{axis}_parallelism"]) == (16 * tp, 2 * (tp if axis == "tensor" else 8))
    read, _ = read_script(written(tmp_path, text, "run.yml"))
    assert [read[name] for name in ("tp", "dp", "zero", "micro_batch_size")] == [tp, 8, 3, micro]


def test_inputs_of_layers_on_hosts_come_back(tmp_path):
    of_hosts = {"recompute": "full", "offload_activations": 1.0, "zero": 3, "dp": 8, "cross_entropy": "xla"}
    text, lost = script(Launch.of(load_model("llama2_7b"), of_hosts, 8))
    assert not any("offload" in one for one in lost)
    assert read_script(written(tmp_path, text, "run.yml"))[0]["offload_activations"] == 1
