"""torchtitan: configurations in Python.

Rooms in the order in which they are read; those on one line do not know each other:

    python_calls
    models
    design
    launch
"""

from dse.registry import Adapter, LaunchForm

ADAPTER = Adapter(
    name="torchtitan",
    title="torchtitan",
    files=(
        LaunchForm(
            name="torchtitan",
            title="a configuration of torchtitan",
            begins=lambda head: False,
            endings=(".py", ".toml"),
            ending=".py",
            write="dse.adapters.torchtitan.launch:script",
            read="dse.adapters.torchtitan.launch:read_script",
        ),
    ),
)
