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
    from costmodel.formats.hugging_face import import_model
    from costmodel.formats.model_file import load_model
    from costmodel.formats.system_file import load_system
    from costmodel.installation import __version__ as __version__
    from dse.library.designs import (
        columns,
        evaluate_design,
        evaluate_designs,
        exact_front,
        explain,
        fit,
        sensitivity,
        sweep,
    )
    from dse.library.files import calibrate, catalogue, compare_systems, validate
    from dse.library.searching import plan, search
    from dse.library.study import Study
    from dse.library.workload_files import cost
    from dse.pricing.evaluation import evaluate
    from dse.searching.summaries import studies
    from dse.spaces.formulas.functions import formula_function
    from dse.spaces.space import Space

__all__ = [
    "DseError",
    "Space",
    "Study",
    "calibrate",
    "catalogue",
    "columns",
    "compare_systems",
    "cost",
    "evaluate",
    "evaluate_design",
    "evaluate_designs",
    "exact_front",
    "explain",
    "fit",
    "formula_function",
    "import_model",
    "load_model",
    "load_system",
    "plan",
    "search",
    "sensitivity",
    "studies",
    "sweep",
    "validate",
]

#: Where the names above live: imported when first used, so that the command line starts at once.
_HOMES = {
    "DseError": "costmodel.errors",
    "Space": "dse.spaces.space",
    "Study": "dse.library.study",
    "__version__": "costmodel.installation",
    "calibrate": "dse.library.files",
    "catalogue": "dse.library.files",
    "columns": "dse.library.designs",
    "compare_systems": "dse.library.files",
    "cost": "dse.library.workload_files",
    "evaluate": "dse.pricing.evaluation",
    "evaluate_design": "dse.library.designs",
    "evaluate_designs": "dse.library.designs",
    "exact_front": "dse.library.designs",
    "explain": "dse.library.designs",
    "fit": "dse.library.designs",
    "formula_function": "dse.spaces.formulas.functions",
    "import_model": "costmodel.formats.hugging_face",
    "load_model": "costmodel.formats.model_file",
    "load_system": "costmodel.formats.system_file",
    "plan": "dse.library.searching",
    "search": "dse.library.searching",
    "sensitivity": "dse.library.designs",
    "studies": "dse.searching.summaries",
    "sweep": "dse.library.designs",
    "validate": "dse.library.files",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dse' has no attribute {name!r}")
