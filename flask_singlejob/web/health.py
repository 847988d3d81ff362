"""Health over HTTP for probes: ``/live``, ``/ready`` and ``/jobs`` under the configured prefix.

Owns the form of the answer; what is healthy is decided in ``status.py``. Needs no guard, tells no secret,
and answers within a probe's second when the store hangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import Blueprint, Flask, Response, jsonify

from ..errors import StoreError
from ..records import Health
from ..status import health, unusable
from .asking import SharedAsk

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["register_health"]

#: A container probe gives one second by default.
ANSWER_SECONDS = 0.95


def register_health(app: Flask, engine: Engine, extension: Any) -> None:
    """Add the three routes to the app.

    :param extension: not needed here; every part that is served over HTTP is given it.
    """
    blueprint = Blueprint("singlejob_health", __name__)
    ready = SharedAsk(lambda: health(engine, "ready"), seconds=ANSWER_SECONDS)
    jobs = SharedAsk(lambda: health(engine, "jobs"), seconds=ANSWER_SECONDS)

    @blueprint.get("/live")
    def live_check() -> Response:
        return answer_of(health(engine, "live"))

    @blueprint.get("/ready")
    def ready_check() -> Response:
        # A store outage must not take the site down: with no task to wait for, nothing is asked.
        if not engine.once.guards_requests:
            return answer_of(Health(True))
        return answer_of(_in_time(ready))

    @blueprint.get("/jobs")
    def jobs_check() -> Response:
        return answer_of(_in_time(jobs))

    app.register_blueprint(blueprint, url_prefix=engine.settings.health_prefix)


def _in_time(ask: SharedAsk[Health]) -> Health:
    try:
        return ask()
    except StoreError as error:
        return Health(False, (f"the store is away: {error}",))
    except Exception as error:
        return Health(False, (str(unusable(error)),))


def answer_of(found: Health) -> Response:
    """Return a check's answer: 200 or 503, and the reasons as JSON, never kept by a cache."""
    response = jsonify(ok=found.ok, reasons=list(found.reasons))
    response.status_code = 200 if found.ok else 503
    response.headers["Cache-Control"] = "no-store"
    return response
