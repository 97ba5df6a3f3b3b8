"""Megatron-Bridge: configurations in YAML, with the parameters of Megatron Core."""

import re

from dse.registry import Adapter, LaunchForm

_CONFIGURATION = re.compile(
    rb"^model\s*:[ \t\r]*(\n([ \t]+.*|#.*|\r?))*?\n[ \t]+(_target_|\w+_parallel_size)\s*:", re.MULTILINE
)

ADAPTER = Adapter(
    name="megatron_bridge",
    title="Megatron-Bridge",
    files=(
        LaunchForm(
            name="nemo",
            title="a configuration of Megatron-Bridge",
            begins=lambda head: _CONFIGURATION.search(head) is not None,
            order=1,
            ending=".yaml",
            write="dse.adapters.megatron_bridge.launch:script",
            read="dse.adapters.megatron_bridge.launch:read_script",
            rebuilt="dse.adapters.megatron.read:launch_of",
        ),
    ),
)
