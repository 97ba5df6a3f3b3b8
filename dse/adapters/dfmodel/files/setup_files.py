"""DFModel's files, text and binary, of the generations whose blocks differ.

The format has no version. Each generation has a root message (`ROOTS`), which the name of the block on the run tells in
a text: `training`, `miscellany`, or `execution` with or without the fields of the third. A binary file has numbers in
place of names, so that the first three look alike. Set-ups of the oldest generation are turned into the first.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import file_bytes

#: A set-up: SetupGen1, SetupGen2 or SetupGen3. Classes are made of the schema as it is read, hence untyped.
Message = Any

[_FILE] = FileDescriptorSet.FromString(files(__package__).joinpath("schema.binpb").read_bytes()).file
#: Name -> descriptor of each message of the schema.
_MESSAGES: Final = descriptor_pool.Default().AddSerializedFile(_FILE.SerializeToString()).message_types_by_name

#: Generation of the cost model -> the root message of its files; files without marks count as the last of a root.
ROOTS: Final = {
    "gen0": "SetupGen0", "gen1b": "SetupGen1", "gen1": "SetupGen1", "gen2a": "SetupGen2", "gen2b": "SetupGen3",
    "gen4": "SetupGen3", "gen5": "SetupGen3", "gen3": "SetupGen3",
}  # fmt: skip

#: Largest file that is read: the parser needs some microseconds and 170 bytes for each. [B]
LARGEST: Final = 1 << 20
#: Marks of a text file.
_BLOCK = re.compile(
    r"^[^\S\n]*(dataflow_graph|system|cost|miscellany|execution|training|gurobi)\s*(?::\s*)?\{", re.MULTILINE
)
_SCHEMA = re.compile(r"^[^\S\n]*schema\s*:", re.MULTILINE)  # of a YAML file, whose lists may open with a brace
#: Strings and comments, where no mark counts.
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|#[^\n]*")
_RUN = re.compile(r"\b(execution|training)\s*(?::\s*)?\{")
_GEN3 = re.compile(r"\b(overlap|separate_rs_ag_for_ar|skip_inter_chip_optimization|optimization)\s*:")

_AT = re.compile(r"^(\d+):(\d+) : (.*)$", re.DOTALL)
_UNKNOWN = re.compile(r'Message type "costmodel\.dfmodel\.(\w+)" has no field named "(\w+)"')


def is_setup(data: bytes) -> bool:
    """True if the content of a file looks like a set-up of DFModel, as text or binary."""
    text = as_text(data)
    return bool(data) if text is None else _BLOCK.search(text) is not None and not _SCHEMA.search(text)


def profile_of(path: Path) -> str:
    """The profile of the generation that the content of a file asks for; without marks of the fourth, the third."""
    message = load_setup(path)
    if _is_latest(message):
        run = message.execution
        return "dfmodel-gen5" if run.optimization or run.turn_off_p_and_r else "dfmodel-gen4"
    generations = {root: generation for generation, root in ROOTS.items()}
    return f"dfmodel-{generations[type(message).__name__]}"


def _is_latest(message: Message) -> bool:
    """True if a set-up has fields of the latest generations alone."""
    if type(message).__name__ != ROOTS["gen4"]:
        return False
    run, kernels = message.execution, message.dataflow_graph.kernels
    parts = [getattr(kernel, kernel.WhichOneof("variant")) for kernel in kernels if kernel.WhichOneof("variant")]
    extra = any(part.sram_extra or part.dram_extra for part in parts)
    stated = (run.effective_stage, run.skip_inter_chip_optimization, run.optimization, run.turn_off_p_and_r)
    return any((extra, *stated))


def load_setup(path: Path) -> Message:
    """The set-up in a text or binary file.

    A binary file of the first three generations only shows that its number 16 is set: it is read as `miscellany`,
    unless it holds fields that only the third generation has.

    Raises `DseError` with line and column of a mistake in text, or the number of an unknown field in binary.
    """
    data = file_bytes(path, LARGEST)
    text = as_text(data)
    return _from_bytes(data, str(path)) if text is None else _from_text(text, str(path))


def empty_setup(root: str) -> Message:
    """A set-up without content, of a root message of `ROOTS`."""
    return message_factory.GetMessageClass(_MESSAGES[root])()


def setup_text(message: Message) -> str:
    """A set-up as text; negative zeros keep their sign."""
    return str(text_format.MessageToString(message))


def setup_bytes(message: Message) -> bytes:
    """Binary file of a set-up."""
    return bytes(message.SerializeToString(deterministic=True))


def first_generation(message: Message) -> Message:
    """One of the oldest set-ups with the blocks of the first generation; everything overlaps by default.

    A single chip is a ring of one. Tensors and weights that take no memory move no bytes.
    """
    old, new = message.training, empty_setup(ROOTS["gen1"])
    workload = old.WhichOneof("workload_variant") or "llm"
    new.dataflow_graph.CopyFrom(message.dataflow_graph)
    new.cost.CopyFrom(message.cost)
    topology = message.system.WhichOneof("topology_variant")
    if topology == "single_chip":
        new.system.r.x, new.system.r.link_bw_x = 1, 1.0
    elif topology:
        getattr(new.system, topology).CopyFrom(getattr(message.system, topology))
    run, accelerator = new.miscellany, message.system.accelerator
    for source, target in (
        (message.system, new.system),
        (accelerator, new.system.accelerator),
        (accelerator, new.system.memory),
        (old, run),
        (old, getattr(run, workload)),
        (getattr(old, workload), getattr(run, workload)),
    ):
        for field, value in source.ListFields():
            if field.message_type is None and field.name in target.DESCRIPTOR.fields_by_name:
                setattr(target, field.name, value)
    if workload == "llm":
        run.llm.tile_size = old.llm.seq_tile_size
    elif workload == "dlrm":
        run.dlrm.emb_dim = old.dlrm.emb
    for edge in new.dataflow_graph.connections:
        edge.zero_out |= old.skip_intermediate_buffer
    for kernel in new.dataflow_graph.kernels:
        getattr(kernel, kernel.WhichOneof("variant")).skip_weight |= old.skip_initiation_buffer
    run.execution_style = old.optimization
    run.perfect_overlap = old.perfect_overlap or not old.HasField("perfect_overlap")
    return new


def as_text(data: bytes) -> str | None:
    """The content as text; None where it is binary."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[^\S\n\r\t ]|[\x00-\x08\x0e-\x1f]", text) else text


