"""One run of one job under its lease: call it, learn how it ended, tell what the store has to keep.

Owns ``current_run``. Knows neither Flask nor APScheduler: the application context, signals and events
come in as callables. It cannot stop a run whose lease is lost; it only refuses to record its result.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from .claims import held_run, unrun_record
from .clock import StoreClock, steady_seconds
from .errors import LeaseLostError
from .lease import Keeper, Lease
from .records import ClaimRow, Run, RunStatus, from_ms

__all__ = ["CurrentRun", "Observer", "Performed", "RunContext", "Runner", "call_job", "current_run"]

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

    def extend(self, seconds: float | timedelta) -> None:
        if self.lease is not None:
            self.lease.extend(seconds)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        for value in (done,) if total is None else (done, total):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise TypeError(f"progress() takes numbers (done, total), not {value!r}")
        if self.lease is not None:
            self.lease.report(
                {"done": done, "total": total, "note": None if note is None else str(note)[:500]}
            )


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

    # Properties, so that outside a run reading them raises too.

    @property
    def check(self) -> Callable[[], None]:
        """``check()`` raises :class:`LeaseLostError` if another process may be running the job. No round trip."""
        return self._get().check

    @property
    def extend(self) -> Callable[[float | timedelta], None]:
        """``extend(seconds)`` makes the lease hold at least so long from now.

        It is for a call that keeps renewals away. It raises :class:`LeaseLostError` when the lease is lost
        already, and :class:`StoreError` when the store does not answer.
        """
        return self._get().extend

    @property
    def progress(self) -> Callable[..., None]:
        """``progress(done, total=None, note=None)`` reports how far the job is.

        It is written at most once a second, and shown by status, page and history.
        """
        return self._get().progress

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self._get()
        raise AttributeError(f"current_run has no attribute {name!r}")


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
    :param on_error: is told of an exception, inside the context, with the traceback still at hand; outside of it, of
        one that came of entering or leaving it.
    :returns: the ended run, the exception if there was one, and what the function returned.
    """
    begun = steady_seconds()
    error: BaseException | None = None
    told: BaseException | None = None
    result: Any = None
    reset = _running.set(RunContext(run, lease))
    try:
        try:
            with context():
                try:
                    result = function(*args, **kwargs)
                except BaseException as raised:
                    told = raised
                    on_error(_ended(run, raised, begun, now()), raised)
                    raise
        except BaseException as raised:
            # SystemExit and the like end this run, never the thread that schedules the next one.
            error = raised
            if raised is not told:
                with contextlib.suppress(Exception):
                    on_error(_ended(run, raised, begun, now()), raised)
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


class Observer(Protocol):
    """Whom runs are told to, in the process that recorded them."""

    def context(self) -> AbstractContextManager[Any]:
        """Return a fresh application context for one run."""

    def started(self, run: Run) -> None:
        """A run began here."""

    def ended(self, run: Run, error: BaseException | None, result: Any) -> None:
        """A run of this process succeeded or failed, and the store knows it."""

    def unrun(self, run: Run) -> None:
        """Ticks were recorded as skipped or missed by this process."""

    def lost(self, run: Run) -> None:
        """A run of any process was recorded as lost by this process."""

    def lease_lost(self, run: Run) -> None:
        """A run of this process may be running elsewhere too by now."""

    def overran(self, run: Run) -> None:
        """A run of this process is still going after its ``max_runtime``."""

    def failed(self, run: Run, error: BaseException) -> None:
        """A run raised; called inside its application context."""


class Spans(Protocol):
    """What the runner asks of a schedule."""

    def span(self, after: int, upto: int) -> Any:
        """Return the ticks in (after, upto] as first, last and count, or None."""


@dataclass(frozen=True)
class Performed:
    """How a run ended, and the row as this process left it.

    :param row: None when the store may hold something else: read it again.
    """

    run: Run
    row: ClaimRow | None
    error: BaseException | None = None
    result: Any = None


