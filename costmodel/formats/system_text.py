"""System files with some constants replaced: all other text stays as it is, comments too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from costmodel.columns import column_units
from costmodel.formats.quantity import readable
from costmodel.formats.strict_yaml import parse
from costmodel.formats.system_file import read_system
from costmodel.machine.system import System

#: Digits of a constant that is written.
DIGITS: Final = 4


def quantity_place(system: System, quantity: str) -> tuple[str, ...]:
    """Keys of a system file under which a quantity stands: ``("network", "node", "latency")``."""
    levels, tiers = ({part.name for part in parts} for parts in (system.memory, system.network))
    for prefix, part in system.parts().items():
        name = quantity.removeprefix(prefix)
        if quantity.startswith(prefix) and name in column_units(type(part)):
            key = prefix.removesuffix("_")
            above = ("memory",) if key in levels else ("network",) if key in tiers else ()
            return (*above, key or "chip", name)
    raise KeyError(quantity)


def written(value: float, unit: str) -> str:
    """A constant as files write it.

    >>> written(0.81234567, "-"), written(3.21987e-6, "s")
    ('0.8123', '3.220 us')
    """
    return readable(value, unit, digits=DIGITS)


def with_constants(
    text: str, name: str, constants: Mapping[tuple[str, ...], Mapping[str, str]], description: str
) -> str:
    """The text of a system file with other constants in it.

    Parameters
    ----------
    text : str
        Of a file that loads.
    name : str
        Of the file, for messages.
    constants : mapping of tuple of str to mapping of str to str
        Place of each (`quantity_place`) and what stands there: value, kind, source, perhaps standard_error.
        One that the file has not is added to its part.
    description : str
        What the file says that it is.

    Raises
    ------
    DseError
        If what comes of it does not load.
    """
    for place, constant in constants.items():
        flow = ", ".join(f"{key}: {_scalar(key, value)}" for key, value in constant.items())
        text = _placed(text, place, f"{{{flow}}}")
    text = _placed(text, ("description",), _scalar("source", description))
    section = parse(text, name)
    read_system(section, name)
    section.source.finish()
    return text


def _scalar(key: str, value: str) -> str:
    """A word or a quantity as it is, a sentence in quotes."""
    if key != "source":
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _placed(text: str, place: tuple[str, ...], value: str) -> str:
    """The text with a value at a place, which is made if there is none."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(place):
        found = next((own for name, own in node.value if name.value == key), None)
        if found is None:
            return _added(text, node, place[depth:], value)
        node = found
    return text[: node.start_mark.index] + value + text[_end(node) :]


def _added(text: str, mapping: Any, keys: tuple[str, ...], value: str) -> str:
    """The text with a value below keys that a mapping has not, at its end."""
    for key in reversed(keys[1:]):
        value = f"{{{key}: {value}}}"
    end = _end(mapping)
    if mapping.flow_style:
        comma = ", " if mapping.value else ""
        return f"{text[: end - 1]}{comma}{keys[0]}: {value}{text[end - 1 :]}"
    indent = " " * mapping.value[0][0].start_mark.column
    line = text.find("\n", end)
    rest = text[line:] if line >= 0 else "\n"
    return f"{text[: line if line >= 0 else len(text)]}\n{indent}{keys[0]}: {value}{rest}"


def _end(node: Any) -> int:
    """Where the text of a node ends: a block's marks count what follows it, comments too."""
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return int(node.end_mark.index)
    return _end(node.value[-1][1])
