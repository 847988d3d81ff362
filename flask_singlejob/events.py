"""APScheduler's events for the runs of this process.

Owns the listeners of one app: they outlive terms of ownership. A listener learns of this process's
own runs at once; the cluster's are in the history.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from apscheduler import events
from apscheduler.events import JobEvent, JobExecutionEvent, JobSubmissionEvent, SchedulerEvent

from .records import Run, RunStatus

__all__ = ["EventHub"]

logger = logging.getLogger(__name__)

JOBSTORE = "default"


class EventHub:
    """Sends APScheduler's events to the listeners of one app."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Callable[[Any], Any], int]] = []
        self.renew_locks()

    def renew_locks(self) -> None:
        """Make the locks anew, in a forked child or after threads were replaced by greenlets."""
        self._lock = threading.Lock()

    def add(self, callback: Callable[[Any], Any], mask: int) -> None:
        """Add a listener.

        :param mask: the events it wants, or-ed.
        """
        with self._lock:
            self._listeners = [*self._listeners, (callback, mask)]

    def remove(self, callback: Callable[[Any], Any]) -> None:
        """Remove a listener; harmless when it is none."""
        with self._lock:
            self._listeners = [entry for entry in self._listeners if entry[0] != callback]

    def dispatch(self, event: Any) -> None:
        """Send an event; a raising listener harms nothing."""
        for callback, mask in self._listeners:
            if event.code & mask:
                try:
                    callback(event)
                except Exception:
                    logger.exception("a listener of scheduler events failed")

    # -- what there is to send --------------------------------------------------------------------

    def submitted(self, run: Run) -> None:
        """Send that a run begins."""
        if self._listeners:
            self.dispatch(
                JobSubmissionEvent(events.EVENT_JOB_SUBMITTED, run.job_id, JOBSTORE, [run.scheduled_at])
            )

    def ended(self, run: Run, error: BaseException | None, result: Any) -> None:
        """Send that a run ended."""
        if not self._listeners:
            return
        if run.status is RunStatus.FAILED:
            text = run.error
            event = JobExecutionEvent(
                events.EVENT_JOB_ERROR,
                run.job_id,
                JOBSTORE,
                run.scheduled_at,
                exception=error,
                traceback=text,
            )
        else:
            event = JobExecutionEvent(
                events.EVENT_JOB_EXECUTED, run.job_id, JOBSTORE, run.scheduled_at, retval=result
            )
        self.dispatch(event)

    def unrun(self, run: Run) -> None:
        """Send that ticks were skipped or missed."""
        if not self._listeners:
            return
        if run.status is RunStatus.MISSED:
            self.dispatch(JobExecutionEvent(events.EVENT_JOB_MISSED, run.job_id, JOBSTORE, run.scheduled_at))
        elif run.reason != "paused":
            self.dispatch(
                JobSubmissionEvent(events.EVENT_JOB_MAX_INSTANCES, run.job_id, JOBSTORE, [run.scheduled_at])
            )

    def job(self, code: int, job_id: str) -> None:
        """Send that this process added, modified or removed a job."""
        if self._listeners:
            self.dispatch(JobEvent(code, job_id, JOBSTORE))

    def scheduler(self, code: int) -> None:
        """Send something of the scheduler as a whole."""
        if self._listeners:
            self.dispatch(SchedulerEvent(code))

    def scheduler_started(self) -> None:
        """Send that this process became owner."""
        self.scheduler(events.EVENT_SCHEDULER_STARTED)

    def scheduler_stopped(self) -> None:
        """Send that this process is owner no longer."""
        self.scheduler(events.EVENT_SCHEDULER_SHUTDOWN)
