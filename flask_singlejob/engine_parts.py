"""What one app's engine is made of: settings, store, zone, and the parts that are made when they are needed.

Owns what belongs to one process and must be made anew in another. What an engine does is in ``engine.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, cast

from .checks import safe_url
from .clock import StoreClock, steady_seconds
from .config import Settings
from .errors import SingleJobError, StoreError
from .green import green_kind
from .parts import part

if TYPE_CHECKING:
    from flask import Flask

    from .api import JobsApi
    from .catalog import Catalog, EffectiveJob
    from .claims import Claimant, DeathProof
    from .definitions import Definition
    from .engine import Engine
    from .events import EventHub
    from .hosts import HostBook
    from .lease import Keeper, Lease
    from .locks import LockPlace
    from .manage import Manager
    from .observer import AppObserver
    from .once import OnceTasks
    from .outages import Outages
    from .presence import Presence
    from .runner import Runner
    from .stores.base import Store

__all__ = ["EngineParts"]

logger = logging.getLogger(__name__)


class EngineParts:
    """What one app's engine is made of; each part is made at its first use.

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
        self.owner_since: datetime | None = None
        self._begin_process()

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

        return JobsApi(cast("Engine", self))

    @part
    def once(self) -> OnceTasks:
        """The once-only tasks."""
        from .once import OnceTasks

        return OnceTasks(cast("Engine", self), lambda: self.locks)

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

        return Manager(cast("Engine", self))

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
                    store = self._store = self._take_store_ahead() or self._open_store()
        return store

    #: A store made where workers are forked from and never used there; each worker uses its copy.
    _store_ahead: Store | None = None

    def _take_store_ahead(self) -> Store | None:
        store, self._store_ahead = self._store_ahead, None
        if store is not None:
            store.after_fork()
        return store

    def _open_store(self) -> Store:
        from .stores import is_flask_sqlalchemy, open_store

        settings = self.settings
        given = settings.store
        if given is None:
            if self.app.testing:
                given = "memory://"
            else:
                from .stores.sql_target import url_of_file

                given = url_of_file(os.path.join(self._instance_path, "singlejob.db"))
        if is_flask_sqlalchemy(given):
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

    #: Why UTC stands in for this host's zone, if it does; the owner says so, once per host.
    zone_warning: str | None = None

    def _zone_of_host(self) -> tuple[tzinfo, str]:
        if self._zone is None:
            from .ticks import local_zone, zone_name

            configured = self.settings.scheduler_timezone
            if configured is not None:
                self._zone = (configured, zone_name(configured))
            else:
                zone, name, self.zone_warning = local_zone()
                self._zone = (zone, name)
        return self._zone

    def _zone_until_pinned(self) -> tzinfo:
        return self._zone_of_host()[0]

    def own_zone_name(self) -> str | None:
        """Return the name of the zone that this host would use by itself."""
        return self._zone_of_host()[1]

    # -- functions ----------------------------------------------------------------------------------

    def call(self, job: EffectiveJob) -> Callable[..., object]:
        """Return the job's function as it is called: until its body has run, ``async def`` too."""
        return self.callable_of(job.definition)

    def callable_of(self, definition: Definition) -> Callable[..., Any]:
        """Return a definition's function, ready to be called."""
        func = definition.func
        if func is None:
            raise SingleJobError(f"job {definition.id!r} cannot run here: {definition.broken}")
        from .bodies import to_the_end

        return to_the_end(self.app, func)

    # -- claims by hand ---------------------------------------------------------------------------

    def hold_alive(self) -> None:
        """Make sure that claims of this process can be told from a dead one's."""
        with self._life_lock:
            self.presence.hold()

    @property
    def proof(self) -> DeathProof | None:
        """What proves processes of this host dead, as far as this process can tell."""
        return self.presence.proof

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
