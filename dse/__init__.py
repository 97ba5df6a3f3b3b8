"""Explores the design space of distributed training: search spaces, studies, Pareto fronts.

Rooms in the order in which they are read; those on one line do not know each other:

    registry, predictions, fronts
    spaces, validation
    pricing, storage, calibration
    searching
    output, tuning
    explaining, launches
    reporting
    api
    cli
    adapters, start
    __main__
"""

TYPE_CHECKING = False  # as type checkers know it: `typing` would take longer to import than all that follows
if TYPE_CHECKING:
    from costmodel.errors import DseError
    from costmodel.formats.model_file import load_model
    from costmodel.formats.system_file import load_system
    from costmodel.installation import __version__ as __version__
    from dse.api.design_files import cost
    from dse.api.designs import (
        columns,
        evaluate_design,
        evaluate_designs,
        exact_front,
        explain,
        fit,
        sensitivity,
        sweep,
    )
    from dse.api.files import calibrate, catalogue, compare_systems, import_model, validate, validate_kernels
    from dse.api.launch_files import compare_launches, launch_design
    from dse.api.searching import plan, search
    from dse.api.side_by_side import compare_plans
    from dse.api.study import Study
    from dse.explaining.measured_gap import measured_gap
    from dse.explaining.profiler_trace import trace_gap
    from dse.pricing.evaluation import evaluate
    from dse.reporting.pictures.design_figures import plot_breakdown
    from dse.searching.summaries import studies
    from dse.spaces.formulas.expressions import formula_function
    from dse.spaces.space import Space

__all__ = [
    "DseError", "Space", "Study", "calibrate", "catalogue", "columns", "compare_launches",
    "compare_plans", "compare_systems", "cost", "evaluate", "evaluate_design", "evaluate_designs", "exact_front",
    "explain", "fit", "formula_function", "import_model", "launch_design", "load_model", "load_system", "measured_gap",
    "plan", "plot_breakdown", "search", "sensitivity", "studies", "sweep", "trace_gap", "validate", "validate_kernels",
]  # fmt: skip

#: Where the names above live: imported when first used, so that the command line starts at once.
_HOMES = {
    name: home
    for home, names in {
        "costmodel.errors": "DseError",
        "costmodel.formats.model_file": "load_model",
        "costmodel.formats.system_file": "load_system",
        "costmodel.installation": "__version__",
        "dse.explaining.measured_gap": "measured_gap",
        "dse.explaining.profiler_trace": "trace_gap",
        "dse.api.designs": "columns evaluate_design evaluate_designs exact_front explain fit sensitivity sweep",
        "dse.api.files": "calibrate catalogue compare_systems import_model validate validate_kernels",
        "dse.api.launch_files": "compare_launches launch_design",
        "dse.api.searching": "plan search",
        "dse.api.side_by_side": "compare_plans",
        "dse.api.study": "Study",
        "dse.api.design_files": "cost",
        "dse.pricing.evaluation": "evaluate",
        "dse.reporting.pictures.design_figures": "plot_breakdown",
        "dse.searching.summaries": "studies",
        "dse.spaces.formulas.expressions": "formula_function",
        "dse.spaces.space": "Space",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dse' has no attribute {name!r}")
