"""Explores the design space of distributed training: search spaces, studies, Pareto fronts."""

TYPE_CHECKING = False  # as type checkers know it: `typing` would take longer to import than all that follows
if TYPE_CHECKING:
    from costmodel.errors import DseError
    from dse.pricing.evaluation import evaluate
    from dse.search.study import Study
    from dse.search.summaries import studies
    from dse.spaces.functions import formula_function
    from dse.spaces.space import Space

__all__ = ["DseError", "Space", "Study", "evaluate", "formula_function", "studies"]

#: Where the names above live: imported when first used, so that the command line starts at once.
_HOMES = {
    "DseError": "costmodel.errors",
    "Space": "dse.spaces.space",
    "Study": "dse.search.study",
    "evaluate": "dse.pricing.evaluation",
    "formula_function": "dse.spaces.functions",
    "studies": "dse.search.summaries",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dse' has no attribute {name!r}")
