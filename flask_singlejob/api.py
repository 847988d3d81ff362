"""Flask-APScheduler's job methods over one app's cluster: what ``SingleJob`` and ``jobs.scheduler`` call.

Owns the rule which jobs are defined and which are stored, and APScheduler's :class:`Job` as a view of a
cluster's job. Every handle it gives acts on the cluster; no state is kept in it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from apscheduler import events
from apscheduler.job import Job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING, STATE_STOPPED
from apscheduler.triggers.date import DateTrigger

from . import codec
from .catalog import EffectiveJob
from .definitions import Definition, check_id, define
from .errors import JobDefinitionError
from .makers import same_maker
from .records import ClaimRow, Run, from_ms, to_ms
from .ticks import TRIGGER_OPTIONS, build, grace_ms, local_zone, pin, zone_name

if TYPE_CHECKING:
    from .engine import Engine
    from .once import OnceTask

__all__ = ["ClusterJob", "JobsApi", "same_function"]

#: Options of ``add_job`` that say how to add, not what.
ADDING = ("replace_existing", "persist", "jobstore")
#: Which parts of a stored job each option of ``modify_job`` changes.
CHANGES: dict[str, tuple[str, ...]] = {
    "func": ("func",),
    "args": ("args",),
    "kwargs": ("kwargs",),
    "name": ("name",),
    "misfire_grace_time": ("grace",),
    "coalesce": ("coalesce",),
    "catch_up": ("grace", "coalesce"),
    "max_instances": ("max_instances",),
    "executor": ("executor",),
    "scope": ("scope",),
    "group": ("group",),
    "rerun_lost": ("rerun_lost",),
    "max_attempts": ("max_attempts",),
    "lease": ("lease",),
    "max_runtime": ("max_runtime",),
}


class ClusterJob(Job):  # type: ignore[misc]
    """APScheduler's job as the cluster has it; its methods act on the whole cluster.

    :ivar scope: ``cluster``, ``host`` or ``worker``.
    :ivar paused: True while it is paused.
    :ivar broken: why this process cannot run it, or None.
    """

    scope: str
    paused: bool
    broken: str | None

    def __init__(
        self, scheduler: Any, job: EffectiveJob, *, next_run_time: datetime | None, lease_ms: int
    ) -> None:
        definition = job.definition
        self._scheduler = scheduler
        self._jobstore_alias = "default"
        self.id = definition.id
        self.name = definition.name
        self.func = definition.func
        self.func_ref = definition.ref or _ref(definition.func)
        self.args = definition.args
        self.kwargs = dict(definition.kwargs)
        self.executor = definition.executor
        self.coalesce = definition.coalesce
        self.max_instances = definition.max_instances
        self.trigger = definition.custom or (None if job.schedule is None else job.schedule.trigger)
        grace = definition.grace
        if grace == "default":
            tick = None if next_run_time is None else to_ms(next_run_time)
            known = None
            if tick is not None and job.schedule is not None:
                known = grace_ms(grace, job.schedule, tick, lease_ms)
            grace = 60 if known is None else known // 1000
        self.misfire_grace_time = grace
        self.next_run_time = next_run_time
        self.scope = definition.scope
        self.paused = job.paused
        self.broken = job.broken

    def _follow(self, changed: Any) -> ClusterJob:
        """Show what the job has become, as a handle of APScheduler's does."""
        if isinstance(changed, ClusterJob):
            for name in (*Job.__slots__, *ClusterJob.__slots__):
                if name not in ("_scheduler", "__weakref__") and hasattr(changed, name):
                    setattr(self, name, getattr(changed, name))
        return self

    def modify(self, **changes: Any) -> ClusterJob:
        """Change the job in the whole cluster."""
        return self._follow(self._scheduler.modify_job(self.id, self._jobstore_alias, **changes))

    def reschedule(self, trigger: Any, **trigger_args: Any) -> ClusterJob:
        """Give the job another trigger in the whole cluster."""
        alias = self._jobstore_alias
        return self._follow(self._scheduler.reschedule_job(self.id, alias, trigger, **trigger_args))

    def pause(self) -> ClusterJob:
        """Pause the job in the whole cluster."""
        return self._follow(self._scheduler.pause_job(self.id, self._jobstore_alias))

    def resume(self) -> ClusterJob:
        """Resume the job in the whole cluster."""
        return self._follow(self._scheduler.resume_job(self.id, self._jobstore_alias))


