"""A part of an object that is imported and made at its first use, once.

Keeps what a boot does not need off its path. Knows nothing of what the parts are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["part"]

T = TypeVar("T")


class part(Generic[T]):
    """Decorate a method without arguments: its first result is kept as an attribute of the object.

    Unlike ``functools.cached_property`` of Python 3.12 two threads never make two: the object's
    ``parts_lock`` is held meanwhile.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, cls: type) -> part[T]: ...
    @overload
    def __get__(self, owner: object, cls: type) -> T: ...
    def __get__(self, owner: Any, cls: type) -> Any:
        if owner is None:
            return self
        with owner.parts_lock:
            if self._name not in owner.__dict__:
                owner.__dict__[self._name] = self._make(owner)
            return owner.__dict__[self._name]
