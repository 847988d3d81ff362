"""One app's parts wired together: settings, store, election, and the term of ownership while there is one.

Owns their lives: what starts when this process serves, what ends when it is told to stop, what a forked
child must not touch. Holds its app weakly until it serves, so that an app that was only imported can go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING, Any

from . import forks, process
from .checks import safe_url
from .clock import StoreClock, steady_seconds
from .config import Settings
from .errors import SingleJobError, StoreError
from .green import green_kind
from .logs import be_heard
from .parts import part

if TYPE_CHECKING:
    from flask import Flask

    from .api import JobsApi
    from .catalog import Catalog, EffectiveJob
    from .claims import Claimant, DeathProof
    from .definitions import Definition
    from .election import Campaign, Elector
    from .events import EventHub
    from .hosts import HostBook
    from .lanes import Lane
    from .lease import Keeper, Lease
    from .locks import LockPlace
    from .manage import Manager
    from .observer import AppObserver
    from .once import OnceTasks
    from .outages import Outages
    from .presence import Presence
    from .runner import Runner
    from .scheduler import OwnerScheduler
    from .stores.base import Store
    from .term import Term
    from .worker import WorkerJobs

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


class Engine:
    """Everything of one app.

    :param app: the Flask app.
    :param settings: read once, at ``init_app``.
    :param pattern: the scheduler class, factory or instance that the user gave.
    """

    def __init__(self, app: Flask, settings: Settings, *, pattern: Any = None) -> None:
        self._app_ref: Callable[[], Flask | None] = weakref.ref(app)
        self._app_strong: Flask | None = None
        self.app_name = app.name
        self._instance_path = app.instance_path
        self.settings = settings
        self.pattern = pattern
        self._store: Store | None = None
        self._zone: tuple[tzinfo, str] | None = None
        self._lanes: dict[str, Lane] | None = None
        self.campaign: Campaign | None = None
        self.elector: Elector | None = None
        self.term: Term | None = None
        self.scheduler: OwnerScheduler | None = None
        self.worker_jobs: WorkerJobs | None = None
        self._begin_process()
        self.wanted = True
        self.forced = False
        self.serving: str | None = None
        self.leaving = False
        self.trouble: str | None = None
        self.failovers = 0
        forks.watch(self)
        process.attach(self)

    # -- who this process is ----------------------------------------------------------------------

    #: Parts that belong to one process: a forked child makes its own.
    PER_PROCESS = (
        "claimant",
        "clock",
        "hosts",
        "keeper",
        "locks",
        "manager",
        "outages",
        "presence",
        "runner",
    )

    def _begin_process(self) -> None:
        """Forget what belongs to another process, and make the locks anew."""
        self.instance = uuid.uuid4().hex
        self.pid = os.getpid()
        self._threads_were = green_kind()
        self.parts_lock = threading.RLock()
        self.catalog_lock = threading.RLock()
        self._store_lock = threading.RLock()
        self._life_lock = threading.RLock()
        self._created = False
        for name in self.PER_PROCESS:
            self.__dict__.pop(name, None)
        for name in ("events", "once"):
            if name in self.__dict__:
                self.__dict__[name].renew_locks()

    # -- parts, made at their first use ---------------------------------------------------------------

    @part
    def events(self) -> EventHub:
        """APScheduler's listeners of this app."""
        from .events import EventHub

        return EventHub()

    @part
    def catalog(self) -> Catalog:
        """The jobs: what the code defines, and what the store changed."""
        from .catalog import Catalog

        return Catalog(self._zone_until_pinned)

    @part
    def observer(self) -> AppObserver:
        """Whom runs are told to."""
        from .observer import AppObserver

        return AppObserver(lambda: self.app_or_none, self.events)

    @part
    def api(self) -> JobsApi:
        """The job methods of Flask-APScheduler."""
        from .api import JobsApi

        return JobsApi(self)

    @part
    def once(self) -> OnceTasks:
        """The once-only tasks."""
        from .once import OnceTasks

        return OnceTasks(self, lambda: self.locks)

    @part
    def clock(self) -> StoreClock:
        """The store's clock as this process estimates it."""
        return StoreClock()

    @part
    def outages(self) -> Outages:
        """When the store was away, as this process saw it."""
        from .outages import Outages

        return Outages(self.clock, self.describe_store)

    @part
    def claimant(self) -> Claimant:
        """Who this process is in its claims."""
        from .claims import Claimant
        from .election import instance_tag

        return Claimant(self.settings.host_id, self.pid, self.instance, instance_tag())

    @part
    def keeper(self) -> Keeper:
        """Renews the leases of this process."""
        from .lease import Keeper

        return Keeper(lambda: self.store)

    @part
    def runner(self) -> Runner:
        """Performs claimed runs."""
        from .runner import Runner

        return Runner(self.keeper, self.clock, self.observer)

    @part
    def locks(self) -> LockPlace:
        """Where named locks and once-only tasks are claimed."""
        from .locks import LockPlace

        return LockPlace(
            lambda: self.store,
            lambda: self.claimant,
            keeper=self.keeper,
            lease_seconds=self.settings.lease,
            proof=lambda: self.proof,
            on_lost=self._lock_lost,
        )

    @part
    def manager(self) -> Manager:
        """Changes to jobs from this process."""
        from .manage import Manager

        return Manager(self)

    @part
    def hosts(self) -> HostBook:
        """The cluster's hosts, as this host's owner knows them."""
        from .hosts import HostBook

        return HostBook(
            self.claimant,
            lease_seconds=self.settings.lease,
            describe=self._describe_host,
            zone_name=self.own_zone_name,
        )

    @part
    def presence(self) -> Presence:
        """What proves this process alive to the others of its host."""
        from .presence import Presence

        return Presence(self.settings.lock_file, self.instance)

    # -- the app ------------------------------------------------------------------------------------

    @property
    def app(self) -> Flask:
        """The app.

        :raises RuntimeError: when it is gone.
        """
        app = self._app_strong or self._app_ref()
        if app is None:
            raise RuntimeError("the Flask app of this SingleJob is gone")
        return app

    @property
    def app_or_none(self) -> Flask | None:
        """The app, or None when it is gone."""
        return self._app_strong or self._app_ref()

    # -- store --------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store; nothing is connected before its first verb."""
        store = self._store
        if store is None:
            with self._store_lock:
                store = self._store
                if store is None:
                    store = self._store = self._open_store()
        return store

    def _open_store(self) -> Store:
        from .stores import open_store

        settings = self.settings
        given = settings.store
        if given is None:
            if self.app.testing:
                given = "memory://"
            else:
                given = "sqlite:///" + os.path.join(self._instance_path, "singlejob.db").replace("\\", "/")
        if hasattr(given, "engines") and hasattr(given, "session"):
            with self.app.app_context():
                given = given.engine
        return open_store(
            given,
            cluster=settings.cluster,
            table_prefix=settings.table_prefix,
            schema=settings.schema,
            options=settings.store_options,
            base_dir=self._instance_path,
        )

    def describe_store(self) -> str:
        """Return the store's name without any secret."""
        if self._store is not None:
            return self._store.describe()
        return (
            "SQLite in the instance folder" if self.settings.store is None else safe_url(self.settings.store)
        )

    def ready_store(self) -> Store:
        """Return the store with its tables made, as far as this process may make them."""
        store = self.store
        if self.settings.create_tables and not self._created:
            store.create()
            self._created = True
        return store

    # -- zone ---------------------------------------------------------------------------------------

    def _zone_of_host(self) -> tuple[tzinfo, str]:
        if self._zone is None:
            from .ticks import local_zone, zone_name

            configured = self.settings.scheduler_timezone
            if configured is not None:
                self._zone = (configured, zone_name(configured))
            else:
                zone, name, warning = local_zone()
                if warning:
                    logger.warning("%s", warning)
                self._zone = (zone, name)
        return self._zone

    def _zone_until_pinned(self) -> tzinfo:
        return self._zone_of_host()[0]

    def own_zone_name(self) -> str | None:
        """Return the name of the zone that this host would use by itself."""
        return self._zone_of_host()[1]

    # -- functions ----------------------------------------------------------------------------------

    def call(self, job: EffectiveJob) -> Callable[..., object]:
        """Return the job's function as it is called: ``async def`` through the app's ``ensure_sync``."""
        return self.callable_of(job.definition)

    def callable_of(self, definition: Definition) -> Callable[..., Any]:
        """Return a definition's function, ready to be called."""
        func = definition.func
        if func is None:
            raise SingleJobError(f"job {definition.id!r} cannot run here: {definition.broken}")
        return self.app.ensure_sync(func)

    # -- definitions ------------------------------------------------------------------------------------

    def define(self, definition: Definition) -> None:
        """Take in a definition of the code, before or after this process serves."""
        with self.catalog_lock:
            self.catalog.define(definition)
        self._defined(definition.id)

    def undefine(self, job_id: str) -> None:
        """Drop a definition of the code."""
        with self.catalog_lock:
            self.catalog.undefine(job_id)
        self._defined(job_id)

    def _defined(self, job_id: str) -> None:
        term = self.term
        if term is not None:
            term.define(job_id)
        if self.serving is not None:
            self._start_worker_jobs()

    def poke(self) -> None:
        """Have this process's owner, if it is one, see a change at once."""
        term = self.term
        if term is not None:
            term.poke()
        if self.worker_jobs is not None:
            self.worker_jobs.poke()

    # -- life (called by process.py) -----------------------------------------------------------------------

    def start(self, *, force: bool = False) -> None:
        """Wish to campaign, and do so at once unless this process is recognised as not serving.

        :param force: also where it is (a command, ``app.testing``).
        """
        with self._life_lock:
            self.wanted = True
            self.leaving = False
            self._told_at = None
            self.forced = self.forced or force
        if self.serving is not None:
            self._serve()
            return
        role = process.current_role().role
        # A server that has not finished loading the app calls serve() by itself in a moment.
        if force or (role.may_campaign and role is not process.Role.STARTING):
            process.note_started()
            self.serve("start()")

    def serve(self, reason: str) -> None:
        """Begin to serve: campaign, and run what every worker runs. Harmless when it does already."""
        if self.serving is not None and (self.campaign is not None or not self.settings.enabled):
            return
        if self.serving is None and self._threads_were != green_kind() and not self._holds_leases():
            # Threads were replaced since init_app: a lock made before would stop every greenlet.
            self._begin_process()
        with self._life_lock:
            if self.serving is None:
                app = self.app_or_none
                if app is None:
                    return
                if app.testing and not self.forced:
                    return
                self.serving = reason
                self._app_strong = app
                be_heard()
        self._serve()

    def _holds_leases(self) -> bool:
        return "keeper" in self.__dict__ and bool(self.keeper.held)

    def _serve(self) -> None:
        settings = self.settings
        if not settings.enabled or not self.wanted or self.leaving:
            return
        allowed = settings.allowed_hosts
        if "*" not in allowed and settings.host_id not in allowed and settings.host_id.lower() not in allowed:
            logger.info(
                "This host (%s) is not among SCHEDULER_ALLOWED_HOSTS (%s): it runs no job by schedule",
                settings.host_id,
                ", ".join(allowed),
            )
            return
        with self._life_lock:
            if self.campaign is not None:
                self.campaign.start()
                self._start_worker_jobs()
                return
            if self._starter is not None and self._starter.is_alive():
                return
            # Opening a store imports its driver: off the path that answers the first request.
            self._starter = threading.Thread(target=self._begin_campaign, name="singlejob-start", daemon=True)
            self._starter.start()

    _starter: threading.Thread | None = None

    def _begin_campaign(self) -> None:
        from .election import Campaign

        try:
            store = self.store
            self.presence.hold()
            self.presence.tell_peers(self.identity(store))
            elector = self.make_elector(store)
            campaign = Campaign(
                elector, self, subject=f"the schedule of host {self.settings.host_id}", logger=logger
            )
        except Exception as error:
            self.trouble = f"this worker cannot campaign: {error}"
            logger.exception("This worker (pid %d) cannot campaign, it runs no job by schedule", os.getpid())
            return
        with self._life_lock:
            if self.leaving or not self.wanted:
                return
            self.elector = elector
            self.campaign = campaign
            campaign.start()
        self._warm_up(store)
        self._start_worker_jobs()

    def _warm_up(self, store: Store) -> None:
        """Import and make what an owner needs now, so that a standby takes over without importing anything."""
        from . import scheduler, term, worker  # noqa: F401

        for name in ("runner", "hosts", "outages", "api", "once", "events", "observer", "lanes"):
            getattr(self, name)
        prepare = getattr(store, "prepare", None)
        if prepare is not None:
            with contextlib.suppress(Exception):
                prepare()

    def identity(self, store: Store) -> str:
        """Return what tells this app's election on this host from any other."""
        user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
        settings = self.settings
        return "\n".join(
            [settings.cluster, settings.host_id, str(user), store.identity, settings.table_prefix]
        )

    def make_elector(self, store: Store) -> Elector:
        """Return the elector of this app on this host."""
        from .election import make_elector

        settings = self.settings
        return make_elector(
            settings.election,
            identity=self.identity(store),
            lock_file=settings.lock_file,
            port=settings.election_port,
            instance=self.instance,
        )

    def hold_alive(self) -> None:
        """Make sure that claims of this process can be told from a dead one's."""
        with self._life_lock:
            self.presence.hold()

    @property
    def proof(self) -> DeathProof | None:
        """What proves processes of this host dead, as far as this process can tell."""
        return self.presence.proof

    def _start_worker_jobs(self) -> None:
        with self._life_lock:
            if self.leaving or not self.wanted or not self.settings.enabled:
                return
            groups = self.settings.groups
            wanted = any(
                definition.scope == "worker" and (groups is None or definition.group in groups)
                for definition in list(self.catalog.defined.values())
            )
            if not wanted and self.worker_jobs is None:
                return
            if self.worker_jobs is None:
                from .worker import WorkerJobs

                self.worker_jobs = WorkerJobs(self)
            self.worker_jobs.sync()

    def told_to_stop(self, quick: bool) -> None:
        """Hand ownership over now. Runs in a signal handler: takes no lock, waits for nothing."""
        self.leaving = True
        if self._told_at is None:
            self._told_at = steady_seconds()
        self._quick = self._quick or quick
        campaign = self.campaign
        if campaign is not None:
            campaign.stop("this worker was told to stop")

    _quick = False
    _told_at: float | None = None

    def leave(self, quick: bool) -> None:
        """Hand ownership over, and let the runs of this process end within the shutdown timeout.

        :param quick: do not wait for them.
        """
        if self.pid != os.getpid():
            return
        self.told_to_stop(quick)
        quick = quick or self._quick
        if self.worker_jobs is not None:
            self.worker_jobs.stop()
        if self.campaign is not None:
            self.campaign.wait_until_left(2.0)
        told_at = steady_seconds() if self._told_at is None else self._told_at
        deadline = told_at + (0.0 if quick else self.settings.shutdown_timeout)
        lanes = (self._lanes or {}).values()
        idle = all(lane.wait_idle(max(0.0, deadline - steady_seconds())) for lane in lanes)
        if not idle:
            self._cut_off()
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.close()

    def _cut_off(self) -> None:
        """Record what this process is about to cut off as lost; if that fails, its death will tell."""
        done = threading.Event()

        def body() -> None:
            from .term import end_own_runs

            with contextlib.suppress(Exception):
                for run in end_own_runs(self.store, self.clock, self.claimant, reason="shutdown"):
                    logger.warning(
                        "run %s of job %r is cut off by the stop of its worker", run.id, run.job_id
                    )
                    self.observer.lost(run)
            done.set()

        threading.Thread(target=body, name="singlejob-cut-off", daemon=True).start()
        done.wait(1.5)

    def shutdown(self, *, wait: bool = True) -> None:
        """Leave until :meth:`start`: no campaign, no runs by schedule; what runs is finished."""
        with self._life_lock:
            self.wanted = False
            campaign, worker_jobs = self.campaign, self.worker_jobs
            self.worker_jobs = None
        if worker_jobs is not None:
            worker_jobs.stop()
        if campaign is not None:
            campaign.stop("shutdown() was called")
            campaign.wait_until_left(5.0)
        if wait:
            deadline = steady_seconds() + self.settings.shutdown_timeout
            for lane in (self._lanes or {}).values():
                lane.wait_idle(max(0.0, deadline - steady_seconds()))

    def after_fork(self) -> None:
        """Forget, in a forked child, what is the parent's. Runs in a fork hook: only marks and closes."""
        if "keeper" in self.__dict__:
            self.__dict__["keeper"].after_fork()
        store = self._store
        if store is not None:
            store.after_fork()
            if not store.identity.startswith("memory://"):
                # Opened anew where it is used: its locks may be held by a thread that the child has not.
                self._store = None
        self.campaign = None
        self.elector = None
        self.term = None
        self.scheduler = None
        self._idle_scheduler = None
        self.worker_jobs = None
        self._starter = None
        self._lanes = None
        self.serving = None
        self.leaving = False
        self._quick = False
        self._told_at = None
        self.trouble = None
        self._begin_process()

    @property
    def lanes(self) -> dict[str, Lane]:
        """The places for runs, by executor."""
        if self._lanes is None:
            from .lanes import Lane
            from .scheduler import executor_sizes

            sizes = executor_sizes(self.settings.scheduler_executors, self.pattern)
            self._lanes = {alias: Lane(alias, size) for alias, size in sizes.items()}
        return self._lanes

    # -- hooks of the campaign ---------------------------------------------------------------------------

    def begin_term(self) -> None:
        """Own this host's schedule."""
        from . import signals
        from .term import Term, TermParts

        if self.leaving or not self.wanted:
            raise SingleJobError("this worker is leaving")
        scheduler = self.new_scheduler()
        self.hosts.start_term()
        settings = self.settings
        term = Term(
            TermParts(
                store=self.store,
                clock=self.clock,
                runner=self.runner,
                observer=self.observer,
                catalog=self.catalog,
                catalog_lock=self.catalog_lock,
                claimant=self.claimant,
                proof=self.proof,
                lanes=self.lanes,
                hosts=self.hosts,
                lease_seconds=settings.lease,
                poll_seconds=settings.poll_interval,
                history_days=settings.history_days,
                history_runs=settings.history_runs,
                create_tables=settings.create_tables and not self._created,
                zone_name=self.own_zone_name,
                groups=settings.groups,
                trouble=self.outages.note,
                away=self.outages.covers,
                call=self.call,
                once=self._run_once_tasks,
                ready=self._term_ready,
            ),
            wake=scheduler.wake,
        )
        self.owner_since = datetime.now(timezone.utc)
        self.term, self.scheduler = term, scheduler
        scheduler.begin(term.step)
        term.begin()
        self.failovers += 1
        self.events.scheduler_started()
        self._aside(lambda: self.observer.send(signals.owner_elected))

    owner_since: datetime | None = None

    def _term_ready(self) -> None:
        self._created = True
        logger.debug("the jobs are read, the schedule runs")
        if not self.hosts.known_before:
            self._warn_of_default_store()
        self.presence.sweep()

    def check_term(self) -> str | None:
        """Return why this term must end now, if it must."""
        if process.stopping():
            self.leaving = True
            return "this worker is stopping"
        term, scheduler = self.term, self.scheduler
        if term is None or scheduler is None:
            return "it has no scheduler"
        if not scheduler.thread_alive:
            return "the scheduler's thread is dead"
        self.presence.renew()
        return term.check()

    def end_term(self, reason: str) -> None:
        """Own it no longer: claim nothing more. Running jobs go on under their own claims."""
        term, scheduler = self.term, self.scheduler
        self.term = self.scheduler = None
        if term is not None:
            term.end()
        if scheduler is not None:
            scheduler.end()
        logger.info("This worker (pid %d) no longer owns the schedule: %s", os.getpid(), reason)
        self.events.scheduler_stopped()
        self._aside(self._say_left)

    def _say_left(self) -> None:
        from . import signals

        self.observer.send(signals.owner_resigned)
        with contextlib.suppress(Exception):
            self.hosts.leave(self.store)

    @staticmethod
    def _aside(work: Callable[[], None]) -> None:
        """Do what may take its time off the path that hands ownership on."""
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=work, name="singlejob-aside", daemon=True).start()

    def new_scheduler(self) -> OwnerScheduler:
        """Return a scheduler for one term (after a shutdown APScheduler's own would run nothing)."""
        from .scheduler import scheduler_class

        scheduler = scheduler_class(self.pattern)(timezone=self._zone_of_host()[0])
        scheduler.actions = self.api
        return scheduler

    def idle_scheduler(self) -> OwnerScheduler:
        """Return a scheduler whose job methods act on the cluster and whose loop never starts."""
        if self._idle_scheduler is None:
            self._idle_scheduler = self.new_scheduler()
        return self._idle_scheduler

    _idle_scheduler: OwnerScheduler | None = None

    def _run_once_tasks(self) -> None:
        self.once.start()

    def _warn_of_default_store(self) -> None:
        app = self.app_or_none
        if self.settings.store_is_default and app is not None and not app.debug and not app.testing:
            logger.warning(
                "SINGLEJOB_STORE is not set: jobs are kept single on this host only, by a SQLite file in %s. "
                "Several hosts need a shared store, such as postgresql://…",
                self._instance_path,
            )

    def _describe_host(self) -> dict[str, Any]:
        from . import __version__
        from .surroundings import container_platform, describe_server

        groups = self.settings.groups
        return {
            "version": __version__,
            "owner_since": self.owner_since.isoformat() if self.owner_since else None,
            "groups": None if groups is None else sorted(groups),
            "workers": self.presence.workers(),
            "store_local": self.store.local,
            "container": container_platform(),
            "server": describe_server(self.store),
            "renewals_failed": self.keeper.failed_renewals,
            "warnings": list(self.hosts.warnings),
        }

    @property
    def in_use(self) -> bool:
        """True when anything was defined, started or opened with it, or it answers requests of its own."""
        settings, catalog = self.settings, self.catalog
        web = settings.api_enabled or settings.dashboard or settings.health_prefix or settings.metrics_path
        defined = catalog.defined or catalog.registry or self.once.tasks
        return bool(web or defined or self.serving or self._store is not None or self.campaign is not None)

    def discard(self) -> None:
        """Never serve: another engine has taken this one's place."""
        self.wanted, self.leaving = False, True
        self._app_ref = _no_app

    @property
    def is_owner(self) -> bool:
        """True while this process owns its host's schedule."""
        campaign = self.campaign
        return campaign is not None and campaign.state == "owner"

    @property
    def running(self) -> bool:
        """True while this process campaigns (as standby or owner)."""
        if self.leaving or not self.wanted or self.serving is None or not self.settings.enabled:
            return False
        starter = self._starter
        if self.campaign is None:
            return starter is not None and starter.is_alive()
        return self.campaign.state in ("waiting", "owner")

    def bump_rows(self) -> None:
        """Have every owner read the rows again."""
        with contextlib.suppress(StoreError):
            self.manager.bump_rows()

    @staticmethod
    def _lock_lost(lease: Lease) -> None:
        logger.warning("the lease on %s %r (token %s) is lost", lease.key.kind, lease.key.name, lease.token)

    @contextlib.contextmanager
    def claiming(self) -> Iterator[Claimant]:
        """Prepare this process for a claim by hand."""
        self.hold_alive()
        self.ready_store()
        if not self.clock.known:
            self.sync_clock()
        yield self.claimant

    def sync_clock(self) -> int:
        """Ask the store for its time.

        :returns: the store's clock, UTC milliseconds.
        :raises StoreError: when it does not answer.
        """
        sent = steady_seconds()
        now = self.store.poll().now
        self.clock.sync(now, sent, steady_seconds())
        return now


def _no_app() -> None:
    return None
