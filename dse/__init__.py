"""Explores the design space of distributed training: search spaces, studies, Pareto fronts."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.errors import DseError
    from dse.evaluation import evaluate
    from dse.space import Space
    from dse.study import Study, studies

__all__ = ["DseError", "Space", "Study", "evaluate", "studies"]

#: Where the names above live: imported when first used, so that the command line starts at once.
_HOMES = {
    "DseError": "costmodel.errors",
    "Space": "dse.space",
    "Study": "dse.study",
    "evaluate": "dse.evaluation",
    "studies": "dse.study",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dse' has no attribute {name!r}")
