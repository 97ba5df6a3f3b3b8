"""Software of measured runs: its release, and the settings of its runs that a row does not state.

A row names its software, such as ``megatron_core@25.11``. Framework files (`dse list frameworks`) have the defaults of
each release; `software.yaml` maps other names to them. Nothing here depends on data sets or sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import nan
from types import MappingProxyType
from typing import Any, Final

from costmodel import DseError, ModelShape, System
from costmodel.formats.framework_file import USUAL_FRAMEWORK, Framework, holds, is_condition, load_framework
from costmodel.formats.quantity import quantity
from dse.registry import all_columns
from dse.validation.expressed import NotExpressed, Value
from dse.validation.table import MeasuredRow

EMPTY: Final[Mapping[str, Value]] = MappingProxyType({})
#: Settings of framework files that are rules of reading rows.
RULES: Final = frozenset({"micro_batches", "last_stage", "recomputed_layers", "causal_flops"})


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings of the runs of a framework on a machine, unless a row states others."""

    columns: Mapping[str, Value] = field(default_factory=dict)  #: columns of designs
    quantities: Mapping[str, float] = field(default_factory=dict)  #: quantities of systems [SI units]
    model: Mapping[str, Any] = field(default_factory=dict)  #: fields of a model that is made of a row's columns
    #: Rules of reading: `micro_batches`, `last_stage`, `recomputed_layers` and `causal_flops` (docs/validation.md).
    rules: Mapping[str, Any] = field(default_factory=dict)


def framework_of(row: MeasuredRow, system: System | None = None) -> Framework:
    """The framework that a row names, in its release; else the usual one of its system.

    Raises `NotExpressed` if it names unknown software.
    """
    return _loaded(row.framework or (system.framework if system else "") or USUAL_FRAMEWORK)


@cache
def _loaded(name: str) -> Framework:
    try:
        return load_framework(name)
    except DseError as error:
        unknown = "unknown framework" in str(error)
        raise NotExpressed(f"a framework {name}" if unknown else str(error)) from None


def defaults_of(
    framework: Framework, model: ModelShape | None = None, system: System | None = None,
    stated: Mapping[str, Value] = EMPTY,
) -> Defaults:  # fmt: skip
    """The defaults of a framework for a model on a system, and the stated columns of a design; switches as 0 or 1.

    Columns that the framework derives, such as `overlap_p2p`, follow from the stated ones. Other columns count as 0.
    """
    quantities = system.quantities() if system else {}

    def known(name: str) -> Value:
        absent = 0.0 if stated and name in all_columns() else nan
        return stated[name] if name in stated else float(getattr(model, name, quantities.get(name, absent)))

    said = framework.assumed(model, known)
    said |= {name: holds(text, known) for name, text in framework.derived.items() if stated and is_condition(text)}
    parts: dict[str, dict[str, Any]] = {"columns": {}, "quantities": {}, "model": {}, "rules": {}}
    for name, value in said.items():
        if name in all_columns():
            parts["columns"][name] = float(value) if isinstance(value, bool | int | float) else value
        elif name in ModelShape.__dataclass_fields__:
            parts["model"][name] = value
        elif name in RULES:
            parts["rules"][name] = value
        else:
            parts["quantities"][name] = quantity(value).value if isinstance(value, str) else float(value)
    return Defaults(**parts)
