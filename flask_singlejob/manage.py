"""Changes to jobs from any process: rows and documents in the store, which every owner follows.

Owns add, modify, pause, resume, remove, reset, run by hand and unlock, for one app. Each change names what
it changed (revision, fingerprint), so two at once never lose one of them. Knows no Flask request.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from apscheduler import events
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from . import codec
from .catalog import EffectiveJob
from .catalog_reader import CatalogReader
from .claims import end_dead_claim, held_run, job_key, never_claimed, sweep
from .clock import steady_seconds
from .definitions import CHANGEABLE, STORED_VERSION, Definition, definition_body, equal_definitions
from .errors import ConfigError, JobDefinitionError, SingleJobError, StoreError
from .locks import held_error
from .records import ClaimKey, ClaimRequest, ClaimRow, Doc, Run, from_ms, new_id
from .ticks import check_storable, pin

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Manager"]

logger = logging.getLogger(__name__)

#: A change that loses the race against another is tried again, on what that one left, so many times.
TRIES = 20


class Manager:
    """What can be done to one app's jobs from this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader = CatalogReader(engine.catalog, engine.catalog_lock)
        self._removed_here: set[str] = set()

    # -- reading -----------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Read the documents that jobs are made of, unless this process polls them anyhow.

        :returns: the store's clock, UTC milliseconds.
        :raises StoreError: when the store does not answer.
        """
        engine = self._engine
        store = engine.ready_store()
        sent = steady_seconds()
        poll = store.poll()
        engine.clock.sync(poll.now, sent, steady_seconds())
        self._reader.refresh(store, poll.revision)
        return poll.now

    def jobs(self) -> tuple[list[EffectiveJob], int]:
        """Return the cluster's jobs and the store's clock."""
        now = self.refresh()
        with self._engine.catalog_lock:
            return self._engine.catalog.all(now=now), now

    def job(self, job_id: str) -> tuple[EffectiveJob | None, int]:
        """Return one job of the cluster (None: no such job) and the store's clock."""
        now = self.refresh()
        with self._engine.catalog_lock:
            job = self._engine.catalog.effective(job_id, now=now)
        return (None if job is None or job.removed else job), now

    def need(self, job_id: str) -> tuple[EffectiveJob, int]:
        """Return one job of the cluster.

        :raises JobLookupError: when there is none of that id.
        """
        job, now = self.job(job_id)
        if job is None:
            raise JobLookupError(job_id)
        return job, now

    def rows(self, jobs: list[EffectiveJob]) -> dict[str, ClaimRow]:
        """Return the rows of the jobs, by job id; those never scheduled have none."""
        host = self._engine.settings.host_id
        keys = {job_key(job.id, job.definition.scope, host): job.id for job in jobs}
        return {keys[row.key]: row for row in self._engine.ready_store().rows(list(keys))} if keys else {}

    def next_run_time(self, job: EffectiveJob, row: ClaimRow | None, now: int) -> datetime | None:
        """Return a job's next tick as every process sees it, aware, UTC."""
        if job.definition.scope == "worker" and self._engine.worker_jobs is not None and not job.paused:
            moment = self._engine.worker_jobs.next_run_time(job.id)
            if moment is not None:
                return moment
        after = job.floor if row is None else row.resolved
        if row is not None and row.holder is not None:
            after = max(after, now)
        tick = job.next_tick(max(after, job.resumed_at))
        if tick is not None and tick < now:
            # A tick that is late gives way to the next; the last one of all is about to run, or was missed.
            tick = job.next_tick(now - 1) or tick
        return None if tick is None else from_ms(tick)

    # -- documents -----------------------------------------------------------------------------------

    def _change(
        self,
        job_id: str,
        change: Callable[[EffectiveJob, Doc | None, int], Mapping[str, Any] | None],
        *,
        removed_too: bool = False,
    ) -> EffectiveJob:
        """Write a changed document of a job, on whatever is there at that moment.

        :param change: returns the new body from the job, its document and the store's clock; None: delete it.
        :param removed_too: a defined job may be one that was removed.
        """
        engine = self._engine
        for attempt in range(TRIES):
            now = self.refresh()
            with engine.catalog_lock:
                job = engine.catalog.effective(job_id, now=now)
            if job is None or (job.removed and not removed_too):
                raise JobLookupError(job_id)
            doc = engine.catalog.jobs.get(job_id)
            body = change(job, doc, now)
            expect = 0 if doc is None else doc.revision
            if body is None:
                written: Any = doc is None or engine.store.delete("job", job_id, expect=expect)
            else:
                written = engine.store.put("job", job_id, body, expect=expect)
            if written:
                engine.poke()
                return job
            threading.Event().wait(random.uniform(0, 0.02 * (attempt + 1)))
        raise SingleJobError(f"job {job_id!r} is being changed by somebody else over and over: try again")

    def _bound_body(self, job: EffectiveJob, doc: Doc | None) -> dict[str, Any]:
        """Return the body of a change to a defined job, bound to the definition that it changes."""
        base = self._engine.catalog.defined[job.id]
        body: dict[str, Any] = {"v": STORED_VERSION, "fingerprint": base.fingerprint}
        if doc is not None and not doc.body.get("stored"):
            for key in ("paused", "resumed_at"):
                if key in doc.body:
                    body[key] = doc.body[key]
            if doc.body.get("fingerprint") == base.fingerprint:
                for key in ("changes", "since", "removed"):
                    if key in doc.body:
                        body[key] = doc.body[key]
        return body

    def add(self, definition: Definition, *, replace_existing: bool = False) -> None:
        """Store a job.

        :raises ConflictingIdError: when another is stored, or defined by the code, under its id.
        :raises JobDefinitionError: when it cannot be stored.
        """
        engine = self._engine
        if self._is_defined_so(definition, replace_existing=replace_existing):
            return
        if definition.scope == "worker":
            raise JobDefinitionError(
                f"job {definition.id!r}: a worker-scope job cannot be stored, since standbys without one ask the store for "
                "nothing: define it in code"
            )
        check_storable(definition.fields)
        body = definition_body(definition, registry=engine.catalog.registry)
        for attempt in range(TRIES):
            now = self.refresh()
            if definition.id in engine.catalog.defined:
                with engine.catalog_lock:
                    there = engine.catalog.effective(definition.id, now=now)
                if not replace_existing and there is not None and not there.removed:
                    raise ConflictingIdError(definition.id)
                self._replace_defined(definition, body)
                return
            doc = engine.catalog.jobs.get(definition.id)
            pinned = {
                **body,
                "trigger": pin(definition.fields, now_ms=now, zone=engine.catalog.zone),
                "first": now if definition.first == "now" else definition.first,
                "since": now,
                "asked": definition.fields,
                "paused": definition.starts_paused,
            }
            if doc is not None:
                known = doc.body
                if known.get("stored"):
                    same = all(known.get(key) == body[key] for key in body if key not in ("trigger", "first"))
                    if same and known.get("asked") == definition.fields:
                        return
                    if not replace_existing:
                        raise ConflictingIdError(definition.id)
                    if not definition.starts_paused:
                        pinned["paused"] = bool(known.get("paused"))
                    pinned["resumed_at"] = known.get("resumed_at") or 0
            if engine.store.put("job", definition.id, pinned, expect=0 if doc is None else doc.revision):
                self._start_row(definition)
                engine.events.job(events.EVENT_JOB_ADDED, definition.id)
                engine.poke()
                return
            threading.Event().wait(random.uniform(0, 0.02 * (attempt + 1)))
        raise SingleJobError(
            f"job {definition.id!r} is being changed by somebody else over and over: try again"
        )

    def _is_defined_so(self, definition: Definition, *, replace_existing: bool) -> bool:
        """Tell whether the code defines an equal job, so that nothing is to be stored.

        A job of the code that was removed is to be added again, and one that was changed to be replaced.
        """
        engine = self._engine
        known = engine.catalog.defined.get(definition.id)
        if known is None or not equal_definitions(known, definition):
            return False
        now = self.refresh()
        with engine.catalog_lock:
            there = engine.catalog.effective(definition.id, now=now)
        return there is not None and not there.removed and not (replace_existing and there.changed)

    def _start_row(self, definition: Definition) -> None:
        """Make the row of a job just stored; a tick at this very moment (or a date in the past) is still due."""
        engine = self._engine
        job, _ = self.job(definition.id)
        if job is None:
            return
        key = job_key(definition.id, definition.scope, engine.settings.host_id)
        row = engine.store.ensure([key])[key]
        if never_claimed(row) and row.resolved > job.floor:
            engine.store.settle(key, row.resolved, job.floor, None)

    def _replace_defined(self, definition: Definition, body: dict[str, Any]) -> None:
        changes = {
            key: value for key, value in body.items() if key not in ("v", "stored", "trigger", "first")
        }

        def change(job: EffectiveJob, doc: Doc | None, now: int) -> Mapping[str, Any]:
            result = self._bound_body(job, doc)
            result.pop("removed", None)
            zone = self._engine.catalog.zone
            trigger = pin(definition.fields, now_ms=now, zone=zone)
            first = now if definition.first == "now" else definition.first
            result["changes"] = {**changes, "trigger": trigger, "first": first}
            result["since"] = now
            if definition.starts_paused:
                result.update(paused=True, paused_at=now)
            return result

        self._change(definition.id, change, removed_too=True)
        self._engine.events.job(events.EVENT_JOB_MODIFIED, definition.id)

    def modify(self, job_id: str, changed: Definition, names: set[str]) -> None:
        """Store changes to a job.

        :param changed: the definition as it shall be.
        :param names: what of it the change names: keys of its stored form.
        :raises JobLookupError: when there is no such job.
        """
        unknown = names - CHANGEABLE
        assert not unknown, unknown
        engine = self._engine
        wanted = set(names)
        if {"args", "kwargs"} & wanted:
            wanted = (wanted - {"args", "kwargs"}) | {"call"}

        def change(job: EffectiveJob, doc: Doc | None, now: int) -> Mapping[str, Any]:
            changes: dict[str, Any] = {}
            if "func" in wanted:
                assert changed.func is not None
                changes["func"] = changed.ref or codec.func_ref(
                    changed.func, registry=engine.catalog.registry
                )
            if "call" in wanted:
                changes["call"] = codec.encode_args(changed.args, changed.kwargs)
            if "trigger" in wanted:
                check_storable(changed.fields)
                changes["trigger"] = pin(changed.fields, now_ms=now, zone=engine.catalog.zone)
                changes["jitter"] = changed.jitter
            if "first" in wanted:
                changes["first"] = now if changed.first == "now" else changed.first
            for name in wanted - {"func", "call", "trigger", "jitter", "first"}:
                changes[name] = getattr(changed, name)
            if "jitter" in wanted:
                changes["jitter"] = changed.jitter
            if job.origin == "store":
                assert doc is not None
                body = {**doc.body, **changes}
                if "trigger" in wanted:
                    body["asked"] = changed.fields
                    body["since"] = now
                    body["first"] = changes.get("first")
                return body
            body = self._bound_body(job, doc)
            body["changes"] = {**dict(body.get("changes") or {}), **changes}
            if "trigger" in wanted:
                body["since"] = now
                if "first" not in wanted:
                    body["changes"]["first"] = None
            return body

        self._change(job_id, change)
        engine.events.job(events.EVENT_JOB_MODIFIED, job_id)

    def pause(self, job_id: str) -> EffectiveJob:
        """Pause a job in the whole cluster, until it is resumed, over restarts and releases.

        :raises JobLookupError: when there is no such job.
        """

        def change(job: EffectiveJob, doc: Doc | None, now: int) -> Mapping[str, Any]:
            body = (
                dict(doc.body) if doc is not None and doc.body.get("stored") else self._bound_body(job, doc)
            )
            return {**body, "paused": True, "paused_at": now}

        job = self._change(job_id, change)
        self._engine.events.job(events.EVENT_JOB_MODIFIED, job_id)
        return job

    def resume(self, job_id: str) -> EffectiveJob:
        """Resume a paused job; what fell due meanwhile is skipped.

        :raises JobLookupError: when there is no such job.
        """

        def change(job: EffectiveJob, doc: Doc | None, now: int) -> Mapping[str, Any]:
            body = (
                dict(doc.body) if doc is not None and doc.body.get("stored") else self._bound_body(job, doc)
            )
            if not body.get("paused", job.definition.starts_paused):
                return body
            return {**body, "paused": False, "paused_at": None, "resumed_at": now}

        job = self._change(job_id, change)
        self._engine.events.job(events.EVENT_JOB_MODIFIED, job_id)
        return job

    def remove(self, job_id: str) -> None:
        """Remove a job from the whole cluster: a stored one for good, a defined one until its definition changes.

        :raises JobLookupError: when there is no such job.
        """

        def change(job: EffectiveJob, doc: Doc | None, now: int) -> Mapping[str, Any] | None:
            if job.origin == "store":
                return None
            return {**self._bound_body(job, doc), "removed": True}

        job = self._change(job_id, change)
        if job.origin == "code":
            self._removed_here.add(job_id)
        self._engine.events.job(events.EVENT_JOB_REMOVED, job_id)

    def defined_again(self, job_id: str) -> None:
        """Bring a job back that this process removed and then added once more; a removal by others stays.

        :raises StoreError: when the store does not answer.
        """
        if job_id in self._removed_here:
            self.reset(job_id)
            self._removed_here.discard(job_id)

    def reset(self, job_id: str) -> bool:
        """Drop every stored change (pause and removal too) of a job that the code defines.

        :returns: False when there was none.
        :raises JobLookupError: when the code defines no such job.
        """
        engine = self._engine
        for _ in range(TRIES):
            self.refresh()
            if job_id not in engine.catalog.defined:
                raise JobLookupError(job_id)
            doc = engine.catalog.jobs.get(job_id)
            if doc is None:
                return False
            if engine.store.delete("job", job_id, expect=doc.revision):
                self._settle_upto_now(job_id)
                engine.poke()
                return True
        raise SingleJobError(f"job {job_id!r} is being changed by somebody else over and over: try again")

    def _settle_upto_now(self, job_id: str) -> None:
        """Make nothing before now due for a job that is scheduled anew."""
        store = self._engine.store
        now = store.poll().now
        for row in store.rows(kind="job"):
            if row.key.name == job_id and row.key.slot == 0 and row.resolved < now:
                store.settle(row.key, row.resolved, now, None)
        self.bump_rows()

    def pause_all(self) -> None:
        """Pause the whole cluster, stored."""
        now = self._engine.ready_store().poll().now
        self._engine.store.put("cluster", "pause", {"paused": True, "at": now})
        self._engine.poke()
        self._engine.events.scheduler(events.EVENT_SCHEDULER_PAUSED)

    def resume_all(self) -> None:
        """Resume the whole cluster; what fell due meanwhile is skipped."""
        now = self._engine.ready_store().poll().now
        doc = self._engine.store.doc("cluster", "pause")
        if doc is not None and doc.body.get("paused"):
            self._engine.store.put("cluster", "pause", {"paused": False, "resumed_at": now})
        self._engine.poke()
        self._engine.events.scheduler(events.EVENT_SCHEDULER_RESUMED)

    def paused_all(self) -> bool:
        """Tell whether the whole cluster is paused, by the store; by what was last read while it is away."""
        engine = self._engine
        try:
            doc = engine.ready_store().doc("cluster", "pause")
        except StoreError:
            return engine.catalog.cluster_paused
        return doc is not None and bool(doc.body.get("paused"))

    def bump_rows(self) -> None:
        """Have every owner read the rows again."""
        self._engine.store.put("cluster", "rows", {"by": self._engine.instance})
        self._engine.poke()

    # -- runs by hand -----------------------------------------------------------------------------------

    def run(self, job_id: str, *, wait: bool = True) -> Run | None:
        """Run a job by hand: here and now under its claim, or (``wait=False``) by an owner, soon.

        :returns: the ended run; None when it was handed to an owner.
        :raises JobLookupError: when there is no such job.
        :raises LockHeldError: when the job is held, saying by whom since when.
        :raises StoreError: when the store does not answer.
        """
        engine = self._engine
        job, now = self.need(job_id)
        definition = job.definition
        if job.broken is not None and wait:
            raise JobDefinitionError(f"job {job_id!r} cannot run here: {job.broken}")
        if not wait:
            if definition.scope == "worker":
                raise ConfigError(f"job {job_id!r} runs in every worker: run it here with wait=True")
            body = {"job_id": job_id, "at": now, "by": engine.settings.host_id, "pid": engine.pid}
            engine.store.put("request", new_id(), body)
            engine.poke()
            return None
        if definition.scope == "worker":
            from .worker import run_in_worker

            run, error, _ = run_in_worker(
                engine, job, cause="manual", scheduled_at=datetime.now(timezone.utc)
            )
            return self._given(run, error)
        with engine.claiming() as claimant:
            key = job_key(job_id, definition.scope, engine.settings.host_id)
            lease_seconds = definition.lease or engine.settings.lease
            slots = range(1, definition.max_instances + 1) if definition.max_instances > 1 else (0,)
            outcome = None
            for slot in slots:
                request = ClaimRequest(
                    holder=new_id(),
                    lease_ms=int(lease_seconds * 1000),
                    slot=slot,
                    info=claimant.info(cause="manual", scope=definition.scope, attempt=1),
                )
                sent = steady_seconds()
                outcome = engine.store.claim(key, request)
                if not outcome.won and self._clear_dead(outcome.row, outcome.now):
                    sent = steady_seconds()
                    outcome = engine.store.claim(key, request)
                if outcome.won:
                    break
            assert outcome is not None
            if not outcome.won:
                raise held_error(self._holder_of(key, outcome.row), outcome.now)
            done = engine.runner.perform(
                outcome.row,
                engine.callable_of(definition),
                definition.args,
                definition.kwargs,
                sent=sent,
                lease_seconds=lease_seconds,
                max_runtime=definition.max_runtime,
            )
            engine.poke()
            return self._given(done.run, done.error)

    @staticmethod
    def _given(run: Run, error: BaseException | None) -> Run:
        if error is not None and not isinstance(error, Exception):
            raise error
        return run

    def _holder_of(self, key: ClaimKey, row: ClaimRow) -> ClaimRow:
        """Return a row that shows who holds a job with several slots."""
        if row.holder is not None:
            return row
        for other in self._engine.store.poll().held:
            if other.key.with_slot(0) == key.with_slot(0):
                return other
        return row

    def _clear_dead(self, row: ClaimRow, now: int) -> bool:
        if row.holder is None:
            return False
        freed = sweep(self._engine.store, (row,), now=now, proof=self._engine.proof)
        for _, lost in freed:
            if lost is not None:
                self._engine.observer.lost(lost)
        return bool(freed)

    # -- locks -----------------------------------------------------------------------------------------

    def held(self) -> list[ClaimRow]:
        """Return every row that is held in the cluster."""
        return list(self._engine.ready_store().poll().held)

    def unlock(self, name: str, *, kind: str | None = None, holder: str | None = None) -> list[ClaimRow]:
        """End by force what is held under a name: its token grows, so the holder can write nothing back.

        :param kind: ``job``, ``lock`` or ``once``; None: any.
        :param holder: only the claim of this id; None: whoever holds it.
        :returns: the rows that were freed.
        """
        engine = self._engine
        store = engine.ready_store()
        freed = []
        for row in store.poll().held:
            if row.key.name != name or (kind is not None and row.key.kind != kind):
                continue
            if holder is not None and row.holder != holder:
                continue
            lost = end_dead_claim(
                store,
                row,
                now=store.poll().now,
                reason="unlocked",
                forced=True,
                detail="its claim was ended by hand",
            )
            if lost is not None:
                engine.observer.lost(lost)
            freed.append(row)
        if freed:
            self.bump_rows()
        return freed

    def running(self) -> list[Run]:
        """Return the runs that are going on in the cluster, newest first."""
        rows = [row for row in self.held() if row.key.kind == "job"]
        return sorted((held_run(row) for row in rows), key=lambda run: (run.at_ms, run.id), reverse=True)
