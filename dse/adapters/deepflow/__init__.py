"""DeepFlow's first generation (2019): an LSTM language model on hardware made from a power budget.

A profile over the shared formulas. Where a rule of the reference is odd, the profile keeps it, says so
in a line, and the native model does the right thing.
"""

import re

from costmodel.rules.registry import Profile
from dse.registry import Adapter, WorkloadKind


def _is_configuration(head: bytes) -> bool:
    return re.search(rb"^[ \t]*schema\s*:\s*['\"]?deepflow", head, re.MULTILINE) is not None


def _other_output(head: bytes) -> str:
    if not re.search(rb"^(inflection_point|comp_int): ", head, re.MULTILINE):
        return ""
    return (
        "is a log that DeepFlow printed; give its run's configuration, a YAML file of schema deepflow/v1 "
        "(docs/deepflow.md)"
    )


ADAPTER = Adapter(
    name="deepflow",
    title="DeepFlow",
    files=(
        WorkloadKind(
            name="deepflow",
            title="a DeepFlow configuration",
            begins=_is_configuration,
            profile=lambda path: "deepflow",
            run="dse.adapters.deepflow.command:run",
            record="dse.adapters.deepflow.command:record",
            formats=("table", "json"),
        ),
    ),
    profiles=(Profile("deepflow", "DeepFlow, first generation", "deepflow"),),
    other_output=_other_output,
)
