"""Configurations of Primus, AMD's launcher of Megatron-LM: arguments in YAML files of a checkout that extend others.

An experiment names a file of its trainer and one of its model, and overrides arguments of both (AMD-AGI/Primus,
`primus/core/config`). `${NAME:value}` is a variable of the environment with its default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import parse
from dse.launches.launch import launch_text, script_file

#: Files of a checkout, the model that all others extend, and how often files extend others at most.
CONFIGS, BASE_MODEL, MOST_EXTENDED = "primus/configs", "language_model.yaml", 16
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")


def primus_arguments(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Arguments of an experiment; those that its model's file changes, and its overrides.

    `path` is a file, or its call with variables (`PRIMUS_TP=8 FILE`). Raises `DseError` if it trains with another
    framework than Megatron-LM, or reads a file that is not there.
    """
    file = script_file(path)
    variables = dict(word.split("=", 1) for word in str(path).split() if "=" in word)
    root = next((parent / CONFIGS for parent in file.resolve().parents if (parent / CONFIGS).is_dir()), file.parent)
    try:
        module = next(iter(_extended(file, variables)["modules"].values()))
        if module["framework"] != "megatron":
            raise DseError(f"framework {module['framework']}: expected megatron")
        files = ("modules", module["config"]), ("models", BASE_MODEL), ("models", module["model"])
        trainer, base, model = (_extended(root / kind / "megatron" / name, variables) for kind, name in files)
        changed, usual = dict(module.get("overrides") or {}), trainer | base
    except (AttributeError, LookupError, TypeError, ValueError, StopIteration) as error:
        raise DseError(f"expected modules of Primus, with framework, config and model ({error})") from None
    of_model = {name: value for name, value in model.items() if value != usual.get(name)}
    return trainer | model | changed, of_model, changed


def _extended(file: Path, variables: Mapping[str, str], depth: int = 0) -> dict[str, Any]:
    """The content of a file with its variables replaced, over that of the files that it extends."""
    if not file.is_file():
        raise DseError(f"reads {file.name} of {CONFIGS}, which is not there; expected a file in a checkout of Primus")
    text = _VARIABLE.sub(lambda name: variables.get(name[1], name[2] or f"${name[1]}"), launch_text(file))
    data, merged = parse(text, file.name).data, dict[str, Any]()
    bases = [*data.pop("extends", []), *data.pop("bases", [])]
    for base in bases if depth < MOST_EXTENDED else []:
        merged |= _extended(file.parent / str(base), variables, depth + 1)
    return merged | data
