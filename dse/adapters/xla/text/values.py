"""Values of instructions, tuples of arrays in the form of a shape; and all that leads on from something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from dse.adapters.xla.text.module import Shape

Node = TypeVar("Node")


def reached(starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """Starts, and all that leads on from them by what follows each; every one once."""
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        here = waiting.pop()
        yield here
        for each in following(here):
            if each not in seen:
                seen.add(each)
                waiting.append(each)


def shaped(shape: Shape, arrays: Iterator[Any]) -> Any:
    """A value in the form of a shape, tuples of its arrays in order."""
    return tuple(shaped(each, arrays) for each in shape.elements) if shape.is_tuple else next(arrays)


def arrays_of(value: Any) -> Iterator[Any]:
    """Arrays of a value in order: tuples hold them, and they are none."""
    if not isinstance(value, tuple):
        yield value
    else:
        for element in value:
            yield from arrays_of(element)


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with each of its arrays changed."""
    return tuple(replaced(each, change) for each in value) if isinstance(value, tuple) else change(value)