def _ref(function: Any) -> str | None:
    if function is None:
        return None
    try:
        return codec.func_ref(function, registry={})
    except JobDefinitionError:
        return None


def function_name(function: Any) -> str:
    """Return a function's module and name, for errors."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def same_function(one: Any, other: Any) -> bool:
    """Tell whether two function objects come from the same piece of code (a module imported twice, a factory)."""
    one, other = inspect.unwrap(one), inspect.unwrap(other)
    if one is other:
        return True
    if function_name(one) != function_name(other):
        return False
    if type(getattr(one, "__self__", None)) is not type(getattr(other, "__self__", None)):
        return False
    first, second = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if first is None or second is None:
        return type(one) is type(other)
    same_file = first.co_filename == second.co_filename
    if same_file and first.co_firstlineno != second.co_firstlineno:
        return False
    nested = "<lambda>" in first.co_name or "<locals>" in getattr(one, "__qualname__", "")
    return (same_file or not nested) and all(
        same_function(*pair) for pair in zip(_closed_over(one), _closed_over(other), strict=False)
    )


def _closed_over(function: Any) -> list[Any]:
    """Return the functions that a function closes over: those that a decorator without ``wraps`` calls."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            if isinstance(cell.cell_contents, types.FunctionType) and cell.cell_contents is not function:
                found.append(cell.cell_contents)
    return found


def defined_twice(id: str, one: Any, other: Any) -> JobDefinitionError:
    """Return the error that names both functions of one id."""
    return JobDefinitionError(
        f"job id {id!r} is defined twice: by {_place(one)} and by {_place(other)}; give one of them another id="
    )


def _place(function: Any) -> str:
    """Return a function's name and, where that can be told, its file and line."""
    unwrapped = inspect.unwrap(function)
    code = getattr(unwrapped, "__code__", None)
    where = "" if code is None else f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    return f"{function_name(unwrapped)}{where}"