class Runner:
    """Performs claimed runs: lease, call, record.

    :param keeper: renews the lease meanwhile.
    """

    def __init__(self, keeper: Keeper, clock: StoreClock, observer: Observer) -> None:
        self._keeper = keeper
        self._clock = clock
        self._observer = observer

    def look_after(self) -> None:
        """Make sure that the leases of what runs are renewed by a living thread."""
        self._keeper.look_after()

    def perform(
        self,
        row: ClaimRow,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        sent: float,
        lease_seconds: float,
        max_runtime: float | None = None,
        schedule: Spans | None = None,
        in_order: bool = False,
        delay: Callable[[], None] | None = None,
        freed: Callable[[ClaimRow | None], None] | None = None,
    ) -> Performed:
        """Run a job whose row this process has just won.

        :param row: the row as claimed.
        :param sent: ``steady_seconds()`` from before the claim was sent.
        :param schedule: the job's, when the end of this run settles what fell due during it.
        :param in_order: late ticks run each by itself (no ``coalesce``).
        :param delay: waits out the jitter, under the lease.
        :param freed: is told as soon as the job may be claimed again, be it before the call returns.
        """
        observer = self._observer
        run = held_run(row)
        ended_early = False

        def on_lost(lease: Lease) -> None:
            logger.warning(
                "run %s of job %r lost its lease (token %s): it may run elsewhere too; its result will not be recorded",
                run.id,
                run.job_id,
                run.token,
            )
            observer.lease_lost(run)
            if freed is not None:
                freed(None)

        def on_overran(lease: Lease) -> None:
            nonlocal ended_early
            ended_early = True
            now = self._clock.now_ms()
            cut = replace(
                run,
                status=RunStatus.FAILED,
                finished_at=from_ms(now),
                duration=round((now - (row.since or now)) / 1000, 3),
                reason="max_runtime",
                detail=f"still running after its max_runtime of {max_runtime:g} s",
            )
            logger.warning(
                "run %s of job %r is still going after its max_runtime of %g s: the job is free for its next tick",
                run.id,
                run.job_id,
                max_runtime,
            )
            left = self._finish(lease, row, cut, schedule, in_order, wait_seconds=0)
            self._keeper.drop(lease, f"it ran longer than its max_runtime of {max_runtime:g} s")
            observer.overran(cut)
            if freed is not None:
                freed(left)

        lease = self._keeper.hold(
            row.key,
            run.id,
            row.token,
            lease_seconds=lease_seconds,
            sent=sent,
            max_runtime=max_runtime,
            on_lost=on_lost,
            on_overran=on_overran,
        )
        if delay is not None:
            delay()
        if lease.lost:
            # The answer to the claim came too late (a frozen process): somebody may have recorded it as lost.
            logger.warning(
                "run %s of job %r was claimed, but its lease was over before it began", run.id, run.job_id
            )
            self._keeper.drop(lease, "it was over before the run began")
            if freed is not None:
                freed(None)
            return Performed(replace(run, status=RunStatus.LOST, reason="lease_lost"), None)
        observer.started(run)
        ended, error, result = call_job(
            function,
            args,
            kwargs,
            run=run,
            lease=lease,
            context=observer.context,
            now=lambda: from_ms(self._clock.now_ms()),
            on_error=observer.failed,
        )
        if ended_early:
            return Performed(
                replace(ended, status=RunStatus.FAILED, reason="max_runtime"), None, error, result
            )
        try:
            left = self._finish(lease, row, ended, schedule, in_order, wait_seconds=lease_seconds)
        except Exception:
            # Never renewed for ever: the claim ends with its lease, and the run is recorded as lost.
            logger.exception("the end of run %s of job %r could not be recorded", run.id, run.job_id)
            self._keeper.drop(lease, "its end could not be recorded")
            left = None
        if left is None:
            logger.warning(
                "run %s of job %r ended (%s) without its lease: the store has it as lost",
                run.id,
                run.job_id,
                ended.status,
            )
            if freed is not None:
                freed(None)
            return Performed(replace(ended, status=RunStatus.LOST, reason="lease_lost"), None, error, result)
        if freed is not None:
            freed(left)
        observer.ended(ended, error, result)
        return Performed(ended, left, error, result)

    def _finish(
        self,
        lease: Lease,
        row: ClaimRow,
        run: Run,
        schedule: Spans | None,
        in_order: bool,
        *,
        wait_seconds: float,
    ) -> ClaimRow | None:
        """Release the claim with its record and with what fell due during it, as one skipped record."""
        skipped = None
        resolved = None
        if schedule is not None and run.cause == "schedule" and row.key.slot == 0:
            span = schedule.span(row.resolved, self._clock.past_ms())
            # What was late already when this run began comes first, each tick by itself: nothing is settled.
            backlog = in_order and span is not None and span.first <= (row.since or 0)
            if span is not None and not backlog:
                resolved = span.last
                skipped = unrun_record(
                    run.job_id,
                    status=RunStatus.SKIPPED,
                    reason="held",
                    first=span.first,
                    last=span.last,
                    count=span.count,
                    now=self._clock.now_ms(),
                    scope=run.scope,
                    host=run.host,
                    detail=f"its run {run.id} of {run.scheduled_at.isoformat()} was still going",
                )
        released = self._keeper.finish(
            lease,
            run=run,
            resolved=resolved,
            seen_resolved=row.resolved,
            skipped=skipped,
            wait_seconds=wait_seconds,
        )
        if not released:
            return None
        if skipped is not None:
            logger.debug(
                "job %r: %d tick(s) skipped while run %s was going", run.job_id, skipped.count, run.id
            )
            self._observer.unrun(skipped)
        return replace(
            row,
            holder=None,
            held_tick=None,
            since=None,
            expires=None,
            progress=None,
            resolved=row.resolved if resolved is None else resolved,
            streak=skipped.id if skipped is not None else None,
            last_run=run.to_record(),
        )
