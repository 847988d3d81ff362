"""APScheduler's scheduler of one term of ownership: its loop and thread, our ticks.

APScheduler's own loop only goes forward: whatever becomes of a submitted tick, the next run time moves
on. So the loop is kept and what it does is replaced: it asks the term what is due. Every job method acts
on the cluster. The module owns no state of a job.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  (else imported when an owner is in a hurry)
import logging
from collections.abc import Callable
from datetime import timezone
from typing import Any, Protocol

from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_STOPPED, BaseScheduler
from apscheduler.schedulers.blocking import BlockingScheduler

from . import scheduler_checks
from .checks import WrongValue, safe_value
from .errors import ConfigError

__all__ = ["OwnerScheduler", "check_pattern", "executor_sizes", "scheduler_class"]

logger = logging.getLogger(__name__)

#: As many runs at once as APScheduler's own default pool has threads.
DEFAULT_PLACES = 10


class JobActions(Protocol):
    """Where a scheduler's job methods go: the extension, for one app."""

    def add_job(self, id: str | None, func: Any, **options: Any) -> Job: ...
    def modify_job(self, id: str, jobstore: Any = None, **changes: Any) -> Job: ...
    def pause_job(self, id: str, jobstore: Any = None) -> Any: ...
    def resume_job(self, id: str, jobstore: Any = None) -> Any: ...
    def remove_job(self, id: str, jobstore: Any = None) -> None: ...
    def remove_all_jobs(self, jobstore: Any = None) -> None: ...
    def get_job(self, id: str, jobstore: Any = None) -> Job | None: ...
    def get_jobs(self, jobstore: Any = None) -> list[Job]: ...
    def task(self, trigger: Any = None, id: str | None = None, **options: Any) -> Any: ...
    def add_listener(self, callback: Any, mask: int = ...) -> None: ...
    def remove_listener(self, callback: Any) -> None: ...
    def start(self, paused: bool = False) -> None: ...
    def shutdown(self, wait: bool = True) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    @property
    def running(self) -> bool: ...
    @property
    def state(self) -> int: ...


