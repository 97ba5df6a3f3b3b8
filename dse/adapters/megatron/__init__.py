"""Megatron-LM: launch scripts, and the arguments that it prints in its log.

Rooms in the order in which they are read; those on one line do not know each other:

    flags, model, shell
    design, command
    read
    launch
"""

import re

from dse.registry import Adapter, LaunchForm

_SCRIPT = re.compile(
    rb"--(tensor-model-parallel-size|num-layers|micro-batch-size)\b|pretrain_\w+\.py|\btorchrun\b|"
    rb"\bdeepspeed\b|\bsrun\b|--- (end of )?arguments ---|^[ \t]*tensor_model_parallel_size \.\.\.",
    re.MULTILINE,
)

ADAPTER = Adapter(
    name="megatron",
    title="Megatron-LM",
    files=(
        LaunchForm(
            name="megatron",
            title="a launch script of Megatron-LM",
            begins=lambda head: _SCRIPT.search(head) is not None,
            order=2,
            usual_endings=(".sh", ".sbatch", ".slurm"),
            ending=".sh",
            write="dse.adapters.megatron.launch:script",
            read="dse.adapters.megatron.launch:read_script",
            stated="dse.adapters.megatron.flags:stated",
            rebuilt="dse.adapters.megatron.read:launch_of",
        ),
    ),
)
