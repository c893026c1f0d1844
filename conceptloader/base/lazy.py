"""What is done when it is first needed, in processes that fork and have threads.

`lazy` is functools.cached_property without its lock: before Python 3.12 that is one for all instances of a class, so
that it serializes threads that read batches, and a fork while one of them holds it leaves it locked in the child for
ever. Without it, a value may be computed twice, of which all threads get the first.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@contextmanager
def uncollected() -> Iterator[None]:
    """The block makes many objects, all of which stay: the garbage collector would look at them again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class lazy(Generic[T]):
    """A property that is computed once and kept in the instance's __dict__."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # for help() and its like
        kept: T = instance.__dict__.setdefault(self._name, self._function(instance))
        return kept