def normalised(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return (trigger, other options) from the forms that Flask-APScheduler takes."""
    rest = dict(options)
    trigger = rest.pop("trigger", None)
    if isinstance(trigger, Mapping):
        own = dict(trigger)
        trigger = own.pop("type", "date")
        for name, value in own.items():
            rest.setdefault(name, value)
    return trigger, rest


class JobsApi:
    """The jobs of one app, from this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # -- defining and adding -----------------------------------------------------------------------

    def definition(
        self, id: str | None, func: Any, trigger: Any, options: Mapping[str, Any], *, stored: bool = False
    ) -> Definition:
        """Return a definition from what a user gave.

        :raises JobDefinitionError: when it is none.
        """
        engine = self._engine
        ref: str | None = None
        if isinstance(func, str):
            ref, func = func, codec.resolve_ref(func, registry=engine.catalog.registry)
        elif not callable(func):
            raise JobDefinitionError(
                f"job {id!r}: func must be a callable or a text reference 'module:name', not {func!r}"
            )
        if id is None:
            id = codec.default_id(func)
        defaults = {**self._pattern_defaults(), **engine.settings.scheduler_job_defaults}
        made = define(id, func, trigger, options, defaults=defaults, ref=ref, stored=stored)
        if made.executor != "default":
            from .scheduler import executor_sizes

            known = executor_sizes(engine.settings.scheduler_executors, engine.pattern)
            if made.executor not in known:
                raise JobDefinitionError(
                    f"job {id!r}: no executor is named {made.executor!r} (known: {', '.join(sorted(known))}): "
                    "add it to SCHEDULER_EXECUTORS"
                )
        configured = engine.settings.scheduler_timezone
        if configured is not None:
            made = self._in_zone(made, zone_name(configured))
        return made

    def _pattern_defaults(self) -> dict[str, Any]:
        pattern = self._engine.pattern
        found = getattr(pattern, "_job_defaults", None)
        if not isinstance(found, Mapping) or isinstance(pattern, type):
            return {}
        # What a pattern does not set, APScheduler fills in: its one second of grace is not meant.
        return {
            key: value for key, value in found.items() if not (key == "misfire_grace_time" and value == 1)
        }

    @staticmethod
    def _in_zone(definition: Definition, name: str) -> Definition:
        from dataclasses import replace

        def zoned(fields: Any) -> Any:
            if fields.get("type") in ("and", "or"):
                return {**fields, "triggers": [zoned(part) for part in fields["triggers"]]}
            if fields.get("type") != "custom" and fields.get("zone") is None:
                return {**fields, "zone": name}
            return fields

        return replace(definition, fields=zoned(definition.fields))

    def define(self, definition: Definition, *, replace_existing: bool = False) -> None:
        """Take in a definition of the code.

        :raises JobDefinitionError: when another function has the id already, naming both.
        """
        engine = self._engine
        known = engine.catalog.defined.get(definition.id)
        if known is not None and not replace_existing and not same_function(known.func, definition.func):
            raise defined_twice(definition.id, known.func, definition.func)
        if definition.func is not None:
            self.register(definition.func, definition.id)
        engine.define(definition)

    def register(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Let a function be scheduled by name and over HTTP."""
        engine = self._engine
        name = check_id(codec.default_id(func) if name is None else name)
        known = engine.catalog.registry.get(name)
        if known is not None and not same_function(known, func) and name not in engine.catalog.defined:
            raise JobDefinitionError(
                f"the name {name!r} is registered twice: for {function_name(known)} and for {function_name(func)}"
            )
        engine.catalog.registry[name] = func

    def has_from_another_call(self, func: Callable[..., Any], name: str | None) -> bool:
        """Tell whether this app has a function of that name from another call, of the same factory or of another."""
        engine = self._engine
        task = engine.once.tasks.get(name or "")
        known = [engine.catalog.registry.get(name or ""), None if task is None else task.function]
        return any(
            other is not func and (same_function(other, func) or not same_maker(other, func))
            for other in known
            if other is not None
        )

    def once(self, task: OnceTask) -> None:
        """Take in a once-only task."""
        self._engine.once.add(task)

    def task(self, trigger: Any = None, id: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Decorate a function as a job of this app."""

        def decorate(func: Any) -> Any:
            kind, rest = normalised({**options, "trigger": trigger})
            replace = bool(rest.pop("replace_existing", False))
            self.define(self.definition(id, func, kind, rest), replace_existing=replace)
            return func

        return decorate

    def add_job(self, id: str | None, func: Any, **options: Any) -> Job:
        """Define a job (outside any request, job and command) or store one; see :class:`SingleJob`."""
        trigger, rest = normalised(options)
        replace_existing = bool(rest.pop("replace_existing", False))
        persist = rest.pop("persist", None)
        rest.pop("jobstore", None)
        stored = persist if persist is not None else self.at_runtime()
        made = self.definition(id, func, trigger, rest, stored=bool(stored))
        engine = self._engine
        if not stored:
            if made.id in engine.catalog.defined and not replace_existing:
                known = engine.catalog.defined[made.id]
                if not same_function(known.func, made.func):
                    raise defined_twice(made.id, known.func, made.func)
            self.define(made, replace_existing=True)
            engine.manager.defined_again(made.id)
            engine.events.job(events.EVENT_JOB_ADDED, made.id)
            return self._tentative(made)
        engine.manager.add(made, replace_existing=replace_existing)
        return self._handle_or_tentative(made)

    def at_runtime(self) -> bool:
        """Tell whether the caller is a request, a job or a command, not code that defines the app."""
        from flask import has_request_context

        from .process_context import in_command_body
        from .runner import current_run

        return has_request_context() or bool(current_run) or in_command_body()

    def defined_job(self, id: str | None) -> Job | None:
        """Return a handle of a job that the code defines, without asking the store."""
        known = self._engine.catalog.defined.get(id or "")
        return None if known is None else self._tentative(known)

    def _tentative(self, definition: Definition) -> Job:
        """Return a handle of a definition without asking the store."""
        engine = self._engine
        now = engine.clock.now_ms() if engine.clock.known else to_ms(datetime.now(timezone.utc))
        with engine.catalog_lock:
            job = engine.catalog.effective(definition.id, now=now)
        if job is None:
            raise JobLookupError(definition.id)
        tick = job.next_tick(now)
        return self._view(job, None if tick is None else from_ms(tick))

    def _handle_or_tentative(self, definition: Definition) -> Job:
        found = self.get_job(definition.id)
        if found is not None:
            return found
        # Its only tick has been run and the job is gone already.
        zone = self._engine.catalog.zone
        now = to_ms(datetime.now(timezone.utc))
        schedule = build(pin(definition.fields, now_ms=now, zone=zone), zone=zone, custom=definition.custom)
        return self._view(EffectiveJob(definition=definition, schedule=schedule, floor=0), None)

    def _view(self, job: EffectiveJob, next_run_time: datetime | None) -> Job:
        engine = self._engine
        zone = engine.catalog.zone
        moment = None if next_run_time is None else next_run_time.astimezone(zone)
        lease_ms = int((job.definition.lease or engine.settings.lease) * 1000)
        return ClusterJob(self.scheduler, job, next_run_time=moment, lease_ms=lease_ms)

    # -- reading --------------------------------------------------------------------------------------

    def get_job(self, id: str, jobstore: Any = None) -> Job | None:
        """Return a job as the cluster has it, or None."""
        manager = self._engine.manager
        job, now = manager.job(id)
        if job is None:
            return None
        return self._view(job, manager.next_run_time(job, manager.rows([job]).get(job.id), now))

    def get_jobs(self, jobstore: Any = None) -> list[Job]:
        """Return the cluster's jobs, those that run soonest first."""
        manager = self._engine.manager
        jobs, now = manager.jobs()
        rows: dict[str, ClaimRow] = manager.rows(jobs)
        views = [self._view(job, manager.next_run_time(job, rows.get(job.id), now)) for job in jobs]
        far = datetime.max.replace(tzinfo=timezone.utc)
        return sorted(views, key=lambda view: (view.next_run_time or far, view.id))

    # -- changing -------------------------------------------------------------------------------------

    def modify_job(self, id: str, jobstore: Any = None, **changes: Any) -> Job:
        """Change a job in the whole cluster.

        :raises JobLookupError: when there is no such job.
        :raises JobDefinitionError: for a change that cannot be made.
        """
        manager = self._engine.manager
        job, _ = manager.need(id)
        wanted = dict(changes)
        wanted.pop("jobstore", None)
        if "id" in wanted and wanted.pop("id") != id:
            raise JobDefinitionError(
                f"job {id!r}: the id of a job cannot be changed: remove it and add another"
            )
        next_run_time = wanted.get("next_run_time", ...)
        trigger, rest = normalised(wanted)
        has_trigger = "trigger" in changes or any(
            name in TRIGGER_OPTIONS for name in rest if name != "jitter"
        )
        if has_trigger and trigger is None:
            trigger = self._same_kind(job)
        names = {part for option in rest for part in CHANGES.get(option, ())}
        if has_trigger:
            names |= {"trigger", "jitter"}
        pause_only = next_run_time is None
        if next_run_time is None:
            rest.pop("next_run_time")
        elif next_run_time is not ...:
            names.add("first")
        func = rest.pop("func", None) or job.definition.ref or job.definition.func
        if isinstance(func, str) and "func" not in names:
            func = job.definition.func or func
        if "args" in names or "kwargs" in names:
            rest.setdefault("args", job.definition.args)
            rest.setdefault("kwargs", dict(job.definition.kwargs))
        elif "func" not in names:
            rest.update(args=job.definition.args, kwargs=dict(job.definition.kwargs))
        if job.definition.func is None and "func" not in names:
            raise JobDefinitionError(f"job {id!r} cannot be changed here: {job.broken}")
        # What has no meaning in the job's scope is refused as in a definition.
        rest.setdefault("scope", job.definition.scope)
        made = self.definition(id, func, trigger if has_trigger else DateTrigger(), rest)
        if names:
            manager.modify(id, made, names)
        if pause_only:
            manager.pause(id)
        elif next_run_time is not ...:
            manager.resume(id)
        found = self.get_job(id)
        if found is None:
            raise JobLookupError(id)
        return found

    @staticmethod
    def _same_kind(job: EffectiveJob) -> str:
        kind = job.definition.fields.get("type")
        if kind not in ("date", "interval", "cron", "calendarinterval"):
            raise JobDefinitionError(f"job {job.id!r}: give trigger= with the trigger's new options")
        return str(kind)

    def pause_job(self, id: str, jobstore: Any = None) -> Job | None:
        """Pause a job in the whole cluster until it is resumed."""
        self._engine.manager.pause(id)
        return self.get_job(id)

    def resume_job(self, id: str, jobstore: Any = None) -> Job | None:
        """Resume a job in the whole cluster; what fell due meanwhile is skipped."""
        self._engine.manager.resume(id)
        return self.get_job(id)

    def remove_job(self, id: str, jobstore: Any = None) -> None:
        """Remove a job from the whole cluster."""
        self._engine.manager.remove(id)

    def remove_all_jobs(self, jobstore: Any = None) -> None:
        """Remove every job from the whole cluster."""
        manager = self._engine.manager
        for job in manager.jobs()[0]:
            try:
                manager.remove(job.id)
            except JobLookupError:
                continue

    def run_job(self, id: str, jobstore: Any = None, *, wait: bool = True) -> Run | None:
        """Run a job by hand; see :class:`SingleJob`."""
        return self._engine.manager.run(id, wait=wait)

    # -- the whole --------------------------------------------------------------------------------------

    @property
    def scheduler(self) -> Any:
        """APScheduler's scheduler of this term, or one that only has the job methods."""
        return self._engine.scheduler or self._engine.idle_scheduler()

    def add_listener(self, callback: Any, mask: int = events.EVENT_ALL) -> None:
        """Tell a callable of this process's events."""
        self._engine.events.add(callback, mask)

    def remove_listener(self, callback: Any) -> None:
        """Stop telling a callable."""
        self._engine.events.remove(callback)

    def start(self, paused: bool = False, *, force: bool = False) -> None:
        """Wish to campaign."""
        if paused:
            self.pause()
        self._engine.start(force=force)

    def shutdown(self, wait: bool = True) -> None:
        """Leave until the next start; twice is no error."""
        self._engine.shutdown(wait=wait)

    def pause(self) -> None:
        """Pause the whole cluster."""
        self._engine.manager.pause_all()

    def resume(self) -> None:
        """Resume the whole cluster."""
        self._engine.manager.resume_all()

    @property
    def running(self) -> bool:
        """True while this process campaigns."""
        return self._engine.running

    @property
    def state(self) -> int:
        """``STATE_STOPPED``, ``STATE_PAUSED`` or ``STATE_RUNNING``: does this process campaign, is the cluster paused."""
        if not self.running:
            return int(STATE_STOPPED)
        return int(STATE_PAUSED if self._engine.manager.paused_all() else STATE_RUNNING)


class _Later:
    """Where the handle of a job that waits for an app sends what is done with it: to the extension, by then."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension

    def __getattr__(self, name: str) -> Any:
        if name == "reschedule_job":
            return self._reschedule
        return getattr(self._extension, name)

    def _reschedule(self, id: str, jobstore: Any = None, trigger: Any = None, **options: Any) -> Job:
        return self._extension.modify_job(id, jobstore, trigger=trigger, **options)


def tentative_job(extension: Any, definition: Definition) -> Job:
    """Return a handle of a job that no app has yet."""
    now = to_ms(datetime.now(timezone.utc))
    zone = local_zone()[0]
    schedule = build(pin(definition.fields, now_ms=now, zone=zone), zone=zone, custom=definition.custom)
    job = EffectiveJob(definition=definition, schedule=schedule, floor=now)
    made = ClusterJob(_Later(extension), job, next_run_time=None, lease_ms=30_000)
    made._jobstore_alias = None  # type: ignore[assignment]  # APScheduler's mark of a pending job
    return made
