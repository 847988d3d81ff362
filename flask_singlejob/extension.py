"""SingleJob: Flask-APScheduler's names over the engine of the current app.

Owns nothing but what was said before there was an app. The state of each app is its engine, in
``app.extensions["singlejob"]``; how a tick becomes a run is read from ``engine.py`` on.
"""

from __future__ import annotations

import gc
import inspect
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import flask_apscheduler
from apscheduler.events import EVENT_ALL
from apscheduler.job import Job
from apscheduler.schedulers.base import STATE_STOPPED
from flask import Flask, current_app, has_app_context

from .checks import safe_value
from .config import Settings, load_settings
from .engine import Engine
from .engine_access import EXTENSION, engine_of
from .errors import ConfigError, JobDefinitionError, SingleJobError
from .gate import Gate
from .makers import caller_code, is_local, made_by, same_maker

if TYPE_CHECKING:
    from .api import JobsApi
    from .definitions import Definition
    from .lease import Lease
    from .records import Health, Run

__all__ = ["SingleJob"]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
#: Stands for an option that was not given: one given as its default beats SCHEDULER_JOB_DEFAULTS too.
_UNSAID: Any = type("Unsaid", (), {"__repr__": lambda self: "<default>"})()
#: What Flask-APScheduler lets code set on the extension in place of configuration.
PRESETS: dict[str, Any] = {
    "api_enabled": False,
    "api_prefix": "/scheduler",
    "endpoint_prefix": "scheduler.",
    "auth": None,
    "allowed_hosts": ["*"],
}


@dataclass
class _Said:
    """Something the code said before (or beside) an app: it is said again to each app that it is for.

    :param once: for the next app only, since it belongs to the factory call that makes it.
    :param definition: the job that it defines, if any.
    :param replaces: it may take the place of another function's job of the same id.
    """

    apply: Callable[[JobsApi], None]
    once: bool = False
    definition: Definition | None = None
    replaces: bool = False


@dataclass
class _AppState:
    """What belongs to one app and not to the engine."""

    overrides: dict[str, Any] = field(default_factory=dict)
    authenticate: Callable[..., Any] | None = None
    authenticate_came_late: bool = False


