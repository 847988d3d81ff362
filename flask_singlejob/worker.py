"""Worker-scope jobs: plain APScheduler in each worker, pauses followed by polling.

No claim, no lease: what one worker runs, the others run too. Each run still has an application context,
a record and ``current_run``. Guarantees 2, 3 and 5 do not apply here.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from apscheduler import events
from apscheduler.executors.base import MaxInstancesReachedError
from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from .catalog import EffectiveJob
from .errors import SingleJobError, StoreError
from .lanes import Lane
from .records import Run, RunStatus, from_ms, new_id, to_ms
from .runner import call_job

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["WorkerJobs", "run_in_worker"]

logger = logging.getLogger(__name__)


class _LaneExecutor(BasePoolExecutor):  # type: ignore[misc]
    """An APScheduler executor over a lane of daemon threads, which do not hold up a worker's exit."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        super().__init__(None)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        from apscheduler.executors.base import run_job

        outcome: list[Any] = []

        def work() -> None:
            outcome.append(run_job(job, job._jobstore_alias, run_times, self._logger.name))

        def done() -> None:
            self._run_job_success(job.id, outcome[0] if outcome else [])

        if not self._lane.submit(work, done):
            raise MaxInstancesReachedError(job)

    def shutdown(self, wait: bool = True) -> None:
        """Leave running jobs alone."""


def run_in_worker(
    engine: Engine, job: EffectiveJob, *, cause: str, scheduled_at: datetime
) -> tuple[Run, BaseException | None, Any]:
    """Run a worker-scope job here and now and record it, as well as the store is there."""
    definition = job.definition
    run = Run(
        id=new_id(),
        job_id=definition.id,
        cause=cause,
        scheduled_at=scheduled_at,
        status=RunStatus.RUNNING,
        scope="worker",
        host=engine.settings.host_id,
        pid=engine.pid,
        started_at=datetime.now(timezone.utc),
    )
    engine.observer.started(run)
    ended, error, result = call_job(
        engine.callable_of(definition),
        definition.args,
        definition.kwargs,
        run=run,
        lease=None,
        context=engine.observer.context,
        now=lambda: datetime.now(timezone.utc),
        on_error=engine.observer.failed,
    )
    try:
        engine.ready_store().add_run(ended)
    except StoreError as failure:
        logger.debug("the run %s of job %r could not be recorded: %s", ended.id, ended.job_id, failure)
    engine.observer.ended(ended, error, result)
    return ended, error, result


class WorkerJobs:
    """The worker-scope jobs of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.RLock()
        self._known: dict[str, tuple[Any, bool]] = {}
        self._over = threading.Event()
        self._poke = threading.Event()
        self._revision: int | None = None
        zone = engine.catalog.zone
        self._scheduler = BackgroundScheduler(
            timezone=zone, executors={alias: _LaneExecutor(lane) for alias, lane in engine.lanes.items()}
        )
        self._scheduler.add_listener(self._pass_on, events.EVENT_JOB_MISSED | events.EVENT_JOB_MAX_INSTANCES)
        self._scheduler.start()
        self._poller = threading.Thread(target=self._poll_loop, name="singlejob-worker-poll", daemon=True)
        self._poller.start()

    def _pass_on(self, event: Any) -> None:
        self._engine.events.dispatch(event)

    def poke(self) -> None:
        """Look for changes now."""
        self._poke.set()

    def sync(self) -> None:
        """Schedule what the code defines, as the store changed it."""
        engine = self._engine
        groups = engine.settings.groups
        now = to_ms(datetime.now(timezone.utc))
        with self._lock:
            if self._over.is_set():
                return
            wanted: dict[str, EffectiveJob] = {}
            with engine.catalog_lock:
                for job in engine.catalog.all(now=now):
                    definition = job.definition
                    if definition.scope != "worker" or job.origin != "code" or job.schedule is None:
                        continue
                    if job.broken is None and (groups is None or definition.group in groups):
                        wanted[job.id] = job
            for job_id in self._known.keys() - wanted.keys():
                self._remove(job_id)
            for job_id, job in wanted.items():
                mark = (job.definition, job.paused)
                if self._known.get(job_id) != mark:
                    self._known[job_id] = mark
                    self._schedule(job)

    def _remove(self, job_id: str) -> None:
        self._known.pop(job_id, None)
        if self._scheduler.get_job(job_id) is not None:
            self._scheduler.remove_job(job_id)

    def _schedule(self, job: EffectiveJob) -> None:
        definition = job.definition
        assert job.schedule is not None
        if job.paused:
            if self._scheduler.get_job(job.id) is not None:
                self._scheduler.remove_job(job.id)
            return
        grace = definition.grace
        trigger = definition.custom or job.schedule.trigger
        if definition.jitter:
            trigger.jitter = definition.jitter
        options: dict[str, Any] = {}
        if definition.first == "now":
            options["next_run_time"] = datetime.now(self._scheduler.timezone)
        elif isinstance(definition.first, int):
            options["next_run_time"] = from_ms(definition.first)
        self._scheduler.add_job(
            self._run,
            trigger,
            args=(job,),
            id=job.id,
            name=definition.name,
            # APScheduler's own default of one second drops ticks on a busy machine.
            misfire_grace_time=60 if grace == "default" else grace,
            coalesce=definition.coalesce,
            max_instances=definition.max_instances,
            executor=definition.executor if definition.executor in self._engine.lanes else "default",
            replace_existing=True,
            **options,
        )

    def _run(self, job: EffectiveJob) -> None:
        now = datetime.now(timezone.utc)
        entry = self._scheduler.get_job(job.id)
        tick = self._tick_before(job, now) if entry is not None else None
        run_in_worker(self._engine, job, cause="schedule", scheduled_at=tick or now.replace(microsecond=0))

    @staticmethod
    def _tick_before(job: EffectiveJob, now: datetime) -> datetime | None:
        """Return the tick that this run is for: the last one of the trigger up to now."""
        assert job.schedule is not None
        at = to_ms(now)
        last = job.schedule.last(at - 3_600_000, at)
        return None if last is None else from_ms(last)

    def next_run_time(self, job_id: str) -> datetime | None:
        """Return when a job runs next in this worker."""
        entry = self._scheduler.get_job(job_id)
        moment: datetime | None = None if entry is None else entry.next_run_time
        return None if moment is None else moment.astimezone(timezone.utc)

    def stop(self) -> None:
        """Run nothing more by schedule; what runs is finished."""
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            self._poke.set()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _poll_loop(self) -> None:
        engine = self._engine
        told = False
        while not self._over.is_set():
            self._poke.wait(engine.settings.poll_interval)
            self._poke.clear()
            if self._over.is_set():
                return
            try:
                store = engine.ready_store()
                revision = store.poll().revision
                if revision != self._revision:
                    docs = store.docs_of(("job", "cluster"), since=self._revision or 0)
                    with engine.catalog_lock:
                        engine.catalog.take_jobs([doc for doc in docs if doc.kind == "job"])
                        engine.catalog.take_cluster([doc for doc in docs if doc.kind == "cluster"])
                    self._revision = revision
                self.sync()
                told = False
            except (StoreError, SingleJobError) as error:
                if not told:
                    logger.warning("worker-scope jobs go on, changes to them wait for the store: %s", error)
                told = True
            except Exception:
                logger.exception("looking for changes of worker-scope jobs failed; the next look follows")
