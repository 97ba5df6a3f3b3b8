"""DFModel: a transformer layer as a dataflow graph, sharded, tiled and fused on chips [Ko2024]_.

A profile over the shared solver. Where a rule of the reference is odd, the profile keeps it and says so.

Rooms in the order in which they are read; those on one line do not know each other:

    graph, setup, options
    layer, network, cores
    design, evaluation, assigned
    mapping, files
    rules
    report
    export, command
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from costmodel.rules.registry import Profile
from costmodel.rules.rules import Rules
from dse.registry import Adapter, WorkloadKind

#: Generations of the program, as their profiles are described.
GENERATIONS = {
    "gen1": "first generation",
    "gen2a": "second generation, before March 2024",
    "gen2b": "second generation",
    "gen3": "third generation",
}


def _is_setup(head: bytes) -> bool:
    from dse.adapters.dfmodel.files.setup_files import is_setup

    return is_setup(head)


def _generation(path: Path) -> str:
    """The profile of the generation that a file's content asks for, the later of two."""
    from dse.adapters.dfmodel.files.setup_files import ROOTS, load_setup

    generations = {root: generation for generation, root in ROOTS.items()}
    return f"dfmodel-{generations[type(load_setup(path)).__name__]}"


def _rules(generation: str) -> Sequence[Rules[Any]]:
    from dse.adapters.dfmodel.rules import rules_of

    return rules_of(generation)


def _profile(name: str, about: str) -> Profile:
    columns = ("topology", "tile_size", "overlap", "execution")
    about, rules = f"DFModel, {about}", partial(_rules, name)
    return Profile(f"dfmodel-{name}", about, "dfmodel", rules, name, works=("training",), own_columns=columns)


ADAPTER = Adapter(
    name="dfmodel",
    title="DFModel",
    files=(
        WorkloadKind(
            name="dfmodel",
            title="a DFModel set-up",
            begins=_is_setup,
            order=3,
            profile=_generation,
            run="dse.adapters.dfmodel.command:run",
            record="dse.adapters.dfmodel.command:record",
            formats=("table", "json"),
            options="dse.adapters.dfmodel.options:add_options",
            defaults={"resolve": False, "prefer": None, "groups": None, "tile_size": None},
        ),
    ),
    exports={"dfmodel": ".txt", "dfmodel-binary": ".pb"},
    write="dse.adapters.dfmodel.export:setups",
    design="dse.adapters.dfmodel.design:DataflowDesign",
    profiles=tuple(_profile(name, about) for name, about in GENERATIONS.items()),
)
