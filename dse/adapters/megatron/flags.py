"""Arguments of Megatron-LM, from the words of a command or from the log of a run.

`flags.yaml` sorts all arguments of Megatron-LM: those that are read, those that decide nothing of
cost, and those that may change cost and are not read. The last kind, and names in none of the lists, are
named to the user: nothing is passed over because its name is unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import plain_number

DATA: Final[dict[str, Any]] = data_beside(__file__)
#: Names of arguments of each kind that are read.
NUMBERS, SHARES, WORDS, LISTS, ON = (
    tuple(str(DATA[kind]).split()) for kind in ("numbers", "shares", "words", "lists", "switches")
)
_READ: Final = {*NUMBERS, *SHARES, *WORDS, *LISTS, *ON}
_WITHOUT_COST: Final = {*DATA["without_cost"].split()}
_DERIVED: Final = _WITHOUT_COST | {*DATA["derived"].split()}
_FLAGS: Final[dict[str, str]] = DATA["flags"]
NEGATED: Final[dict[str, str]] = DATA["negated"]
_UNSET: Final = "no line of the script sets it; what its caller gives stands in quotes: 'NAME=8 train.sh ARGUMENT'"
#: Value that a statement decides which is not followed: `$(for:12)`, with its line, or `$(for:FILE:12)`.
_DECIDED: Final = re.compile(r"\$\(([a-z-]+):(?:([^:()]+):)?(\d+)\)")
#: The arguments that a run prints, and one of them; lines may begin with the rank.
_PRINTED: Final = re.compile(r"-{3,} arguments -{3,}\s*\n(.*?)-{3,} end of arguments -{3,}", re.DOTALL)
_ARGUMENT: Final = re.compile(r"^(?:\S*\d\S*[:\]] ?)?  ([A-Za-z_]\w*) \.* (.*?)\r?$", re.MULTILINE)
_PADDED: Final = re.compile(r"padded vocab \(size: \d+\).*\(new size: (\d+)\)")


def flag(setting: str) -> str:
    """The flag of a setting."""
    return _FLAGS.get(setting, "--" + setting.replace("_", "-"))


def stated(setting: str, settings: Mapping[str, Any]) -> tuple[str, Any]:
    """The flag that states a setting, and its value; None without the flag."""
    if setting in NEGATED:
        return NEGATED[setting], True if settings.get(setting) is False else None
    return flag(setting), settings.get(setting)


def flag_text(setting: str, value: Any) -> str:
    """A flag with its value, as a shell reads it."""
    if value is True:
        return flag(setting)
    if value is False:
        return NEGATED[setting]
    values = value if isinstance(value, list) else [value]
    return " ".join(
        [flag(setting), *(shlex.quote(f"{item:g}" if isinstance(item, float) else str(item)) for item in values)]
    )


@dataclass
class Flags:
    """Settings of a run, and arguments that are not read."""

    settings: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)  #: argument -> its value, where it has one
    unset: list[str] = field(default_factory=list)  #: variables among the flags that no line of a script sets

    @classmethod
    def of(cls, words: Sequence[str]) -> Flags:
        """The flags of a command, with Megatron-LM's defaults for others.

        Raises `DseError` if a value does not fit its flag or is not known.

        >>> Flags.of(["--batch-size=2", "--swiglu", "--lr", "1e-4", "--fancy", "3"])
        Flags(settings={'micro_batch_size': 2, 'swiglu': True}, unread={'--fancy': '3'}, unset=[])
        """
        kinds = {flag(name): name for name in _READ}
        off = {name: setting for setting, name in NEGATED.items()}
        flags = cls()
        for name, values in _pairs(words):
            argument = name.strip("-").replace("-", "_")
            unknown = next((value for value in values if "$(" in value), "")
            if unknown and argument not in _WITHOUT_COST:
                if decided := _DECIDED.search(unknown):
                    file = decided[2] and f"{decided[2]}: "
                    raise DseError(
                        f"{file or ''}line {decided[3]}: `{decided[1]}` decides {name or 'a word'}, and is not followed"
                    )
                raise DseError(f"{name} {unknown}: the script does not decide it")
            if name in kinds:
                flags.settings[kinds[name]] = cls.value(kinds[name], name, values)
            elif name in off:
                flags.settings[off[name]] = False
            elif name and argument not in _WITHOUT_COST and values[:1] != DATA["not_read"].get(argument):
                flags.unread[name] = " ".join(values)
            takes = name and name not in off and kinds.get(name) not in ON
            flags.unset += [item for item in values[bool(takes) :] if item[:1] == "$" and argument != "data_path"]
        return flags

    @classmethod
    def of_log(cls, text: str) -> Flags | None:
        """The arguments that a run of Megatron-LM printed, the last of several; None if there are none."""
        printed = _PRINTED.findall(text)
        if not printed:
            return None
        flags, names = cls(), DATA["in_a_log"]
        for argument, value in _ARGUMENT.findall(printed[-1]):
            name = names.get(argument, argument)
            if name in NEGATED or name in ON:
                flags.settings |= {name: value == "True"} if name in NEGATED or value == "True" else {}
            elif name in _READ and value != "None":
                flags.settings[name] = cls.value(name, name, _values(name, value))
            elif name == "world_size":
                flags.settings[name] = int(value)
            elif name not in _READ | _DERIVED and value not in DATA["not_read"].get(name, ("None", "False")):
                flags.unread[name] = value
        if padded := _PADDED.findall(text):
            flags.settings["padded_vocab_size"] = int(padded[-1])
        return flags

    @property
    def notes(self) -> list[str]:
        """A line for variables that are read as empty, and one for arguments that are not read."""
        unset = [f"no line of the script sets {' '.join(self.unset)}: read as empty"] if self.unset else []
        return unset + ([f"not read: {' '.join(self.unread)}"] if self.unread else [])

    def changes(self, other: Flags) -> list[str]:
        """Flags of others that differ from these, as a shell reads them."""
        these, theirs = ({**side.unread, **side.settings} for side in (self, other))
        names = [name for name in {**these, **theirs} if these.get(name) != theirs.get(name)]
        return [
            f"no {name if name in self.unread else flag(name)}" if name not in theirs
            else f"{name} {theirs[name]}".strip() if name in other.unread else flag_text(name, theirs[name])
            for name in names
        ]  # fmt: skip

    @staticmethod
    def value(setting: str, name: str, values: Sequence[str]) -> Any:
        """The value of a flag."""
        if setting in ON:
            return True
        if setting in LISTS:
            return list(values)
        if not values:
            raise DseError(f"{name}: expected a value")
        unset = f" ({_UNSET})" if "$" in values[0] else ""
        if setting in WORDS and not unset:
            return values[0]
        try:
            number = plain_number(values[0])
        except ValueError:
            kind = "word" if setting in WORDS else "number"
            raise DseError(f"{name} {values[0]}: expected a {kind}{unset}") from None
        whole = setting in NUMBERS
        if not 0 <= number < 2**53 or (whole and not number.is_integer()):
            raise DseError(f"{name} {values[0]}: expected {'a whole number' if whole else 'a number'} from 0")
        return int(number) if whole else number


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Flags of today with their values; words before the first flag belong to the flag ""."""
    pairs: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", "")
        if not name:
            pairs[-1][1].append(word)
            continue
        for argument in DATA["earlier"].get(name, name).split():
            pairs += [(argument, [])] if argument.startswith("--") else []
            pairs[-1][1].extend([] if argument.startswith("--") else [argument])
        pairs[-1][1].extend([value] if equals else [])
    return iter(pairs)


def _values(name: str, text: str) -> list[str]:
    """Words of a value as a log prints it: lists of Python, members of enumerations, formats of PyTorch."""
    if text.startswith("[") and name != "moe_layer_freq":
        return re.findall(r"[^][',\s]+", text)
    word = re.sub(r"^(torch|AttnBackend)\.", "", text)
    return [{"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(word, word)]
