"""One term of ownership: the planner, the poll of the store, and the scheduler that drives them.

Owns everything that begins when this worker becomes its host's owner and ends when it is one no longer.
A term begins whether the store answers or not: what has to be read is read as soon as it does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .catalog import Catalog, EffectiveJob
from .catalog_reader import CatalogReader, pin_definitions
from .claims import Claimant, DeathProof, sweep
from .clock import StoreClock, steady_seconds
from .errors import StoreError
from .hosts import HostBook
from .lanes import Lane
from .outages import Outages
from .planner import Planner
from .records import Doc, Poll, Run
from .runner import Observer, Runner
from .stores.base import Store

__all__ = ["Term", "TermParts"]

logger = logging.getLogger(__name__)

#: The scheduler's thread must have looked at its jobs this recently (seconds); it does so every second.
STUCK_SECONDS = 10.0
#: A poll ends, well or with a StoreError, within this time (seconds): every store has time limits of its own.
POLL_STUCK_SECONDS = 30.0
PRUNE_SECONDS = 300.0
PRUNE_STEP = 500


@dataclass(frozen=True)
class TermParts:
    """What a term is made of; everything outlives it but what it makes itself."""

    store: Store
    clock: StoreClock
    runner: Runner
    observer: Observer
    catalog: Catalog
    catalog_lock: threading.RLock
    claimant: Claimant
    proof: DeathProof | None
    lanes: Mapping[str, Lane]
    hosts: HostBook
    lease_seconds: float
    poll_seconds: float
    history_days: float
    history_runs: int
    create_tables: bool
    zone_name: Callable[[], str | None]
    groups: frozenset[str] | None
    outages: Outages
    call: Callable[[EffectiveJob], Callable[..., object]]
    once: Callable[[], None]
    once_again: Callable[[], None]
    ready: Callable[[], None]


class Term:
    """Runs the schedule of this host until it is ended.

    :param wake: makes the scheduler's loop look now.
    """

    def __init__(self, parts: TermParts, *, wake: Callable[[], None]) -> None:
        self._parts = parts
        self._wake_loop = wake
        self._over = threading.Event()
        self._poke = threading.Event()
        self._reader = CatalogReader(parts.catalog, parts.catalog_lock)
        self._revision = 0
        self._loaded = False
        self._loaded_or_over = threading.Event()
        self._created = False
        self._failed = False
        self._wrote = False
        self._told_ready = False
        self._pending: set[str] = set()
        self._prune_at = steady_seconds() + min(10.0, PRUNE_SECONDS)
        self._poller: threading.Thread | None = None
        self._stuck_seen = 0
        self._polling_since: float | None = None
        self._ready_for: Any = None
        self.last_poll: float | None = None
        self.planner = Planner(
            store=parts.store,
            clock=parts.clock,
            runner=parts.runner,
            observer=parts.observer,
            claimant=parts.claimant,
            lanes=parts.lanes,
            lease_seconds=parts.lease_seconds,
            wake=wake,
            trouble=parts.outages.note,
            away=parts.outages.covers,
            call=parts.call,
            rank=parts.hosts.rank,
            trigger_ended=self._trigger_ended,
        )

    @property
    def loaded(self) -> bool:
        """True once the jobs were read and are being scheduled."""
        return self._loaded

    def wait_loaded(self, seconds: float) -> bool:
        """Wait until the jobs were read or the term is over, at most so many seconds.

        :returns: whether the jobs were read.
        """
        self._loaded_or_over.wait(seconds)
        return self.loaded

    def begin(self) -> None:
        """Start to poll; the jobs are read by the first poll that is answered."""
        self._poller = threading.Thread(target=self._poll_loop, name="singlejob-poll", daemon=True)
        self._poller.start()

    def end(self) -> None:
        """Claim nothing more, at once. Runs of this process go on under their own claims."""
        self._over.set()
        self._loaded_or_over.set()
        self.planner.stop()
        self._poke.set()
        self._wake_loop()

    def step(self) -> float:
        """Do what the scheduler's loop is for.

        :returns: seconds until it wants to be called again, at most 1.
        """
        return min(1.0, self.planner.step())

    def check(self) -> str | None:
        """Return why this term must end, if it must."""
        if self._poller is not None and not self._poller.is_alive() and not self._over.is_set():
            return "the thread that polls the store is dead"
        now, polling = steady_seconds(), self._polling_since
        behind = now - self.planner.last_step
        asking = 0.0 if polling is None else now - polling
        # Twice in a row: after a freeze of the whole process the watch may look before the threads could.
        stuck = behind > STUCK_SECONDS or asking > POLL_STUCK_SECONDS
        self._stuck_seen = self._stuck_seen + 1 if stuck else 0
        if self._stuck_seen < 2:
            return None
        if behind > STUCK_SECONDS:
            return f"the scheduler's thread has been stuck for {behind:.0f} s"
        return f"a call to the store has not returned for {asking:.0f} s"

    def poke(self) -> None:
        """Poll now: this process just changed something."""
        self._poke.set()

    def define(self, job_id: str) -> None:
        """Take in a definition that the code added, replaced or removed after the term began."""
        self._pending.add(job_id)
        self._poke.set()

    # -- the poll -------------------------------------------------------------------------------

    def _poll_loop(self) -> None:
        pause = 0.0
        while not self._over.is_set():
            self._poke.wait(pause)
            self._poke.clear()
            if self._over.is_set():
                return
            self._polling_since = steady_seconds()
            self._wrote = False
            try:
                self._poll()
                pause = self._parts.poll_seconds
                self._parts.outages.note(None, wrote=self._wrote)
            except StoreError as error:
                # The tables may be what is missing: an emptied or replaced database gets them again.
                self._failed, self._created = True, False
                self._parts.outages.note(error, wrote=self._wrote)
                pause = min(2.0, max(0.25, self._parts.poll_seconds))
            except Exception:
                logger.exception("a poll of the store failed; the next one follows")
                pause = max(1.0, self._parts.poll_seconds)
            finally:
                self._polling_since = None

    def _poll(self) -> None:
        parts = self._parts
        # A successor finds the tables there: they are looked after once the schedule runs, or when needed.
        if self.loaded or self._failed:
            self._create()
        sent = steady_seconds()
        try:
            poll = parts.store.poll()
        except StoreError:
            if self._created:
                raise
            self._create()
            sent = steady_seconds()
            poll = parts.store.poll()
        moved = parts.clock.sync(poll.now, sent, steady_seconds())
        self.last_poll = steady_seconds()
        parts.runner.look_after()
        if not self.loaded:
            self._load(poll)
        elif poll.revision != self._revision:
            self._changes(poll)
        if self._pending:
            self._late_definitions(poll.now)
        self._sweep(poll)
        self.planner.seen_held(poll.held)
        if abs(moved) > 1000:
            logger.warning("the store's clock moved by %+.1f s against this host's", moved / 1000)
        self.planner.clock_moved(moved)
        if parts.hosts.is_due or parts.outages.refused:
            # Where a write failed, this one tells whether the store takes them again.
            self._wrote = True
            parts.hosts.beat(parts.store, poll.now, parts.catalog, parts.clock.offset_seconds, at_once=True)
        if not self._told_ready:
            self._told_ready = True
            parts.ready()
        self._retire(poll.now)
        self._prune(poll.now)

    def _create(self) -> None:
        if not self._created:
            if self._parts.create_tables:
                self._parts.store.create()
            self._created = True

    def _load(self, poll: Poll) -> None:
        parts = self._parts
        self._pending.clear()
        for request in self._reader.refresh(parts.store, poll.revision, also="request").others:
            self._request(request)
        self._pin(poll.now)
        self._revision = poll.revision
        with parts.catalog_lock:
            jobs = [job for job in parts.catalog.all(now=poll.now) if self._mine(job)]
        self.planner.begin(jobs)
        self._loaded = True
        self._loaded_or_over.set()
        self._wake_loop()
        parts.once()

    def _mine(self, job: EffectiveJob) -> bool:
        groups = self._parts.groups
        return job.definition.scope != "worker" and (groups is None or job.definition.group in groups)

    def _update(self, job_ids: Iterable[str], now: int) -> None:
        for job_id in job_ids:
            with self._parts.catalog_lock:
                job = self._parts.catalog.effective(job_id, now=now)
            self.planner.update(job_id, job if job is not None and self._mine(job) else None)

    def _pin(self, now: int) -> None:
        parts = self._parts
        with parts.catalog_lock:
            new = any(
                pin is None or pin.body.get("retired")
                for definition in parts.catalog.defined.values()
                if definition.scope != "worker"
                for pin in [parts.catalog.pins.get(definition.fingerprint)]
            )
        if new:
            # Told before it is pinned: nobody takes a definition that somebody has for abandoned.
            parts.hosts.beat(parts.store, now, parts.catalog, parts.clock.offset_seconds, at_once=True)
        pin_definitions(
            parts.store,
            parts.catalog,
            parts.catalog_lock,
            now=now,
            zone_name=parts.zone_name(),
            by=parts.claimant.host,
        )

    def _changes(self, poll: Poll) -> None:
        parts = self._parts
        changes = self._reader.refresh(parts.store, poll.revision, also="request")
        for doc in changes.others:
            self._request(doc)
        changed = set(changes.jobs)
        if changes.full or changes.cluster & {"zone", "pause"}:
            with parts.catalog_lock:
                changed |= set(parts.catalog.ids())
        if "rows" in changes.cluster:
            self.planner.forget_rows()
            parts.once_again()
        self._update(changed, poll.now)
        self._revision = poll.revision

    def _request(self, doc: Doc) -> None:
        if doc.deleted:
            self.planner.drop_request(doc.id)
        else:
            self.planner.ask(doc.id, str(doc.body.get("job_id")), doc.revision)

    def _late_definitions(self, now: int) -> None:
        parts = self._parts
        with parts.catalog_lock:
            pending, self._pending = self._pending, set()
        try:
            self._pin(now)
        except StoreError:
            self._pending |= pending
            raise
        self._update(pending, now)

    def _sweep(self, poll: Poll) -> None:
        held = tuple(row for row in poll.held if not self.planner.doubts(row))
        for row, lost in sweep(self._parts.store, held, now=poll.now, proof=self._parts.proof):
            if lost is None:
                continue
            logger.warning(
                "run %s of job %r (tick %s, host %s, pid %s) is lost: %s",
                lost.id,
                lost.job_id,
                lost.scheduled_at.isoformat(),
                lost.host,
                lost.pid,
                "its process died"
                if lost.reason == "process_died"
                else "its lease ended without an end of the run",
            )
            self._parts.observer.lost(lost)
            self.planner.row_freed(row.key.with_slot(0))

    def _trigger_ended(self, job: EffectiveJob) -> None:
        """Remove a stored job whose trigger has no further tick."""
        if self._parts.store.delete("job", job.id, expect=job.revision):
            logger.debug("stored job %r has no further tick and is removed", job.id)
            with self._parts.catalog_lock:
                self._parts.catalog.forget_stored(job.id)
            self.planner.update(job.id, None)

    def _retire(self, now: int) -> None:
        """Mark definitions that no living host's code has any more, so that they start anew if they return."""
        parts = self._parts
        gone = parts.hosts.abandoned(parts.catalog)
        for mark in gone:
            doc = parts.catalog.pins[mark]
            written = parts.store.put(
                "definition", mark, {**doc.body, "retired": now}, expect=doc.revision, quiet=False
            )
            if written is None:
                written = parts.store.doc("definition", mark)
            if written is not None:
                with parts.catalog_lock:
                    parts.catalog.take_pins([written])

    def _prune(self, now: int) -> None:
        if steady_seconds() < self._prune_at:
            return
        parts = self._parts
        before = now - int(parts.history_days * 86_400_000)
        deleted = parts.store.prune(before=before, keep=parts.history_runs, limit=PRUNE_STEP)
        # In small steps, one per poll, so that no lock is held for long.
        self._prune_at = steady_seconds() + (0.0 if deleted >= PRUNE_STEP else PRUNE_SECONDS)


def end_own_runs(store: Store, clock: StoreClock, claimant: Claimant, *, reason: str) -> list[Run]:
    """Record the runs that this process is about to cut off as lost."""
    from .claims import end_dead_claim

    ended = []
    for row in store.poll().held:
        if row.info.get("instance") == claimant.instance and row.holder is not None:
            lost = end_dead_claim(store, row, now=clock.now_ms(), reason=reason, forced=True)
            if lost is not None:
                ended.append(replace(lost))
    return ended
