"""What the extension serves over HTTP, each part only when it is switched on: REST API, page, health, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Flask

if TYPE_CHECKING:
    from ..engine import Engine
    from ..extension import SingleJob

__all__ = ["register_web"]


def register_web(app: Flask, engine: Engine, extension: SingleJob) -> None:
    """Add to the app what its configuration switches on."""
    settings = engine.settings
    if settings.api_enabled:
        from .rest import register_rest

        register_rest(app, engine, extension)
    if settings.health_prefix is not None:
        from .health import register_health

        register_health(app, engine, extension)
    if settings.metrics_path is not None:
        from .metrics import register_metrics

        register_metrics(app, engine, extension)
    if settings.dashboard:
        from .dashboard import register_dashboard

        register_dashboard(app, engine, extension)
