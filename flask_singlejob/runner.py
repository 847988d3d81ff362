"""One run of one job under its lease: call it, learn how it ended, tell what the store has to keep.

Owns ``current_run``. Knows neither Flask nor APScheduler: the application context, signals and events
come in as callables. It cannot stop a run whose lease is lost; it only refuses to record its result.
"""

from __future__ import annotations

import contextvars
import logging
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from .clock import steady_seconds
from .errors import LeaseLostError
from .lease import Lease
from .records import Run, RunStatus

__all__ = ["CurrentRun", "RunContext", "call_job", "current_run"]

logger = logging.getLogger(__name__)

#: A longer traceback is cut in its middle before it is stored.
ERROR_CHARACTERS = 16_000


@dataclass
class RunContext:
    """What the running job may ask of itself."""

    run: Run
    lease: Lease | None

    def check(self) -> None:
        if self.lease is not None:
            self.lease.check()

    def extend(self, seconds: float) -> None:
        if self.lease is not None:
            self.lease.extend(seconds)

    def progress(self, done: float, total: float | None, note: str | None) -> None:
        if isinstance(done, bool) or not isinstance(done, (int, float)):
            raise TypeError(f"progress() takes a number of what is done, not {done!r}")
        if self.lease is not None:
            self.lease.report({"done": done, "total": total, "note": None if note is None else str(note)[:500]})


_running: contextvars.ContextVar[RunContext | None] = contextvars.ContextVar("singlejob_run", default=None)


class CurrentRun:
    """The run that the calling code is part of; false as a bool outside a job.

    Every attribute raises :class:`RuntimeError` there, as Flask's own proxies do.
    """

    __slots__ = ()

    def _get(self) -> RunContext:
        context = _running.get()
        if context is None:
            raise RuntimeError(
                "Working outside of a run: current_run has a value only in a job that Flask-SingleJob runs."
            )
        return context

    def __bool__(self) -> bool:
        return _running.get() is not None

    def __repr__(self) -> str:
        context = _running.get()
        return "<current_run: outside a run>" if context is None else f"<current_run {context.run!r}>"

    @property
    def id(self) -> str:
        """The run's random id."""
        return self._get().run.id

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._get().run.job_id

    @property
    def scheduled_at(self) -> datetime:
        """The tick (aware, UTC); the time of the claim for a run by hand."""
        return self._get().run.scheduled_at

    @property
    def cause(self) -> str:
        """``schedule``, ``manual`` or ``rerun``."""
        return self._get().run.cause

    @property
    def token(self) -> int | None:
        """The fencing number; None for a worker-scope run, which has no claim."""
        return self._get().run.token

    @property
    def scope(self) -> str:
        """``cluster``, ``host`` or ``worker``."""
        return self._get().run.scope

    @property
    def host(self) -> str | None:
        """The host id."""
        return self._get().run.host

    @property
    def attempt(self) -> int:
        """1, or more when a lost run is run again."""
        return self._get().run.attempt

    @property
    def stood_for(self) -> int:
        """How many ticks this run stands for."""
        return self._get().run.stood_for

    def check(self) -> None:
        """Raise if this run's lease is lost. Local: no round trip.

        :raises LeaseLostError: when another process may be running the job by now.
        """
        self._get().check()

    def extend(self, seconds: float) -> None:
        """Make the lease hold at least so many seconds from now (a blocking call may keep renewals away).

        :raises LeaseLostError: when it is lost already.
        :raises StoreError: when the store does not answer.
        """
        self._get().extend(seconds)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the job is; written at most once a second, shown by status, page and history."""
        self._get().progress(done, total, note)


current_run = CurrentRun()


def shorten(text: str, limit: int = ERROR_CHARACTERS) -> str:
    """Return the text, cut in its middle when it is longer than the limit."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def call_job(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    run: Run,
    lease: Lease | None,
    context: Callable[[], AbstractContextManager[Any]],
    now: Callable[[], datetime],
    on_error: Callable[[Run, BaseException], None],
) -> tuple[Run, BaseException | None, Any]:
    """Call a job's function in its context and return the run as it ended.

    :param context: makes the application context of this one run.
    :param now: the store's clock, aware, UTC.
    :param on_error: is told of an exception, inside the context, with the traceback still at hand.
    :returns: the ended run, the exception if there was one, and what the function returned.
    """
    begun = steady_seconds()
    error: BaseException | None = None
    result: Any = None
    reset = _running.set(RunContext(run, lease))
    try:
        try:
            with context():
                try:
                    result = function(*args, **kwargs)
                except BaseException as raised:
                    on_error(_ended(run, raised, begun, now()), raised)
                    raise
        except BaseException as raised:
            # SystemExit and the like end this run, never the thread that schedules the next one.
            error = raised
    finally:
        _running.reset(reset)
    return _ended(run, error, begun, now()), error, result


def _ended(run: Run, error: BaseException | None, begun: float, finished_at: datetime) -> Run:
    text = None
    reason = None
    if error is not None:
        text = shorten("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        reason = "lease_lost" if isinstance(error, LeaseLostError) else "exception"
    return replace(
        run,
        status=RunStatus.SUCCEEDED if error is None else RunStatus.FAILED,
        finished_at=finished_at,
        duration=round(steady_seconds() - begun, 6),
        reason=reason,
        error=text,
    )
