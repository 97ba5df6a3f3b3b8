"""MaxText: configurations in YAML."""

import re

from dse.registry import Adapter, LaunchForm

_CONFIGURATION = re.compile(rb"^['\"]?(ici_|dcn_|base_)\w+['\"]?\s*:", re.MULTILINE)

ADAPTER = Adapter(
    name="maxtext",
    title="MaxText",
    files=(
        LaunchForm(
            name="maxtext",
            title="a configuration of MaxText",
            begins=lambda head: _CONFIGURATION.search(head) is not None,
            ending=".yml",
            write="dse.adapters.maxtext.launch:script",
            read="dse.adapters.maxtext.launch:read_script",
        ),
    ),
)
