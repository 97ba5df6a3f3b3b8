"""Explores the design space of distributed training: search spaces, studies, Pareto fronts.

Rooms in the order in which they are read; those on one line do not know each other:

    predictions, fronts
    spaces, validation
    pricing, storage, calibration, figures
    searching
    records
    explaining
    reporting
    exporting
    library
    cli
    start
    __main__
"""

TYPE_CHECKING = False  # as type checkers know it: `typing` would take longer to import than all that follows
if TYPE_CHECKING:
    from costmodel.errors import DseError
    from costmodel.installation import __version__ as __version__
    from dse.library.study import Study
    from dse.pricing.evaluation import evaluate
    from dse.searching.summaries import studies
    from dse.spaces.formulas.functions import formula_function
    from dse.spaces.space import Space

__all__ = ["DseError", "Space", "Study", "evaluate", "formula_function", "studies"]

#: Where the names above live: imported when first used, so that the command line starts at once.
_HOMES = {
    "DseError": "costmodel.errors",
    "Space": "dse.spaces.space",
    "Study": "dse.library.study",
    "evaluate": "dse.pricing.evaluation",
    "formula_function": "dse.spaces.formulas.functions",
    "studies": "dse.searching.summaries",
    "__version__": "costmodel.installation",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dse' has no attribute {name!r}")
