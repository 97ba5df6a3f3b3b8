"""XLA: the text that it prints of a compiled program (HLO), read without XLA and evaluated by the native model.

Rooms in the order in which they are read; those on one line do not know each other:

    text
    work
    buffers
    training
    analysis
    summary
    steps
    hlo
    workload, report, options
    command
"""

from dse.registry import Adapter, ProgramSource, WorkloadKind


def _is_module(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"HloModule")


def _other_output(head: bytes) -> str:
    from dse.adapters.xla.text.parser import other_text

    return other_text(head) or ""


ADAPTER = Adapter(
    name="xla",
    title="XLA",
    files=(
        WorkloadKind(
            name="hlo",
            title="an HLO module",
            begins=_is_module,
            profile=lambda path: "native",
            run="dse.adapters.xla.command:run",
            record="dse.adapters.xla.command:record",
            formats=("table", "json", "trace", "html"),
            options="dse.adapters.xla.options:add_options",
            defaults={"system": None, "barriers": "barrier", "output": None},
        ),
    ),
    programs=(
        ProgramSource(
            key="hlo",
            schema="program/v1",
            data="dse.adapters.xla.workload:program_file",
            read="dse.adapters.xla.workload:read_program",
        ),
    ),
    other_output=_other_output,
)
