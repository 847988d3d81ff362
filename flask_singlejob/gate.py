"""What each request passes first: it tells that this process serves, and waits for start-up tasks.

A layer around ``app.wsgi_app``: cheap after the first request, and never in the way of health probes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import process
from .clock import steady_seconds

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

#: While a start-up task is pending the store is asked about it at most this often, seconds.
ASK_SECONDS = 0.5
RETRY_AFTER_SECONDS = 2


class Gate:
    """The WSGI layer of one app.

    :param inner: the app's own WSGI callable.
    """

    def __init__(self, inner: Callable[..., Iterable[bytes]], engine: Engine) -> None:
        self._inner = inner
        self._engine = engine
        self._next_ask = 0.0
        self._pending: list[str] = []
        self._told: str | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        engine = self._engine
        if engine.serving is None:
            process.note_request(engine)
        if engine.once.guards_requests and not self._is_probe(environ) and self._closed():
            body = b"The application is starting up: a start-up task is not done yet.\n"
            start_response(
                "503 Service Unavailable",
                [
                    ("Content-Type", "text/plain; charset=utf-8"),
                    ("Content-Length", str(len(body))),
                    ("Retry-After", str(RETRY_AFTER_SECONDS)),
                ],
            )
            return [body]
        return self._inner(environ, start_response)

    @property
    def inner(self) -> Callable[..., Iterable[bytes]]:
        """The app's own WSGI callable."""
        return self._inner

    @property
    def engine(self) -> Engine:
        """The engine that it serves."""
        return self._engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _is_probe(self, environ: dict[str, Any]) -> bool:
        prefix = self._engine.settings.health_prefix
        path = environ.get("PATH_INFO", "")
        return prefix is not None and path.startswith(f"{prefix}/")

    def _closed(self) -> bool:
        engine = self._engine
        app = engine.app_or_none
        if app is not None and app.testing and not engine.forced:
            # Nobody would ever do the task, and a test sends no SQL of its own accord.
            return False
        now = steady_seconds()
        if now >= self._next_ask:
            self._next_ask = now + ASK_SECONDS
            self._pending = self._ask()
        return bool(self._pending)

    def _ask(self) -> list[str]:
        """Return the tasks that are not known to be done; with a store that cannot be used: all of them."""
        once = self._engine.once
        try:
            return once.pending()
        except Exception as error:
            # The application's own error handlers lie behind this layer: nothing may leave it.
            from .status import unusable

            told = str(unusable(error))
            if told != self._told:
                self._told = told
                logger.error("Requests are answered 503: %s", told)
            return [task.key for task in list(once.tasks.values()) if task.before_requests]
