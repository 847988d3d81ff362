"""One app's engine: when it campaigns, what an owner does, and how it leaves.

Owns the lives of its parts (``engine_parts.py``): what starts when this process serves, what ends when it is
told to stop, what a forked child must not touch. Holds its app weakly until it serves, so that an app that
was only imported can go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from . import forks, process, programs
from .clock import steady_seconds
from .config import Settings
from .engine_parts import EngineParts
from .green import green_kind
from .logs import be_heard
from .surroundings import memory_trouble

if TYPE_CHECKING:
    from flask import Flask

    from .definitions import Definition
    from .election import Campaign, Elector
    from .lanes import Lane
    from .scheduler import OwnerScheduler
    from .stores.base import Store
    from .term import Term
    from .worker import WorkerJobs

__all__ = ["Engine"]

logger = logging.getLogger(__name__)

#: A stopping worker waits at most so long until the store was told that its host has no owner, seconds.
_FAREWELL_SECONDS = 1.0

#: The signal of an election waits at most so long for the jobs to be read, seconds.
_ELECTED_SECONDS = 1.0

#: Seconds that a campaign begun in a test waits for the test to set ``app.testing``.
_TEST_PAUSE = 0.1


class Engine(EngineParts):
    """Everything of one app in this process; the hooks of its campaign.

    :param app: the Flask app.
    :param settings: read once, at ``init_app``.
    :param pattern: the scheduler class, factory or instance that the user gave.
    """

    def __init__(self, app: Flask, settings: Settings, *, pattern: Any = None) -> None:
        super().__init__(app, settings, pattern=pattern)
        self._lanes: dict[str, Lane] | None = None
        self.campaign: Campaign | None = None
        self.elector: Elector | None = None
        self.term: Term | None = None
        self.scheduler: OwnerScheduler | None = None
        self.worker_jobs: WorkerJobs | None = None
        self.wanted = True
        self.forced = False
        self.serving: str | None = None
        self.leaving = False
        self.trouble: str | None = None
        self.failovers = 0
        forks.watch(self)
        process.attach(self)
        if process.this.may_import_ahead:
            self._import_ahead()

    def _import_ahead(self) -> None:
        """Import and make, where workers are forked from, what each would: after a reload an owner is there sooner."""
        from . import election, scheduler, term, worker  # noqa: F401

        given = self.settings.store
        if given is None or (isinstance(given, str) and not given.startswith(("mongodb", "memory"))):
            # Connects to nothing; what is wrong with it, the workers say.
            with contextlib.suppress(Exception):
                store = self._open_store()
                self._prepare(store, rows=None)
                self._store_ahead = store

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

        if programs.is_test_run() and not self.forced:
            # A test may set app.testing after its factory has called start(): nothing is taken before.
            time.sleep(_TEST_PAUSE)
            app = self.app_or_none
            if app is None or app.testing:
                self.serving = self._app_strong = None
                return
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
        self.own_zone_name()
        with contextlib.suppress(Exception):
            self._prepare(store, rows=len(self.catalog.defined))

    @staticmethod
    def _prepare(store: Store, *, rows: int | None) -> None:
        """Make ready, without connecting, what an owner asks a store first.

        :param rows: of how many jobs it will read the rows; None: not known yet.
        """
        from .catalog_reader import KINDS

        prepare = getattr(store, "prepare", None)
        if prepare is not None:
            prepare(kinds=len(KINDS) + 1, rows=rows)

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
    _farewell: threading.Thread | None = None
    _elected: threading.Thread | None = None

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
        if self._farewell is not None and not quick:
            # Else this host would count as living, with an owner, until it was silent for long.
            self._farewell.join(_FAREWELL_SECONDS)
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.close()
        if idle and not self._holds_leases() and "presence" in self.__dict__:
            # Nothing is left that its death would have to be proven for.
            self.presence.leave()

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
        from .election import Declined
        from .term import Term, TermParts

        if self.leaving or not self.wanted:
            raise Declined("this worker is leaving")
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
                create_tables=settings.create_tables,
                zone_name=self.own_zone_name,
                groups=settings.groups,
                outages=self.outages,
                call=self.call,
                once=self._run_once_tasks,
                once_again=self._look_at_once_tasks_again,
                ready=self._term_ready,
            ),
            wake=scheduler.wake,
        )
        self.owner_since = datetime.now(timezone.utc)
        self.term, self.scheduler = term, scheduler
        # The jobs are read while the scheduler starts.
        term.begin()
        try:
            scheduler.begin(term.step)
        except BaseException:
            term.end()
            scheduler.end()
            self.term = self.scheduler = None
            raise
        self.failovers += 1
        self._elected = self._aside(lambda: self._say_elected(term))

    def _say_elected(self, term: Term) -> None:
        from . import signals

        # Receivers may take their time: the jobs are read first, should the store answer.
        term.wait_loaded(_ELECTED_SECONDS)
        self.events.scheduler_started()
        self.observer.send(signals.owner_elected)

    def _term_ready(self) -> None:
        self._created = True
        logger.debug("the jobs are read, the schedule runs")
        trouble = memory_trouble(self.store)
        if trouble is not None:
            logger.error("%s", trouble)
        if not self.hosts.known_before:
            self._warn_of_default_store()
            if self.own_zone_name() and self.zone_warning:
                logger.warning("%s", self.zone_warning)
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
        self._farewell = self._aside(self._say_left)

    def _say_left(self) -> None:
        from . import signals

        if self._elected is not None:
            self._elected.join(_FAREWELL_SECONDS)
        self.events.scheduler_stopped()
        self.observer.send(signals.owner_resigned)
        with contextlib.suppress(Exception):
            self.hosts.leave(self.store)

    @staticmethod
    def _aside(work: Callable[[], None]) -> threading.Thread | None:
        """Do what may take its time off the path that hands ownership on."""
        thread = threading.Thread(target=work, name="singlejob-aside", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

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

    def _look_at_once_tasks_again(self) -> None:
        self.once.look_again()

    def _warn_of_default_store(self) -> None:
        app = self.app_or_none
        if self.settings.store_is_default and app is not None and not app.debug and not app.testing:
            logger.warning(
                "SINGLEJOB_STORE is not set: jobs are kept single on this host only, by a SQLite file in %s. "
                "Several hosts need a shared store, such as postgresql://…",
                self._instance_path,
            )

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


def _no_app() -> None:
    return None
