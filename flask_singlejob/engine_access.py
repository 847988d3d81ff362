"""From a Flask app to its engine: the one place that knows the key in ``app.extensions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import current_app

if TYPE_CHECKING:
    from .engine import Engine
    from .locks import LockPlace

__all__ = ["EXTENSION", "current_engine", "current_lock_place", "engine_of"]

EXTENSION = "singlejob"


def engine_of(app: Any) -> Engine | None:
    """Return the engine of an app, or None when no SingleJob was set up for it."""
    engine: Engine | None = app.extensions.get(EXTENSION)
    return engine


def current_engine() -> Engine | None:
    """Return the engine of the app whose context this is, or None."""
    return engine_of(current_app) if current_app else None


def current_lock_place() -> LockPlace | None:
    """Return where locks of the app are taken whose context this is, or None."""
    engine = current_engine()
    if engine is None:
        return None
    engine.hold_alive()
    engine.ready_store()
    return engine.locks
