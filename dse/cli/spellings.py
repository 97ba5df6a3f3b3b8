"""Earlier and usual spellings of commands and options, translated before the arguments are parsed."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

#: Earlier command -> its present form.
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "cost": ["evaluate"],
    "price": ["evaluate"],
    "fit": ["evaluate", "--fit"],
    "sensitivity": ["explain", "--sensitivity"],
    "importance": ["explain", "--importance"],
    "pareto": ["show"],
    "trials": ["show", "--trials"],
    "check": ["studies", "--check"],
    "delete": ["studies", "--delete"],
    "dashboard": ["studies", "--dashboard"],
    **{kind: ["list", kind] for kind in ("models", "systems", "spaces", "frameworks", "columns")},
}

#: Option without a value -> a value of ``--format``.
FORMATS: Final = {"--json": "json", "--csv": "csv", "--parquet": "parquet", "--table": "table"}

#: Options of work that dse does not evaluate.
NOT_COVERED: Final = ("--lora", "--qlora", "--peft", "--adapter", "--adapters")

#: What spaces hold fixed and ``--set`` changes.
GIVEN: Final = ("global_batch_size", "seq_len", "world_size")


def current_command(words: Sequence[str]) -> list[str]:
    """Arguments with the present name of their command.

    >>> current_command(["trials", "gpt3"]), current_command(["help", "plan"]), current_command(["help"])
    (['show', '--trials', 'gpt3'], ['plan', '--help'], ['--help'])
    """
    if words and words[0] == "help":
        return [*current_command(words[1:2]), "--help"]
    return [*COMMANDS.get(words[0], words[:1]), *words[1:]] if words else []


def current_options(words: Sequence[str], known: Collection[str]) -> list[str]:
    """Arguments with the present names of their options; `known` are those of the command.

    A column of designs becomes ``--set``, where the command has it.

    >>> current_options(["--seq", "8k", "--tp=8", "--json"], {"--seq-len", "--set", "--format"})
    ['--seq-len', '8k', '--set', 'tp=8', '--format', 'json']
    """
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not name.startswith("-") or name in known:
            found.append(word)
        elif target := usual_option(name, known):
            found += [target, value] if equals else [target]
        elif name in FORMATS and "--format" in known:
            found += ["--format", FORMATS[name]]
        elif "--set" in known and (column := design_column(name)):
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("-") else "true"
            found += ["--set", f"{column}={value}"]
        else:
            found.append(word)
    return found


def usual_option(option: str, known: Collection[str]) -> str:
    """The option of a command that a usual spelling stands for; "" if there is none."""
    from costmodel.formats.shipped import spellings

    return next((own for own in spellings("options").get(option, "").split() if own in known), "")


def design_column(option: str) -> str:
    """The column of designs that an option such as ``--micro-batch-size`` names; "" if it names none."""
    from costmodel.formats.shipped import spellings
    from costmodel.training.design import DesignPoints

    name = option.lstrip("-").replace("-", "_").lower()
    name = spellings("columns").get(name, name)
    known = {*DesignPoints.__dataclass_fields__, *DesignPoints.aliases, *GIVEN}
    return name if option.startswith("--") and name in known else ""


def option_hint(option: str, known: Collection[str]) -> str:
    """The way on from an option that `current_options` does not understand."""
    if option == "--system":
        return ": a space names its system. `dse plan MODEL --gpus N --system S` plans on another one"
    if option in NOT_COVERED:
        return ": dse evaluates training of all weights, without adapters such as LoRA"
    near_names = sorted(own.strip("-") for own in known)
    near = difflib.get_close_matches(option.partition("=")[0].strip("-"), near_names, n=1)
    return f"; did you mean {'--' if len(near[0]) > 1 else '-'}{near[0]}?" if near else ""
