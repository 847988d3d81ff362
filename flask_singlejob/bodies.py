"""Calling a function until its body has run: ``async def`` included, also behind a plain wrapper.

Owns what counts as "has run": a coroutine is awaited, a generator that nobody goes through is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["refuse_unrun", "to_the_end"]


def to_the_end(app: Flask, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that calls the function and returns when its body has run.

    A function that looks synchronous may still give a coroutine: one behind a decorator, or an object whose
    ``__call__`` is ``async``. It is awaited through the app's ``ensure_sync``, as Flask awaits its views.
    """
    called = app.ensure_sync(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        result = called(*args, **kwargs)
        if inspect.iscoroutine(result):

            async def awaited() -> Any:
                return await result

            result = app.ensure_sync(awaited)()
        refuse_unrun(function, result)
        return result

    return call


def refuse_unrun(function: Callable[..., Any], result: Any) -> None:
    """Raise when what a function gave is its own body, not yet run.

    :raises TypeError: for the generator of a generator function (a generator expression is a value like others).
    """
    code = getattr(result, "gi_code", None) if inspect.isgenerator(result) else None
    code = getattr(result, "ag_code", None) if inspect.isasyncgen(result) else code
    if code is not None and code.co_name != "<genexpr>":
        raise TypeError(
            f"{function!r} gave a generator ({code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}) that "
            "nobody goes through: its body never ran. Go through it in a function, and take that one"
        )
