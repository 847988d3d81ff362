"""An app with a few jobs and its web parts switched on, on the memory store, for tests of what is served."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_singlejob import Run, RunStatus, SingleJob
from flask_singlejob.engine import Engine
from flask_singlejob.engine_access import engine_of
from flask_singlejob.errors import StoreError
from flask_singlejob.records import new_id

__all__ = [
    "HOSTILE",
    "ORIGIN",
    "StoreAway",
    "act",
    "ended",
    "engine_for",
    "form_token",
    "make_app",
    "take_store_away",
]

ORIGIN = "http://localhost"
#: A job id that would break a page which trusts it.
HOSTILE = (
    "a/b?c&d#e%2f\"><script>window.hacked=1</script>'{{7*7}} \u202eevil\u05e9\u05dc\u05d5\u05dd " + "x" * 150
)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def make_app(
    *, guard: str | Decorator = "public", secret: str | None = "not so secret", **config: Any
) -> Flask:
    """Return an app of its own SingleJob with a good, a bad, a hostile and a worker-scope job."""
    app = Flask("shop")
    app.testing = True
    app.secret_key = secret
    app.config.update(SINGLEJOB_DASHBOARD=True, SINGLEJOB_GUARD=guard, SINGLEJOB_HOST_ID="h1")
    app.config.update(config)
    jobs = SingleJob()

    @jobs.task("cron", hour=3, id="nightly", args=("<b>bold</b>",))
    def nightly(what: str) -> None:
        """Tidy up <i>everything</i>."""

    @jobs.task("interval", minutes=5, id="bad")
    def bad() -> None:
        raise ValueError("<script>window.hacked=2</script>")

    @jobs.task("interval", minutes=7, id=HOSTILE)
    def hostile() -> None:
        pass

    @jobs.task("interval", minutes=1, id="everywhere", scope="worker")
    def everywhere() -> None:
        pass

    jobs.init_app(app)
    return app


def engine_for(app: Flask) -> Engine:
    """Return the engine of an app."""
    engine = engine_of(app)
    assert engine is not None
    return engine


def ended(job_id: str, status: RunStatus = RunStatus.SUCCEEDED, *, ago: float = 10.0, **values: Any) -> Run:
    """Return a record that ended so many seconds ago."""
    at = datetime.now(timezone.utc) - timedelta(seconds=ago)
    ran = status not in (RunStatus.SKIPPED, RunStatus.MISSED)
    given: dict[str, Any] = {
        "id": new_id(),
        "job_id": job_id,
        "cause": "schedule",
        "scheduled_at": at - timedelta(seconds=1.25),
        "status": status,
        "host": "h1" if ran else None,
        "pid": 4711 if ran else None,
        "token": 17 if ran else None,
        "started_at": at - timedelta(seconds=1) if ran else None,
        "finished_at": at,
        "duration": 1.0 if ran else None,
    }
    given.update(values)
    return Run(**given)


def form_token(client: FlaskClient, action: str, id: str = "", **more: str) -> str:
    """Return the token of the form that asks before an action."""
    page = client.get("/singlejob/confirm", query_string={"action": action, "id": id, **more})
    assert page.status_code == 200, page.text
    found = re.search(r'name="singlejob_token" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]


def act(
    client: FlaskClient,
    action: str,
    id: str = "",
    *,
    token: str | None = None,
    headers: Any = None,
    **more: str,
) -> TestResponse:
    """Send the form of an action as a browser would, asking for its token first unless one is given."""
    if token is None:
        token = form_token(client, action, id, **more)
    data = {"action": action, "id": id, "singlejob_token": token, **more}
    return client.post("/singlejob/act", data=data, headers={"Origin": ORIGIN, **(headers or {})})


class StoreAway:
    """A store whose every verb fails as an unreachable one does, or hangs until it is let go.

    :param real: gives what no verb is: its name and kind.
    """

    def __init__(self, real: Any, *, wait: Any = None) -> None:
        self._real = real
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        if name in ("describe", "local", "identity", "cluster", "table_prefix", "after_fork", "close"):
            return getattr(self._real, name)

        def verb(*_: Any, **__: Any) -> Any:
            if self._wait is not None:
                self._wait.wait(30)
            raise StoreError("nobody answers at db.example:5432")

        return verb


def take_store_away(app: Flask, *, wait: Any = None) -> None:
    """Take the store away from an app."""
    engine = engine_for(app)
    engine._store = StoreAway(engine.store, wait=wait)  # type: ignore[assignment]
