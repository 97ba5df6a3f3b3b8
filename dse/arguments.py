"""Checks of arguments of public functions: a wrong one is named in one line, with the value.

`checked` reads the kinds of arguments from the signature of a function, and `checked_methods` from those of all public
methods of a class. A function gets values of the declared types, or a `ParameterError` ends it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import numpy as np

from costmodel.errors import DseError, ParameterError, shortened

P = ParamSpec("P")
R = TypeVar("R")


def each_is(value: Any, *kinds: Any) -> bool:
    """True for a value of some types, and for a list or tuple of values of these types."""
    return all(isinstance(one, kinds) for one in several(value))


def has(kind: Any, value: Any, keys: type = str) -> bool:
    """True for a mapping from names to values of a type."""
    return isinstance(value, Mapping) and each_is([*value], keys) and each_is([*value.values()], kind)


def is_a(class_name: str, value: Any) -> bool:
    """True for an object of a class, or of one derived from it, whose module need not be loaded."""
    return any(kind.__name__ == class_name for kind in type(value).__mro__)


def several(value: Any) -> tuple[Any, ...]:
    """A list or tuple; one value stands for a tuple of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def whole(value: Any, low: int) -> bool:
    """True for a whole number of at least `low`, also for 8.0 and NumPy's numbers."""
    return isinstance(value, NUMBER) and bool(low <= value < MOST and value % 1 == 0)


#: Types of numbers, and a number that they stay below.
NUMBER, MOST = int | float | np.integer | np.floating, 1e308
#: Whole numbers that are at least 1; others may be 0.
FROM_ONE: Final = {"gpus", "seq_len", "global_batch_size", "budget", "parallel", "chunk"}
#: Numbers that may be 0; others are above it.
FROM_ZERO: Final = {"dp_overlap", "tp_overlap", "ep_overlap", "pp_overlap", "spread"}
#: Declared type -> whether it takes a value, the words for it, and the value that the function gets: None is the
#: value itself. One with brackets that has no row is found by the word before them.
KINDS: Final[dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any] | None]]] = {
    "int": (lambda value: whole(value, 0), "a whole number of at least 0", int),
    "positive": (lambda value: whole(value, 1), "a whole number of at least 1", int),
    "float": (lambda value: isinstance(value, NUMBER) and bool(0 < value < MOST), "a number above 0", float),
    "not negative": (
        lambda value: isinstance(value, NUMBER) and bool(0 <= value < MOST),
        "a number of at least 0",
        float,
    ),
    "bool": (lambda value: type(value).__name__.startswith("bool"), "True or False", bool),
    "str": (lambda value: isinstance(value, str | NUMBER) and "\0" not in str(value), "text", str),
    "Path": (lambda value: isinstance(value, Path) and "\0" not in str(value), "a path", Path),
    "Mapping": (partial(has, object), "a mapping, such as {'system': 'h100'}", dict),
    "Pins": (partial(has, object), "a mapping, such as {'tp': 8}", dict),
    "Columns": (partial(has, Collection), "lists by name, such as {'tp': [1, 2]}", dict),
    "Layouts": (partial(has, Mapping), "layouts by name, such as {'small': {'tp': 8}}", dict),
    "Plans": (partial(has, object, keys=tuple), "plans, such as {('h100', 8): plan}", dict),
    "Mapping[str, float]": (partial(has, NUMBER), "numbers by name, such as {'h100': 2.5}", dict),
    "pd.DataFrame": (partial(is_a, "DataFrame"), "a table of pandas", None),
    "Sequence[str]": (lambda value: each_is(value, str), "names, such as ['bf16', 'fp8']", several),
    "Sequence[Mapping[str, Value]]": (lambda value: each_is(value, Mapping), "designs, such as [{'tp': 8}]", several),
    "Paths": (lambda value: each_is(value, str, Path), "paths, such as ['run.log']", several),
    "Callable": (callable, "a function", None),
    **{
        name: (partial(is_a, name), f"an object of class {name.removeprefix('Base')}", None)
        for name in ("Space", "BaseStudy", "Explanation", "Breakdown", "WorkloadRules", "BaseSampler")
    },
}
#: Files. Values by name: lists, or texts such as "1,2,4". Layouts by name: values of parameters.
Paths: TypeAlias = Sequence[str | Path]
Columns: TypeAlias = Mapping[str, Sequence[Any] | str]
Layouts: TypeAlias = Mapping[str, Mapping[str, Any]]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose arguments are checked against its signature: a `ParameterError` names the first wrong one.

    One word stands for a sequence of one, and 8.0 for 8. Arguments of types that `KINDS` lacks pass as they are. A file
    that cannot be read or written is a `DseError`, too.

    >>> @checked
    ... def plan(*, gpus: int, objective: Sequence[str] = ()):
    ...     return gpus, objective
    >>> plan(gpus=8.0, objective="mfu")
    (8, ('mfu',))
    """
    signature = inspect.signature(function)
    declared = {name: kinds_of(name, str(parameter.annotation)) for name, parameter in signature.parameters.items()}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if {*declared[name]} <= {*KINDS, "None"} and not (value is None and {"None", "Pins"} & {*declared[name]}):
                bound.arguments[name] = converted(name, value, [kind for kind in declared[name] if kind != "None"])
        try:
            return function(*bound.args, **bound.kwargs)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise DseError(f"{shortened(str(error.filename or 'output'))}: {error.strerror or error}") from error

    return call


def checked_methods(owner: type[R]) -> type[R]:
    """A class whose public methods check their arguments."""
    for name, method in [*vars(owner).items()]:
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(owner, name, checked(method))
        elif isinstance(method, classmethod) and not name.startswith("_"):
            setattr(owner, name, classmethod(checked(method.__func__)))
    return owner


def kinds_of(name: str, annotation: str) -> list[str]:
    """Declared types of an argument as `KINDS` has them; "None" stands for no value.

    >>> kinds_of("gpus", "int | None"), kinds_of("spread", "float"), kinds_of("note", "Callable[[int | str], None]")
    (['positive', 'None'], ['not negative'], ['Callable'])
    """
    declared = re.split(r" \| (?![^\[]*\])", annotation)
    kinds = [kind if kind in KINDS else kind.partition("[")[0] for kind in declared]
    ends = {"int": "positive"} if name in FROM_ONE else {"float": "not negative"} if name in FROM_ZERO else {}
    return [ends.get(kind, kind) for kind in kinds]


def converted(name: str, value: Any, kinds: list[str]) -> Any:
    """A value as the first declared type that takes it; a `ParameterError` if none does. The first takes numbers."""
    is_number = isinstance(value, NUMBER) and not isinstance(value, bool)
    for kind in kinds[:1] if is_number else kinds:
        takes, _, convert = KINDS[kind]
        if takes(value) and (kind == "bool" or not isinstance(value, bool)):
            return convert(value) if convert else value
    expected = " or ".join(KINDS[kind][1] for kind in kinds)
    raise ParameterError(f"{name}: expected {expected}, not {shortened(repr(value))}")