class SingleJob(flask_apscheduler.APScheduler):  # type: ignore[misc]
    """Scheduled jobs that run once, however many workers and hosts serve the app.

    At most one worker per host owns the schedule; each tick is claimed in the shared store, so it runs at
    most once in the cluster. A run whose process dies is recorded as lost and not repeated, unless the
    job says ``rerun_lost``. There is no queue, and no retry of a job that failed.

    It is a :class:`flask_apscheduler.APScheduler`: its whole API works in every worker and acts on the cluster.

    :param app: the Flask app; or call :meth:`init_app`.
    :param scheduler: an APScheduler scheduler class, factory, or instance that serves as a pattern.
    :param store: a URL, an ``Engine`` or a Flask-SQLAlchemy ``db``; ``SINGLEJOB_STORE`` beats it.
    :raises ConfigError: when the app's configuration is wrong.
    """

    def __init__(self, *arguments: Any, app: Any = None, scheduler: Any = None, store: Any = None) -> None:
        # The parent's __init__ would build a scheduler at import, and keep one app's state on the object.
        given_app, given_scheduler = _sorted_out(arguments)
        self._pattern = _checked_pattern(scheduler if scheduler is not None else given_scheduler)
        self._store = store
        self._said: list[_Said] = []
        self._presets: dict[str, Any] = {}
        self._authenticate: Callable[..., Any] | None = None
        self._apps: weakref.WeakSet[Flask] = weakref.WeakSet()
        self._states: weakref.WeakKeyDictionary[Flask, _AppState] = weakref.WeakKeyDictionary()
        self._newest: weakref.ReferenceType[Flask] | None = None
        self._late: dict[str, Any] = {}
        self._wish: tuple[bool, bool] | None = None
        self._maker = caller_code(above="__init__")
        # An app given here lives as long as this object, as with Flask-APScheduler.
        self._given_app = app if app is not None else given_app
        if self._given_app is not None:
            self.init_app(self._given_app)

    def init_app(self, app: Flask) -> None:
        """Set an app up: read its configuration, take its jobs in, and campaign when this process serves.

        Starts no thread, takes no lock and sends no SQL by itself. Doing it twice for one app is harmless.

        :raises ConfigError: when the configuration or the scheduler is wrong, naming key, value and cure.
        :raises JobDefinitionError: when a job is.
        """
        app = _unwrapped(app)
        existing = app.extensions.get(EXTENSION)
        if existing is not None:
            if app in self._apps:
                return
            if not _give_way(app, existing):
                raise ConfigError(
                    f"the app {app.name!r} has a SingleJob already: make one SingleJob() and call init_app once per app"
                )
        pattern = _pattern_for_app(self._pattern)
        settings = _in_zone_of(pattern, load_settings(app, store=self._store, attributes=dict(self._presets)))
        _refuse_store(settings.store)
        engine = Engine(app, settings, pattern=pattern)
        app.extensions[EXTENSION] = engine
        app.apscheduler = self  # type: ignore[attr-defined]
        self._apps.add(app)
        self._newest = weakref.ref(app)
        self._states[app] = _AppState(authenticate=self._authenticate)
        self._late = {}
        app.wsgi_app = Gate(app.wsgi_app, engine)  # type: ignore[method-assign]
        self._take_said(engine)
        self._take_pattern_jobs(engine, pattern)
        self._take_configured_jobs(engine)
        from .cli import register_commands

        register_commands(app)
        if settings.api_enabled or settings.dashboard or settings.health_prefix or settings.metrics_path:
            from .web import register_web

            register_web(app, engine, self)
        if self._wish is not None:
            (paused, force), self._wish = self._wish, None
            engine.api.start(paused, force=force)

    def _take_said(self, engine: Engine) -> None:
        for said in list(self._said):
            said.apply(engine.api)
        self._said = [said for said in self._said if not said.once]

    @staticmethod
    def _take_pattern_jobs(engine: Engine, pattern: Any) -> None:
        for job, _, replacing in (
            getattr(pattern, "_pending_jobs", ()) if not isinstance(pattern, type) else ()
        ):
            options = {
                key: getattr(job, key)
                for key in (
                    "args",
                    "kwargs",
                    "name",
                    "misfire_grace_time",
                    "coalesce",
                    "max_instances",
                    "executor",
                )
                if hasattr(job, key)
            }
            definition = engine.api.definition(job.id, job.func, job.trigger, options)
            engine.api.define(definition, replace_existing=replacing)
        for callback, mask in getattr(pattern, "_listeners", ()) if not isinstance(pattern, type) else ():
            engine.events.add(callback, mask)

    @staticmethod
    def _take_configured_jobs(engine: Engine) -> None:
        seen: dict[str, str] = {}
        key = "SCHEDULER_JOBS" if engine.app.config.get("SCHEDULER_JOBS") else "JOBS"
        for number, entry in enumerate(engine.settings.scheduler_jobs):
            options = dict(entry)
            id, func = options.pop("id", None), options.pop("func", None)
            place = f"{key}[{number}]"
            if func is None:
                raise ConfigError(f"{place} has no 'func': {safe_value(entry)}")
            if isinstance(id, str):
                if id in seen and not options.get("replace_existing"):
                    raise ConfigError(f"{seen[id]} and {place} have the same id {id!r}")
                seen[id] = place
            if options.pop("persist", False):
                raise ConfigError(f"{place} has 'persist': the configuration defines jobs, it stores none")
            try:
                engine.api.add_job(id, func, persist=False, **options)
            except (SingleJobError, TypeError) as error:
                raise _wrong_entry(place, id, error) from error

    # -- which app --------------------------------------------------------------------------------------

    def _engine(self) -> Engine:
        engine = self._engine_or_none()
        if engine is None:
            raise RuntimeError(
                "Working outside of application context: this SingleJob serves no app yet, or its app is gone. "
                "Call init_app(app) first, or use it in an application context."
            )
        return engine

    def _engine_or_none(self) -> Engine | None:
        if has_app_context():
            app = _unwrapped(current_app)
            if app in self._apps:
                return engine_of(app)
        apps = list(self._apps)
        if len(apps) > 1:
            # Apps that nobody uses any more are kept for a while by their own reference cycles.
            del apps
            gc.collect()
            apps = list(self._apps)
        if len(apps) > 1:
            raise RuntimeError(
                f"Working outside of application context: this SingleJob serves {len(apps)} apps "
                f"({', '.join(sorted(app.name for app in apps))}); use it in the context of the one that is meant."
            )
        return engine_of(apps[0]) if apps else None

    def _api(self) -> JobsApi:
        return self._engine().api

    # -- defining -----------------------------------------------------------------------------------------

    def _say(
        self,
        function: Any,
        apply: Callable[[JobsApi], None],
        definition: Definition | None = None,
        *,
        name: str | None = None,
        replaces: bool = False,
    ) -> None:
        """Apply a definition to the apps it is for, now and later.

        :param name: what the function goes by: the id of the job, the key of the task, the registered name.
        :param replaces: it may take the place of another function's job of the same id.
        """
        if has_app_context() and _unwrapped(current_app) in self._apps:
            engine = engine_of(current_app)
            assert engine is not None
            apply(engine.api)
            return
        newest = self._newest() if self._newest is not None else None
        if is_local(function) and not made_by(function, self._maker):
            # Made by a factory call: for its own app, the one set up last, or the one about to be. An app that
            # has the function from an earlier call is not meant; one that serves may be, as may be the next.
            engine = None if newest is None else engine_of(newest)
            known = engine is None or engine.api.has_from_another_call(function, name)
            if engine is not None and not known:
                apply(engine.api)
            if newest is None or known or not self._being_made(newest):
                self._remember(_Said(apply, once=True, definition=definition, replaces=replaces))
            return
        for app in list(self._apps):
            engine = engine_of(app)
            if engine is not None:
                apply(engine.api)
        self._remember(_Said(apply, definition=definition, replaces=replaces))

    def _remember(self, said: _Said) -> None:
        """Keep what was said for apps that follow; a factory that says a job again replaces it.

        :raises JobDefinitionError: when another function of the same place has the id already, naming both.
        """

        from .api import defined_twice, same_function

        made = said.definition
        for index, known in enumerate(self._said):
            other = known.definition
            if made is None or other is None or other.id != made.id:
                continue
            if same_function(other.func, made.func):
                self._said[index] = said
                return
            if not said.replaces and known.once == said.once and same_maker(other.func, made.func):
                raise defined_twice(made.id, other.func, made.func)
        self._said.append(said)

    def _not_yet(self) -> list[Job]:
        """Return the jobs that wait for an app, as Flask-APScheduler shows pending ones."""

        from .api import tentative_job

        return [tentative_job(self, said.definition) for said in self._said if said.definition is not None]

    def _being_made(self, app: Flask) -> bool:
        """Tell whether a nested function is more likely meant for this app than for one that follows."""
        return not app._got_first_request

    # Flask-APScheduler has a property of that name, which gives its scheduler's decorator.
    def task(
        self,
        trigger: Any = None,
        id: str | None = None,
        *,
        scope: str = _UNSAID,
        group: str = _UNSAID,
        catch_up: bool | None = _UNSAID,
        rerun_lost: bool = _UNSAID,
        max_attempts: int = _UNSAID,
        lease: float | timedelta | None = _UNSAID,
        max_runtime: float | timedelta | None = _UNSAID,
        **apscheduler_options: Any,
    ) -> Callable[[F], F]:
        """Decorate a function as a job; it is returned unchanged.

        What is not given is taken from ``SCHEDULER_JOB_DEFAULTS``, else it is what is said here.

        :param trigger: ``cron``, ``interval``, ``date``, ``calendarinterval`` with their own options, or an
            APScheduler trigger object.
        :param id: default ``module.qualname`` of the function; a lambda or nested function needs one.
        :param scope: ``cluster`` (once per tick, the default), ``host`` (once per tick on each host) or ``worker``.
        :param group: only processes whose ``SINGLEJOB_GROUPS`` holds it run the job; default ``default``.
        :param catch_up: a missed tick runs however late, several as one; the default of ``date`` triggers.
        :param rerun_lost: a run whose process died is run again for the same tick; default False.
        :param max_attempts: how many times at most; default 3.
        :param lease: seconds or ``timedelta``; how long a dead run blocks the job, not how long it may take.
        :param max_runtime: seconds or ``timedelta`` after which the job is free for its next tick.
        :raises JobDefinitionError: when the definition is wrong, or the id belongs to another function.
        """
        if callable(trigger) and not hasattr(trigger, "get_next_fire_time"):
            raise JobDefinitionError(
                f'task() takes a trigger, not {trigger!r}: write @jobs.task("interval", minutes=5) or the like '
                "above the function"
            )
        named = {
            "scope": scope,
            "group": group,
            "catch_up": catch_up,
            "rerun_lost": rerun_lost,
            "max_attempts": max_attempts,
            "lease": lease,
            "max_runtime": max_runtime,
        }
        given = {
            **apscheduler_options,
            **{name: value for name, value in named.items() if value is not _UNSAID},
        }

        def decorate(function: F) -> F:
            made = _check_definition(function, id, trigger, given)
            self._say(
                function,
                lambda api: _defined(api.task(trigger, id, **given)(function)),
                made,
                name=made.id,
                replaces=bool(given.get("replace_existing")),
            )
            return function

        return decorate

    def register(self, func: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        """Let a function be scheduled over HTTP or by name without being a job itself.

        :param name: default ``module.qualname`` of the function.
        :returns: the function.
        :raises JobDefinitionError: when the name belongs to another function.
        """
        if not callable(func):
            raise ConfigError(f"register() takes a function, not {func!r}")
        self._say(func, lambda api: api.register(func, name), name=name)
        return func

    def once(
        self,
        key: str,
        *,
        version: str | Callable[[Flask], str] | None = None,
        before_requests: bool = False,
        wait: float | timedelta = 20,
    ) -> Callable[[Callable[..., Any]], Callable[..., bool]]:
        """Decorate a task that succeeds one time ever per key and version in the whole cluster.

        It runs by itself when a host elects its owner, or when called. A call gives True where it ran and
        False where it had run; while somebody else runs it, it waits up to ``wait`` seconds.

        :param version: a text, or a callable that is given the app; a release's commit makes it once per deploy.
        :param before_requests: workers answer 503 with Retry-After until it is done.
        :param wait: seconds or ``timedelta``.
        :raises LockHeldError: from a call, when somebody else still runs it after ``wait``.
        """

        from .locks import check_function, check_name, seconds_of
        from .once import OnceTask, decorate_once

        check_name(key, "the key of once()")
        if not isinstance(before_requests, bool):
            raise ConfigError(
                f"once({key!r}): before_requests must be True or False, not {before_requests!r}"
            )
        seconds = seconds_of(f"once({key!r}): wait", wait, least=0.0)

        def decorate(function: Callable[..., Any]) -> Callable[..., bool]:
            check_function(function, f"once({key!r})")
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise ConfigError(
                    f"once({key!r}): {function!r} is a generator function: calling it runs nothing of its body"
                )
            task = OnceTask(key, function, version, before_requests, seconds)
            self._say(function, lambda api: api.once(task), name=key)
            return decorate_once(task, lambda: self._engine().once)

        return decorate

    # -- Flask-APScheduler's names ---------------------------------------------------------------------------

    @property
    def app(self) -> Flask | None:
        """The current app, or the only live one; None when there is none."""
        engine = self._engine_or_none()
        return None if engine is None else engine.app_or_none

    @property
    def host_name(self) -> str:
        """The host id (``SINGLEJOB_HOST_ID``)."""
        return self._engine().settings.host_id

    @property
    def running(self) -> bool:
        """True while this process campaigns, as owner or standby."""
        engine = self._engine_or_none()
        return engine is not None and engine.running

    @property
    def state(self) -> int:
        """``STATE_RUNNING`` while this process campaigns, ``STATE_PAUSED`` while the cluster is paused too."""
        engine = self._engine_or_none()
        return int(STATE_STOPPED) if engine is None else engine.api.state

    @property
    def scheduler(self) -> Any:
        """APScheduler's scheduler of this term of ownership; its job methods act on the cluster."""
        return self._api().scheduler

    def start(self, paused: bool = False, *, force: bool = False) -> None:
        """Wish to campaign; ``init_app`` does it by itself in a process that serves.

        In a process recognised as not serving (a command, a preload master, a task queue's worker, a test) it
        does nothing unless forced; in any other it campaigns at once. Twice is no error.

        :param paused: pause the whole cluster first.
        :param force: campaign here whatever this process is.
        """
        if self._engine_or_none() is None:
            self._wish = (paused, force)
            return
        self._api().start(paused, force=force)

    def shutdown(self, wait: bool = True) -> None:
        """Leave, until :meth:`start`: another worker takes over. Twice is no error.

        :param wait: wait for this process's running jobs, up to ``SINGLEJOB_SHUTDOWN_TIMEOUT``.
        """
        self._api().shutdown(wait)

    def pause(self) -> None:
        """Pause the whole cluster, stored: no job runs by schedule until :meth:`resume`."""
        self._api().pause()

    def resume(self) -> None:
        """Resume the whole cluster; what fell due meanwhile is skipped."""
        self._api().resume()

    def add_listener(self, callback: Callable[[Any], Any], mask: int = EVENT_ALL) -> None:
        """Tell a callable of APScheduler's events of this process; the cluster's runs are in :meth:`runs`."""
        self._say(None, lambda api: api.add_listener(callback, mask))

    def remove_listener(self, callback: Callable[[Any], Any]) -> None:
        """Stop telling a callable."""
        self._say(None, lambda api: api.remove_listener(callback))

    def add_job(self, id: str | None, func: Any, **kwargs: Any) -> Job:
        """Add a job: defined when called outside any request, job and command, stored otherwise.

        :param id: the job's id; None: ``module.qualname`` of the function.
        :param func: a callable or a text reference ``module:name``.
        :param kwargs: ``trigger`` and its options, APScheduler's job options, those of :meth:`task`,
            ``replace_existing``, and ``persist=True`` (store it wherever the call is made).
        :raises ConflictingIdError: when another job is stored under the id.
        :raises JobDefinitionError: when it cannot be defined or stored.
        """

        from . import codec
        from .api import tentative_job

        engine = self._engine_or_none()
        if has_app_context() or kwargs.get("persist") or (engine is not None and engine.api.at_runtime()):
            return self._api().add_job(id, func, **kwargs)
        options = {key: value for key, value in kwargs.items() if key != "persist"}
        function = codec.resolve_ref(func, registry={}) if isinstance(func, str) and ":" in func else func
        made = None
        if callable(function):
            made = _check_definition(function, id, None, options)
        name = id if made is None else made.id
        self._say(
            function,
            lambda api: _defined(api.add_job(id, func, persist=False, **options)),
            made,
            name=name,
            replaces=bool(options.get("replace_existing")),
        )
        if engine is not None:
            found = engine.api.defined_job(name)
            if found is not None:
                return found
        if made is None:
            raise JobDefinitionError(
                f"job {id!r}: no function is registered as {func!r} yet: call init_app first"
            )
        return tentative_job(self, made)

    def remove_job(self, id: str, jobstore: Any = None) -> None:
        """Remove a job from the whole cluster.

        :raises JobLookupError: when there is none.
        """
        self._api().remove_job(id, jobstore)

    def remove_all_jobs(self, jobstore: Any = None) -> None:
        """Remove every job from the whole cluster."""
        self._api().remove_all_jobs(jobstore)

    def get_job(self, id: str, jobstore: Any = None) -> Job | None:
        """Return a job as the cluster has it, or None."""
        if self._engine_or_none() is None:
            return next((job for job in self._not_yet() if job.id == id), None)
        return self._api().get_job(id, jobstore)

    def get_jobs(self, jobstore: Any = None) -> list[Job]:
        """Return the cluster's jobs."""
        return self._not_yet() if self._engine_or_none() is None else self._api().get_jobs(jobstore)

    def modify_job(self, id: str, jobstore: Any = None, **changes: Any) -> Job:
        """Change a job in the whole cluster.

        :raises JobLookupError: when there is none.
        """
        return self._api().modify_job(id, jobstore, **changes)

    def pause_job(self, id: str, jobstore: Any = None) -> Job | None:
        """Pause a job in the whole cluster, over restarts and releases.

        :raises JobLookupError: when there is none.
        """
        return self._api().pause_job(id, jobstore)

    def resume_job(self, id: str, jobstore: Any = None) -> Job | None:
        """Resume a job in the whole cluster; what fell due meanwhile is skipped.

        :raises JobLookupError: when there is none.
        """
        return self._api().resume_job(id, jobstore)

    @overload
    def run_job(self, id: str, jobstore: Any = None, *, wait: Literal[True] = True) -> Run: ...
    @overload
    def run_job(self, id: str, jobstore: Any = None, *, wait: Literal[False]) -> None: ...
    @overload
    def run_job(self, id: str, jobstore: Any = None, *, wait: bool) -> Run | None: ...
    def run_job(self, id: str, jobstore: Any = None, *, wait: bool = True) -> Run | None:
        """Run a job by hand: here and now under its claim, or (``wait=False``) by an owner, soon.

        :returns: the ended run, failed or not; None with ``wait=False``.
        :raises LockHeldError: when the job is running, saying where since when.
        :raises JobLookupError: when there is none.
        """
        return self._api().run_job(id, jobstore, wait=wait)

    def authenticate(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the function that checks the REST API's authorization; see Flask-APScheduler.

        In an app's context it is for that app. Before ``init_app`` it is for the apps that follow; after it,
        for the app that was set up last. No app ever gets another's in place of its own.
        """
        if has_app_context() and _unwrapped(current_app) in self._states:
            self._states[_unwrapped(current_app)].authenticate = func
            return func
        newest = self._newest() if self._newest is not None else None
        state = None if newest is None else self._states.get(newest)
        if state is not None and (state.authenticate is None or state.authenticate_came_late):
            state.authenticate, state.authenticate_came_late = func, True
        else:
            self._authenticate = func
        return func

    def authenticator(self, app: Flask) -> Callable[..., Any] | None:
        """Return what :meth:`authenticate` was given for an app."""
        state = self._states.get(app)
        return None if state is None else state.authenticate

    def auth_of(self, app: Flask) -> Any:
        """Return the object that reads the credentials of requests to an app's REST API, or None."""
        return self._attribute(app, "auth")

    def _attribute(self, app: Flask, name: str) -> Any:
        """Return what Flask-APScheduler keeps on the object, for one app."""
        state, engine = self._states.get(app), engine_of(app)
        if engine is None or state is None:
            return self._presets.get(name, PRESETS[name])
        newest = self._newest() if self._newest is not None else None
        if app is newest and name in self._late and not (name == "auth" and self._late[name] is None):
            return self._late[name]
        return state.overrides.get(name, getattr(engine.settings, name))

    # -- more than Flask-APScheduler ----------------------------------------------------------------------------

    @contextmanager
    def lock(
        self, name: str, *, lease: float | timedelta | None = None, wait: float | timedelta = 0
    ) -> Iterator[Lease]:
        """Hold a named lock of the cluster for the block.

        :param lease: seconds or ``timedelta``; renewed while the block runs.
        :param wait: how long to wait for it, seconds or ``timedelta``.
        :raises LockHeldError: when it is not free in time, also when this thread holds it.
        :raises StoreError: when the store does not answer.
        """
        engine = self._engine()
        with engine.claiming(), engine.locks.lock(name, lease=lease, wait=wait) as held:
            yield held

    @property
    def is_owner(self) -> bool:
        """True while this process owns its host's schedule."""
        engine = self._engine_or_none()
        return engine is not None and engine.is_owner

    def status(self) -> dict[str, Any]:
        """Return a JSON-ready picture of this host, the living hosts, the jobs and what is worth a look.

        :raises StoreError: when the store does not answer.
        """

        from . import status as reports

        return reports.status(self._engine())

    def runs(
        self,
        job_id: str | None = None,
        *,
        status: Any = None,
        since: datetime | timedelta | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Return runs of the cluster, newest first.

        :param status: a status or several, by name or :class:`RunStatus`.
        :param since: only those at or after it: an aware datetime, or a span up to now.
        :raises StoreError: when the store does not answer.
        """

        from . import status as reports

        return reports.runs(self._engine(), job_id, status=status, since=since, limit=limit)

    def health(self, check: str = "all") -> Health:
        """Tell whether something is wrong; true or false as a bool, never an error.

        :param check: ``live``, ``ready``, ``jobs`` or ``all``.
        """

        from . import status as reports

        return reports.health(self._engine(), check)


def _preset(name: str) -> property:
    """Return a property that holds what Flask-APScheduler keeps on the object: per app once there is one."""

    def get(self: SingleJob) -> Any:
        engine = self._engine_or_none()
        return self._presets.get(name, PRESETS[name]) if engine is None else self._attribute(engine.app, name)

    def set(self: SingleJob, value: Any) -> None:
        if has_app_context() and _unwrapped(current_app) in self._states:
            self._states[_unwrapped(current_app)].overrides[name] = value
            return
        # For the apps that follow, and until the next of them is set up also for the one that was last.
        self._presets[name] = value
        self._late[name] = value

    return property(get, set, doc=f"``{name}``, as in Flask-APScheduler; per app.")


def _show_signatures() -> None:
    """Let ``help`` show the arguments as they are meant: each with the default that holds when nobody sets another."""

    def init(self: Any, app: Any = None, *, scheduler: Any = None, store: Any = None) -> None: ...

    defaults = {
        **{"scope": "cluster", "group": "default", "catch_up": None, "rerun_lost": False},
        **{"max_attempts": 3, "lease": None, "max_runtime": None},
    }
    task = inspect.signature(SingleJob.task)
    shown = [
        parameter.replace(default=defaults.get(name, parameter.default))
        for name, parameter in task.parameters.items()
    ]
    SingleJob.task.__signature__ = task.replace(parameters=shown)  # type: ignore[attr-defined]
    SingleJob.__init__.__signature__ = inspect.signature(init)  # type: ignore[attr-defined]


_show_signatures()

for _name in PRESETS:
    setattr(SingleJob, _name, _preset(_name))


class _WrongEntry(ConfigError, JobDefinitionError):
    """A job of the configuration that is none: the configuration is wrong, and the definition."""


def _wrong_entry(place: str, id: Any, error: Exception) -> ConfigError:
    """Return the error that says which entry of the configuration is wrong."""
    if id is None:
        return _WrongEntry(f"{place}: {error}")
    return _WrongEntry(f"{place} (id {id!r}): {str(error).removeprefix(f'job {id!r}: ')}")


def _defined(function: Any) -> None:
    return None


def _check_definition(function: Any, id: str | None, trigger: Any, options: dict[str, Any]) -> Definition:
    """Raise at the decorator, not at ``init_app``, what can be known by then."""

    from . import codec
    from .api import normalised
    from .definitions import define

    kind, rest = normalised({"trigger": trigger, **options})
    rest.pop("replace_existing", None)
    return define(codec.default_id(function) if id is None else id, function, kind, rest)


def _give_way(app: Flask, engine: Engine) -> bool:
    """Let a SingleJob that was set up for an app and then never used go, as Flask-APScheduler does.

    :returns: False when it is in use: it has jobs, serves, or answers requests of its own.
    """
    gate = app.wsgi_app
    if engine.in_use or not isinstance(gate, Gate) or gate.engine is not engine:
        return False
    previous = app.apscheduler  # type: ignore[attr-defined]
    previous._apps.discard(app)
    previous._states.pop(app, None)
    app.wsgi_app = gate.inner  # type: ignore[method-assign]
    del app.extensions[EXTENSION]
    engine.discard()
    return True


def _unwrapped(app: Any) -> Flask:
    """Return the app itself for a proxy of one."""
    get = getattr(app, "_get_current_object", None)
    found: Flask = app if get is None else get()
    if not hasattr(found, "extensions"):
        raise ConfigError(f"init_app() takes a Flask app, not {app!r}")
    return found


def _in_zone_of(pattern: Any, settings: Settings) -> Settings:
    """Take over the time zone that a pattern was given, unless the configuration names one."""
    if pattern is None:
        return settings
    from .ticks import local_zone, zone_name

    zone = None if isinstance(pattern, type) else getattr(pattern, "timezone", None)
    # A scheduler that was given none has the host's, which is the default here too.
    if zone is None or settings.scheduler_timezone is not None or zone_name(zone) == local_zone()[1]:
        return settings
    return replace(settings, scheduler_timezone=zone)


def _refuse_store(store: Any) -> None:
    """Refuse at start what can be no store, not at the first claim.

    :raises ConfigError: naming the key, the value without its password, and the cure.
    """
    if store is None:
        return
    from .stores import check_store

    try:
        check_store(store)
    except ConfigError as error:
        raise ConfigError(f"SINGLEJOB_STORE is {safe_value(store)}. {error}") from error


def _is_factory(pattern: Any) -> bool:
    """Tell whether the user's ``scheduler`` makes schedulers (and is neither a class nor one itself)."""
    return callable(pattern) and not isinstance(pattern, type) and not hasattr(pattern, "add_job")


def _pattern_for_app(given: Any) -> Any:
    """Return the scheduler class or instance that serves an app as the pattern, made if a factory was given.

    :raises ConfigError: for one that cannot serve, as a whole or by its job stores or executors.
    """
    if given is None:
        # The usual case: nothing of APScheduler's executors is imported for it.
        return None
    from .scheduler import check_pattern

    pattern = given
    if _is_factory(given):
        pattern = given()
        if pattern is None:
            raise ConfigError(f"scheduler={safe_value(given)}: the factory returned None, not a scheduler")
    check_pattern(pattern)
    return pattern


def _sorted_out(arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return (app, scheduler) from positional arguments in either order.

    :raises ConfigError: for anything else.
    """
    app: Any = None
    scheduler: Any = None
    for argument in arguments:
        if argument is None:
            continue
        if hasattr(argument, "wsgi_app") and app is None:
            app = argument
        elif not hasattr(argument, "wsgi_app") and scheduler is None:
            scheduler = argument
        else:
            raise ConfigError(
                f"SingleJob() takes one app and one scheduler, not {argument!r} beside another: "
                "for several apps call init_app(app) with each"
            )
    if len(arguments) > 2:
        raise ConfigError(
            f"SingleJob() takes an app and a scheduler, not {len(arguments)} positional arguments"
        )
    return app, scheduler


def _checked_pattern(pattern: Any) -> Any:
    """Return what was given as ``scheduler``.

    :raises ConfigError: for what is neither a scheduler nor makes one.
    """
    if pattern is None or callable(pattern) or hasattr(pattern, "add_job"):
        return pattern
    raise ConfigError(
        f"SingleJob() takes an app, and a scheduler of APScheduler (its class, a factory or an instance), "
        f"not {safe_value(pattern)}"
    )
