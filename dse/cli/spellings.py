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
    "exact": ["enumerate"],
    **{kind: ["list", kind] for kind in ("models", "systems", "spaces", "frameworks", "columns")},
}

#: Option that people type -> options of ours, the first of which the command has.
OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("--seq", "--seq-length", "--sequence-length", "--context"), ("--seq-len",)),
    **dict.fromkeys(("--batch", "--gbs", "--batch-size"), ("--global-batch-size",)),
    **dict.fromkeys(("--num-gpus", "--ngpus", "--n-gpus", "--chips", "--world-size"), ("--gpus",)),
    **dict.fromkeys(("--hw", "--hardware", "--machine", "--cluster", "--gpu"), ("--system",)),
    **dict.fromkeys(("--trials", "--n-trials", "--num-trials", "--iterations"), ("--budget",)),
    **dict.fromkeys(("--limit", "--constraint", "--where", "--filter"), ("--focus", "--where")),
    **dict.fromkeys(("--dtype", "--format-of-products", "--prec"), ("--precision",)),
    **dict.fromkeys(("--objectives", "--optimize", "--minimize"), ("--objective",)),
    **dict.fromkeys(("--output", "--out", "--file"), ("--output", "--out", "-o")),
    **dict.fromkeys(("--days", "--max-time"), ("--max-days",)),
    **dict.fromkeys(("--gpu-price", "--gpu-hour", "--price", "--rent"), ("--gpu-hour-price",)),
    **dict.fromkeys(("--order", "--order-by", "--sort-by"), ("--sort",)),
    **dict.fromkeys(("--head", "-n", "--rows", "--limit-rows"), ("--top",)),
    **dict.fromkeys(("--cols", "--column"), ("--columns",)),
    **dict.fromkeys(("--mfu",), ("--measured-mfu",)),
    **dict.fromkeys(("--step-time",), ("--measured-step-time",)),
    **dict.fromkeys(("--db", "--database"), ("--storage",)),
    **dict.fromkeys(("-j", "--workers", "--processes"), ("--jobs",)),
    **dict.fromkeys(("--token",), ("--tokens",)),
    **dict.fromkeys(("-f",), ("--format",)),
}

#: Option without a value -> a value of ``--format``.
FORMATS: Final = {"--json": "json", "--csv": "csv", "--parquet": "parquet", "--table": "table"}

#: Short name of a column of designs -> its name.
COLUMNS: Final = {
    "mbs": "micro_batch_size",
    "micro_batch": "micro_batch_size",
    "gbs": "global_batch_size",
    "batch": "global_batch_size",
    "seq": "seq_len",
    "seq_length": "seq_len",
    "ga": "gradient_accumulation_steps",
    "gas": "gradient_accumulation_steps",
    "grad_accum": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps",
    "num_microbatches": "gradient_accumulation_steps",
    "sp": "sequence_parallel",
    "zero_stage": "zero",
    "recomputation": "recompute",
    "tensor_parallel": "tp",
    "tensor_model_parallel_size": "tp",
    "pipeline_parallel": "pp",
    "pipeline_model_parallel_size": "pp",
    "data_parallel": "dp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}

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
        if word == "--":
            return [*found, word, *rest]
        if not name.startswith("-") or name in known:
            found.append(word)
        elif target := next((own for own in OPTIONS.get(name, ()) if own in known), ""):
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


def design_column(option: str) -> str:
    """The column of designs that an option such as ``--micro-batch-size`` names; "" if it names none."""
    name = option.lstrip("-").replace("-", "_").lower()
    name = COLUMNS.get(name, name)
    from costmodel.training.design import DesignPoints

    known = {*DesignPoints.__dataclass_fields__, *DesignPoints.aliases, *GIVEN}
    return name if option.startswith("--") and name in known else ""


def option_hint(option: str, known: Collection[str]) -> str:
    """What to type in place of an option that a command does not have."""
    if target := next((own for own in OPTIONS.get(option, ()) if own in known), ""):
        return f"; did you mean {target}?"
    if "--set" in known and design_column(option):
        return f"; use --set {design_column(option)}=VALUE"
    near = difflib.get_close_matches(option.partition("=")[0], sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
