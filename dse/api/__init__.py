"""Functions for Python users and for commands: spaces, designs, searches, studies and files.

Rooms in the order in which they are read; those on one line do not import each other:

    design_files, exports, files
    designs, launch_files
    study
    searching

Their arguments are checked against their signatures by `checked`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from costmodel.errors import ParameterError

P = ParamSpec("P")
R = TypeVar("R")


def each_is(value: Any, kind: type | UnionType) -> bool:
    """True for a value of a type, and for a list or tuple of values of this type."""
    return isinstance(value, kind) or (isinstance(value, list | tuple) and all(isinstance(one, kind) for one in value))


def has_lists(value: Any) -> bool:
    """True for a mapping to lists or texts."""
    return isinstance(value, Mapping) and all(isinstance(one, Collection) for one in value.values())


def several(value: Any) -> tuple[Any, ...]:
    """A list or tuple; one value stands for a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


#: Whole numbers that are at least 1; others may be 0.
FROM_ONE: Final = {"gpus", "seq_len", "global_batch_size", "budget", "parallel"}
#: Declared type -> whether it takes a value, the words for it, and the value that the function gets.
KINDS: Final[dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any]]]] = {
    "int": (lambda value: whole(value, 0), "a whole number of at least 0", int),
    "positive": (lambda value: whole(value, 1), "a whole number of at least 1", int),
    "float": (lambda value: isinstance(value, Real) and 0 < float(value) < math.inf, "a number above 0", float),
    "str": (lambda value: isinstance(value, str | Real), "text", str),
    "Path": (lambda value: isinstance(value, Path), "a path", Path),
    "Pins": (lambda value: isinstance(value, Mapping), "a mapping, such as {'tp': 8}", dict),
    "Mapping[str, Any]": (lambda value: isinstance(value, Mapping), "a mapping, such as {'system': 'h100'}", dict),
    "Columns": (has_lists, "lists by name, such as {'tp': [1, 2]}", dict),
    "pd.DataFrame": (lambda value: type(value).__name__ == "DataFrame", "a table of pandas", lambda value: value),
    "Sequence[str]": (lambda value: each_is(value, str), "names, such as ['bf16', 'fp8']", several),
    "Paths": (lambda value: each_is(value, str | Path), "paths, such as ['run.log']", several),
}
#: Files. Values by name: lists, or texts such as "1,2,4".
Paths: TypeAlias = Sequence[str | Path]
Columns: TypeAlias = Mapping[str, Sequence[Any] | str]


def whole(value: Any, low: int) -> bool:
    """True for a whole number of at least `low`, also for 8.0 and NumPy's numbers."""
    return isinstance(value, Real) and float(value).is_integer() and float(value) >= low


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose arguments are checked against its signature: a `ParameterError` names the first wrong one.

    One word stands for a sequence of one, and 8.0 for 8. Arguments of types that `KINDS` lacks pass as they are.

    >>> @checked
    ... def plan(*, gpus: int, objective: Sequence[str] = ()):
    ...     return gpus, objective
    >>> plan(gpus=8.0, objective="mfu")
    (8, ('mfu',))
    """
    signature = inspect.signature(function)
    declared = {name: str(parameter.annotation).split(" | ") for name, parameter in signature.parameters.items()}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if {*declared[name]} <= {*KINDS, "None"} and not (value is None and {"None", "Pins"} & {*declared[name]}):
                bound.arguments[name] = converted(name, value, declared[name])
        return function(*bound.args, **bound.kwargs)

    return call


def converted(name: str, value: Any, declared: list[str]) -> Any:
    """A value as the first declared type that takes it; a `ParameterError` if none does. The first takes numbers."""
    kinds = [KINDS["positive" if name in FROM_ONE and kind == "int" else kind] for kind in declared if kind != "None"]
    for takes, _, convert in kinds[:1] if isinstance(value, Real) else kinds:
        if takes(value) and not isinstance(value, bool):
            return convert(value)
    raise ParameterError(f"{name}: expected {' or '.join(words for _, words, _ in kinds)}, not {value!r}")
