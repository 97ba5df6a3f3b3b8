"""Explores the design space of distributed training: search spaces, studies, Pareto fronts.

Rooms in the order in which they are read; those on one line do not import each other:

    arguments, registry
    predictions, fronts
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
    from dse.arguments import checked

    value = attribute(__name__, name)
    if name.islower() and callable(value):  # a function: only this door checks its arguments
        value = checked(value)
        value.__module__ = __name__
        globals()[name] = value
    return value
