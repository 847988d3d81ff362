"""Whom a run is told to in this process: the app's log, its signals, and APScheduler's listeners.

Owns no decision: what is told has been recorded already. A raising receiver harms nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from . import signals
from .events import EventHub
from .records import Run, RunStatus

if TYPE_CHECKING:
    from flask import Flask

__all__ = ["AppObserver"]

logger = logging.getLogger(__name__)


class AppObserver:
    """Tells one app of its runs; see :class:`~flask_singlejob.runner.Observer`.

    :param app: gives the app, or None when it is gone.
    """

    def __init__(self, app: Callable[[], Flask | None], events: EventHub) -> None:
        self._app = app
        self._events = events

    def _need(self) -> Flask:
        app = self._app()
        if app is None:
            raise RuntimeError("the Flask app of this SingleJob is gone")
        return app

    def context(self) -> AbstractContextManager[Any]:
        """Return a fresh application context for one run."""
        return self._need().app_context()

    def send(self, signal: Any, **arguments: Any) -> None:
        app = self._app()
        if app is None or not signal.receivers:
            return
        try:
            with app.app_context():
                signals.send(signal, app, **arguments)
        except Exception:
            logger.exception("sending the signal %s failed", getattr(signal, "name", signal))

    def started(self, run: Run) -> None:
        """Tell of a run that begins here."""
        logger.debug("run %s of job %r begins (tick %s)", run.id, run.job_id, run.scheduled_at.isoformat())
        self._events.submitted(run)
        self.send(signals.run_started, run=run)

    def ended(self, run: Run, error: BaseException | None, result: Any) -> None:
        """Tell of a run that ended here."""
        self._events.ended(run, error, result)
        if run.status is RunStatus.FAILED:
            self.send(signals.run_failed, run=run, exception=error)
        else:
            self.send(signals.run_succeeded, run=run)

    def unrun(self, run: Run) -> None:
        """Tell of ticks that were recorded as skipped or missed by this process."""
        self._events.unrun(run)
        self.send(signals.run_skipped if run.status is RunStatus.SKIPPED else signals.run_missed, run=run)

    def lost(self, run: Run) -> None:
        """Tell of a run that was recorded as lost by this process."""
        self.send(signals.run_lost, run=run)

    def lease_lost(self, run: Run) -> None:
        """Tell of a run of this process that may run elsewhere too."""
        self.send(signals.lease_lost, run=run)

    def overran(self, run: Run) -> None:
        """Tell of a run that is still going after its ``max_runtime``."""
        self.send(signals.run_overran, run=run)

    def failed(self, run: Run, error: BaseException) -> None:
        """Log a job's exception with its traceback where the app's own errors go."""
        self._need().logger.error(
            "Job %r failed (run %s, tick %s)",
            run.job_id,
            run.id,
            run.scheduled_at.isoformat(),
            exc_info=(type(error), error, error.__traceback__),
            extra={"singlejob_job": run.job_id, "singlejob_run": run.id},
        )