class OwnerScheduler(BackgroundScheduler):  # type: ignore[misc]
    """A background scheduler that schedules what the cluster's store says is due.

    :ivar actions: where its job methods go.
    """

    actions: JobActions
    _next_step: Callable[[], float] | None = None

    # -- the loop, used by the term -------------------------------------------------------------

    def begin(self, step: Callable[[], float]) -> None:
        """Start the thread.

        :param step: does what is due; returns seconds until it wants to be called again.
        """
        self._next_step = step
        super().start()

    def wake(self) -> None:
        """Make the loop look now."""
        event = getattr(self, "_event", None)
        if event is not None:
            event.set()

    def end(self) -> None:
        """Let the loop end, without waiting for it."""
        self._next_step = None
        self._scheduler_state = STATE_STOPPED
        self.wake()

    @property
    def thread_alive(self) -> bool:
        """True while the loop's thread lives."""
        thread = getattr(self, "_thread", None)
        return thread is not None and bool(thread.is_alive())

    @property
    def _scheduler_state(self) -> int:
        return int(self.__dict__.get("state", STATE_STOPPED))

    @_scheduler_state.setter
    def _scheduler_state(self, value: int) -> None:
        self.__dict__["state"] = value

    def _process_jobs(self) -> float:
        step = self._next_step
        if step is None:
            return 1.0
        try:
            return step()
        except Exception:
            logger.exception("the scheduler's step failed; the next one follows")
            return 1.0

    def __getstate__(self) -> Any:
        raise TypeError("a scheduler cannot be pickled: stored jobs are text references and JSON")

    # -- the API, for whoever holds ``jobs.scheduler`` --------------------------------------------

    def start(self, paused: bool = False) -> None:
        """Wish to campaign: see :meth:`flask_singlejob.SingleJob.start`."""
        self.actions.start(paused)

    def shutdown(self, wait: bool = True) -> None:
        """Make this process leave: see :meth:`flask_singlejob.SingleJob.shutdown`."""
        self.actions.shutdown(wait)

    def pause(self) -> None:
        """Pause the whole cluster."""
        self.actions.pause()

    def resume(self) -> None:
        """Resume the whole cluster."""
        self.actions.resume()

    @property
    def running(self) -> bool:
        """True while this process campaigns."""
        return self.actions.running

    def add_job(
        self,
        func: Any,
        trigger: Any = None,
        args: Any = None,
        kwargs: Any = None,
        id: str | None = None,
        name: str | None = None,
        *positional: Any,
        **options: Any,
    ) -> Job:
        """Add a job to the cluster: see :meth:`flask_singlejob.SingleJob.add_job`."""
        names = (
            "misfire_grace_time",
            "coalesce",
            "max_instances",
            "next_run_time",
            "jobstore",
            "executor",
            "replace_existing",
        )
        options.update(zip(names, positional, strict=False))
        for key in ("misfire_grace_time", "coalesce", "max_instances", "next_run_time"):
            # APScheduler marks what was not given with an object of its own.
            if key in options and type(options[key]).__name__ == "undefined":
                del options[key]
        for key, value in (("args", args), ("kwargs", kwargs), ("name", name), ("trigger", trigger)):
            if value is not None:
                options[key] = value
        return self.actions.add_job(id, func, **options)

    def scheduled_job(
        self, trigger: Any, args: Any = None, kwargs: Any = None, id: str | None = None, **options: Any
    ) -> Any:
        """Decorate a function as a job: see :meth:`flask_singlejob.SingleJob.task`."""
        for key, value in (("args", args), ("kwargs", kwargs)):
            if value is not None:
                options[key] = value
        return self.actions.task(trigger, id, **options)

    def modify_job(self, job_id: str, jobstore: Any = None, **changes: Any) -> Job:
        """Change a job in the whole cluster."""
        return self.actions.modify_job(job_id, jobstore, **changes)

    def reschedule_job(
        self, job_id: str, jobstore: Any = None, trigger: Any = None, **trigger_args: Any
    ) -> Job:
        """Give a job another trigger in the whole cluster."""
        return self.actions.modify_job(job_id, jobstore, trigger=trigger, **trigger_args)

    def pause_job(self, job_id: str, jobstore: Any = None) -> Any:
        """Pause a job in the whole cluster."""
        return self.actions.pause_job(job_id, jobstore)

    def resume_job(self, job_id: str, jobstore: Any = None) -> Any:
        """Resume a job in the whole cluster."""
        return self.actions.resume_job(job_id, jobstore)

    def remove_job(self, job_id: str, jobstore: Any = None) -> None:
        """Remove a job from the whole cluster."""
        self.actions.remove_job(job_id, jobstore)

    def remove_all_jobs(self, jobstore: Any = None) -> None:
        """Remove every job from the whole cluster."""
        self.actions.remove_all_jobs(jobstore)

    def get_job(self, job_id: str, jobstore: Any = None) -> Job | None:
        """Return a job as the cluster has it."""
        return self.actions.get_job(job_id, jobstore)

    def get_jobs(self, jobstore: Any = None, pending: Any = None) -> list[Job]:
        """Return the cluster's jobs."""
        return self.actions.get_jobs(jobstore)

    def print_jobs(self, jobstore: Any = None, out: Any = None) -> None:
        """Print the cluster's jobs, one a line."""
        jobs = self.get_jobs(jobstore)
        print("Jobs of the cluster:", file=out)
        for job in jobs:
            print(f"    {job}", file=out)
        if not jobs:
            print("    No scheduled jobs", file=out)

    def add_listener(self, callback: Any, mask: int = (1 << 31) - 1) -> None:
        """Tell a callable of this process's events; it stays over terms of ownership."""
        self.actions.add_listener(callback, mask)

    def remove_listener(self, callback: Any) -> None:
        """Stop telling a callable."""
        self.actions.remove_listener(callback)

    def add_jobstore(self, jobstore: Any, alias: str = "default", **options: Any) -> None:
        """Refuse: jobs live in the shared store.

        :raises ConfigError: always, once the scheduler is the extension's.
        """
        if alias == "default" and self._next_step is not None:
            # APScheduler's start() adds the empty memory store that its loop would use.
            super().add_jobstore(jobstore, alias, **options)
            return
        if self._being_made:
            _check_parts(type(self).__name__, jobstores={alias: _spec(jobstore)})
            return
        raise ConfigError(
            f"a job store ({alias!r}) has no part in Flask-SingleJob: stored jobs live in SINGLEJOB_STORE; "
            "bring old ones over with `flask singlejob import-jobs URL`"
        )

    def add_executor(self, executor: Any, alias: str = "default", **options: Any) -> None:
        """Refuse: the pools that run jobs are made from the configuration, in every worker.

        :raises ConfigError: always, once the scheduler is the extension's.
        """
        if self._being_made:
            _check_parts(type(self).__name__, executors={alias: _spec(executor)})
        if self._being_made or (alias == "default" and self._next_step is not None):
            # A class of the user's own adds its pools when it is made; APScheduler's start() its default.
            super().add_executor(executor, alias, **options)
            return
        raise ConfigError(
            f"add_executor({alias!r}) changes nothing after init_app, since each worker makes its pools from the "
            f"configuration: set SCHEDULER_EXECUTORS[{alias!r}] (thread pools only)"
        )

    @property
    def _being_made(self) -> bool:
        """True until the engine takes the scheduler over."""
        return "actions" not in self.__dict__

    def export_jobs(self, outfile: Any, jobstore: Any = None) -> None:
        """Refuse: APScheduler exports pickles.

        :raises NotImplementedError: always; read the store's documents, or ``flask singlejob jobs --json``.
        """
        raise NotImplementedError("jobs are rows in SINGLEJOB_STORE: see `flask singlejob jobs --json`")

    import_jobs = export_jobs


