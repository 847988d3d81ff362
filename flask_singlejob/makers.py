"""Which code made a function: tells a factory's functions, for one app each, from those for all apps.

Looks at code objects only; knows neither apps nor jobs. What it cannot see into belongs to no maker.
"""

from __future__ import annotations

import inspect
import sys
from types import CodeType
from typing import Any

__all__ = ["caller_code", "is_local", "made_by", "same_maker"]


def caller_code(*, above: str) -> CodeType | None:
    """Return the code that called the calling method, past overriding methods of the same name.

    :param above: the name of that method.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name == above:
        frame = frame.f_back
    return None if frame is None else frame.f_code


def is_local(function: Any) -> bool:
    """Tell whether a function was made within a call of another one."""
    return callable(function) and "<locals>" in getattr(function, "__qualname__", "")


def same_maker(one: Any, other: Any) -> bool:
    """Tell whether two functions were made within one function's body, or both within none."""

    def maker(function: Any) -> tuple[str, str] | None:
        within = getattr(function, "__qualname__", "").rpartition("<locals>")[0]
        return (getattr(function, "__module__", ""), within) if within else None

    return maker(one) == maker(other)


def made_by(function: Any, maker: CodeType | None) -> bool:
    """Tell whether a function's own ``def`` is in the maker's body (or in a class there), not further within."""
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:
        return False
    return isinstance(code, CodeType) and maker is not None and _holds(maker, code)


def _holds(maker: CodeType, code: CodeType) -> bool:
    inner = [part for part in maker.co_consts if isinstance(part, CodeType)]
    return any(
        part is code or (not part.co_flags & inspect.CO_OPTIMIZED and _holds(part, code)) for part in inner
    )