def _from_text(text: str, where: str) -> Message:
    plain, root = _QUOTED.sub("", text), ROOTS["gen1"]
    run = _RUN.search(plain)
    if run is not None:
        root = ROOTS["gen0" if run[1] == "training" else "gen3" if _GEN3.search(plain, run.end()) else "gen2a"]
    try:
        return text_format.Parse(text, empty_setup(root))
    except text_format.ParseError as error:
        raise DseError(f"{where}: {_explained(str(error))}") from error
    except ValueError as error:  # a number outside its type, which the parser does not place
        raise DseError(f"{where}: {error}; expected a code of the format") from error


def _explained(error: str) -> str:
    """The parser's message: position, mistake, and a remedy."""
    match = _AT.match(error)
    line, column, what = match.groups() if match else ("", "", error)
    if unknown := _UNKNOWN.search(what):
        kind, name = unknown.groups()
        known = _MESSAGES[kind].fields_by_name
        what = f"{kind} has no field {name!r}{suggestion(name, known)}"
    else:
        what = " ".join(what.splitlines()).rstrip(".").replace("costmodel.dfmodel.", "")
    return f"line {line}, column {column}: {what}" if match else what


def _from_bytes(data: bytes, where: str) -> Message:
    try:
        message = empty_setup("SetupGen3").FromString(data)
        run = message.execution
        newer = run.overlap > 1 or run.separate_rs_ag_for_ar or _is_latest(message)
        message = message if newer else empty_setup(ROOTS["gen1"]).FromString(data)
    except DecodeError as error:
        raise DseError(f"{where}: neither text nor a whole binary set-up of DFModel") from error
    if unknown := _unknown_fields(message, ""):
        raise DseError(f"{where}: no such field: {', '.join(unknown)}")
    return message


def _unknown_fields(message: Message, where: str) -> list[str]:
    """Numbers of the fields that the schema lacks, with the way to them."""
    unknown = [f"{where}{field.field_number}" for field in UnknownFieldSet(message)]
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                unknown += _unknown_fields(inner, f"{where}{descriptor.name}.")
    return list(dict.fromkeys(unknown))