def _spec(part: Any) -> Any:
    """Return an executor or job store, given by its plugin's name or itself, as the configuration has it."""
    return {"type": part} if isinstance(part, str) else part


def _check_parts(
    name: str, *, executors: dict[str, Any] | None = None, jobstores: dict[str, Any] | None = None
) -> None:
    """Refuse in a scheduler what ``SCHEDULER_EXECUTORS`` and ``SCHEDULER_JOBSTORES`` refuse.

    :raises ConfigError: naming the part and the cure.
    """
    try:
        scheduler_checks.executors(executors or {})
        scheduler_checks.jobstores(jobstores or {}, cure="Leave it out of the scheduler")
    except WrongValue as error:
        # The class made for a term is named after the user's.
        raise ConfigError(f"scheduler={name.removeprefix('Owner')}: {error}") from error.__cause__


def check_pattern(pattern: Any) -> None:
    """Refuse at start a scheduler that cannot serve as a pattern, whole or by one of its parts.

    :param pattern: the class or instance that the user gave, or what the factory made.
    :raises ConfigError: naming the scheduler, the part and the cure.
    """
    cls = scheduler_class(pattern)
    if not isinstance(pattern, type):
        name = type(pattern).__name__
        _check_parts(name, executors=pattern._executors, jobstores=pattern._jobstores)
        try:
            scheduler_checks.job_defaults(pattern._job_defaults)
        except WrongValue as error:
            raise ConfigError(f"scheduler={name}: its job_defaults cannot be used: {error}") from None
        executor_sizes({}, pattern)
    if cls is not OwnerScheduler:
        # Each term makes one: what its class does by itself then is seen now.
        try:
            cls(timezone=timezone.utc)
        except TypeError as error:
            raise ConfigError(
                f"scheduler={cls.__name__.removeprefix('Owner')}: each term of ownership makes one by "
                f"calling the class with timezone=, which fails ({error}): let its other arguments have defaults"
            ) from error


def scheduler_class(pattern: Any) -> type[OwnerScheduler]:
    """Return the class of the schedulers to make, from the class or instance that the user gave.

    :raises ConfigError: for a scheduler that does not run on a thread of its own.
    """
    cls = pattern if isinstance(pattern, type) else type(pattern)
    if pattern is not None and not issubclass(cls, BaseScheduler):
        raise ConfigError(
            f"scheduler={safe_value(pattern)} is no scheduler: give APScheduler's BackgroundScheduler (the class, an "
            "instance, or a function that returns one), or leave it out"
        )
    if pattern is None or cls in (BackgroundScheduler, BlockingScheduler, BaseScheduler):
        return OwnerScheduler
    if issubclass(cls, OwnerScheduler):
        return cls
    if issubclass(cls, BackgroundScheduler):
        return type(f"Owner{cls.__name__}", (OwnerScheduler, cls), {})
    if cls.__name__ == "GeventScheduler" or issubclass(cls, BlockingScheduler):
        # Under monkey patching the thread is a greenlet already.
        return OwnerScheduler
    raise ConfigError(
        f"scheduler={cls.__name__}: a scheduler that lives in another event loop cannot be handed from worker to "
        "worker; use BackgroundScheduler (or a subclass), or leave it out"
    )


def executor_sizes(executors: dict[str, Any], pattern: Any = None) -> dict[str, int]:
    """Return how many runs each executor may have at once, by alias.

    :param executors: ``SCHEDULER_EXECUTORS``.
    :param pattern: a scheduler whose executors are taken over.
    """
    sizes: dict[str, int] = {}
    for alias, executor in {**getattr(pattern, "_executors", {}), **executors}.items():
        size: Any = None
        if isinstance(executor, dict):
            size = executor.get("max_workers")
        elif isinstance(executor, BasePoolExecutor):
            size = getattr(executor._pool, "_max_workers", None)
        try:
            sizes[alias] = max(1, int(size)) if size is not None else DEFAULT_PLACES
        except (TypeError, ValueError):
            raise ConfigError(
                f"SCHEDULER_EXECUTORS[{alias!r}]: max_workers must be a whole number, not {size!r}"
            ) from None
    sizes.setdefault("default", DEFAULT_PLACES)
    return sizes
