"""Prices training designs: arrays in, arrays out.

Rooms in the order in which they are read; those on one line do not import each other:

    columns, errors, installation, stubs
    machine, solve
    training
    formats
    kernels
    steps
    lstm
    rules
"""

#: Names that are imported from the modules of `__init__.pyi` when they are first used.
__all__: list[str]


def __getattr__(name: str) -> object:
    from costmodel.stubs import attribute

    return attribute(__name__, name)
