"""Explores the design space of distributed training: search spaces, studies, Pareto fronts.

Rooms in the order in which they are read; those on one line do not import each other:

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

#: Names that are imported from the modules of `__init__.pyi` when they are first used.
__all__: list[str]


def __getattr__(name: str) -> object:
    from costmodel.stubs import attribute

    return attribute(__name__, name)
