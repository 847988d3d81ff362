"""The reference store: a lock and dicts in this process, and the clearest statement of the verbs.

It guarantees nothing beyond the process: another worker has another one. For tests, and for
programs of one process that may forget everything at their end.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Doc, Poll, Run, RunStatus, new_id
from .base import Store, initial_resolved

__all__ = ["MemoryStore"]

_DAY_MS = 24 * 3600 * 1000


@dataclass
class _Contents:
    """What one cluster keeps."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    rows: dict[ClaimKey, ClaimRow] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    docs: dict[tuple[str, str], Doc] = field(default_factory=dict)
    revision: int = 0


_named: dict[tuple[str, str, str], _Contents] = {}


class MemoryStore(Store):
    """A :class:`~flask_singlejob.stores.base.Store` in the memory of this process.

    :param name: stores of the same name, prefix and cluster share what they keep; empty: its own.
    :param clock: returns UTC milliseconds; None: the host's clock.
    """

    local = True

    def __init__(
        self,
        *,
        cluster: str = "default",
        table_prefix: str = "singlejob_",
        name: str = "",
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(cluster=cluster, table_prefix=table_prefix)
        self.clock = clock
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._name = name
        self._own_id = name or new_id()
        self._contents = (
            _named.setdefault((name, table_prefix, cluster), _Contents()) if name else _Contents()
        )

    # -- life ---------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return f"memory://{self._own_id}"

    def describe(self) -> str:
        return f"memory://{self._name}"

    def create(self) -> None:
        """There is nothing to make."""

    def ddl(self) -> str:
        return "-- A store in memory needs nothing to be made.\n"

    def close(self) -> None:
        """There is no connection to give back."""

    def after_fork(self) -> None:
        # Another thread of the parent may have held the lock at the fork.
        self._contents.lock = threading.RLock()

    # -- claims -------------------------------------------------------------------------------

    def poll(self) -> Poll:
        with self._contents.lock:
            held = tuple(row for row in self._contents.rows.values() if row.holder is not None)
            return Poll(now=self._clock(), revision=self._contents.revision, held=held)

    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        with self._contents.lock:
            return {key: self._row(key) for key in keys}

    def rows(self, keys: Iterable[ClaimKey] | None = None, *, kind: str | None = None) -> list[ClaimRow]:
        with self._contents.lock:
            found = self._contents.rows
            wanted = list(found) if keys is None else [key for key in dict.fromkeys(keys) if key in found]
            return [found[key] for key in wanted if kind is None or key.kind == kind]

    def claim(self, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
        with self._contents.lock:
            now = self._clock()
            own = self._row(key)
            place = self._row(key.with_slot(request.slot)) if request.slot else own
            if not self._can_be_taken(own, place, request, now):
                return ClaimOutcome(won=False, row=own, now=now)
            tick = request.tick
            own = replace(own, token=max(own.token + 1, now))
            if request.hold_ms:
                own = replace(own, hold_until=now + request.hold_ms)
            if tick is not None and request.rerun:
                own = replace(own, rerun_tick=None, streak=None)
            elif tick is not None:
                own = replace(own, resolved=tick, rerun_attempt=0, streak=None)
            place = replace(
                place if request.slot else own,
                token=own.token,
                holder=request.holder,
                held_tick=now if tick is None else tick,
                since=now,
                expires=now + request.lease_ms,
                info=_copy(request.info),
                progress=None,
            )
            self._keep(own)
            self._keep(place)
            return ClaimOutcome(won=True, row=place, now=now)

    @staticmethod
    def _can_be_taken(own: ClaimRow, place: ClaimRow, request: ClaimRequest, now: int) -> bool:
        if own.holder is not None or place.holder is not None or own.hold_until > now:
            return False
        if request.seen_resolved is not None and request.seen_resolved != own.resolved:
            return False
        if request.tick is None:
            return True
        if request.rerun:
            return own.rerun_tick == request.tick
        return own.resolved < request.tick <= now and own.rerun_tick is None

    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        with self._contents.lock:
            now = self._clock()
            row = self._held(key, holder, token)
            if row is None or row.expires is None or row.expires <= now:
                return None
            expires = max(row.expires, now + lease_ms)
            self._keep(
                replace(row, expires=expires, progress=row.progress if progress is None else _copy(progress))
            )
            return expires - now

    def release(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        *,
        run: Run | None = None,
        resolved: int | None = None,
        seen_resolved: int | None = None,
        skipped: Run | None = None,
        done: bool = False,
    ) -> bool:
        with self._contents.lock:
            now = self._clock()
            place = self._held(key, holder, token)
            if place is None or place.expires is None or place.expires <= now:
                return False
            self._keep(_freed(place))
            own = self._row(key.with_slot(0))
            if run is not None:
                self._contents.runs[run.id] = run
                own = replace(own, last_run=run.to_record())
                if run.status is RunStatus.SUCCEEDED:
                    own = replace(own, last_success=now)
            if resolved is not None and own.resolved == seen_resolved:
                own = replace(own, resolved=max(own.resolved, resolved))
                if skipped is not None:
                    self._contents.runs[skipped.id] = skipped
                    own = replace(own, streak=skipped.id)
            if done:
                own = replace(own, resolved=now)
            self._keep(own)
            return True

    def settle(self, key: ClaimKey, seen_resolved: int, resolved: int, record: Run | None = None) -> bool:
        with self._contents.lock:
            row = self._contents.rows.get(key)
            if row is None or row.holder is not None or row.resolved != seen_resolved:
                return False
            if record is not None:
                self._contents.runs[record.id] = record
            self._keep(replace(row, resolved=resolved, streak=None if record is None else record.id))
            return True

    def expire(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        *,
        lost: Run | None = None,
        rerun: bool = False,
        forced: bool = False,
    ) -> bool:
        with self._contents.lock:
            now = self._clock()
            place = self._held(key, holder, token)
            if place is None or (not forced and place.expires is not None and place.expires > now):
                return False
            self._keep(replace(_freed(place), token=max(place.token + 1, now)))
            own = self._row(key.with_slot(0))
            # In the key's own row too: the next claim's token has to be greater than this one.
            own = replace(own, token=max(own.token, self._contents.rows[key].token))
            if lost is not None:
                self._contents.runs.setdefault(lost.id, lost)
                own = replace(own, last_run=lost.to_record())
            if rerun:
                attempt = int(place.info.get("attempt", 1))
                own = replace(own, rerun_tick=place.held_tick, rerun_attempt=attempt)
            self._keep(own)
            return True

    def _row(self, key: ClaimKey) -> ClaimRow:
        row = self._contents.rows.get(key)
        if row is None:
            row = ClaimRow(key=key, resolved=initial_resolved(key, self._clock()))
            self._keep(row)
        return row

    def _held(self, key: ClaimKey, holder: str, token: int) -> ClaimRow | None:
        row = self._contents.rows.get(key)
        return row if row is not None and row.holder == holder and row.token == token else None

    def _keep(self, row: ClaimRow) -> None:
        self._contents.rows[row.key] = row

    # -- history ------------------------------------------------------------------------------

    def runs(
        self,
        job_id: str | None = None,
        *,
        status: Sequence[RunStatus] | None = None,
        since: int | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Run]:
        with self._contents.lock:
            found = [
                run
                for run in self._newest_first()
                if (job_id is None or run.job_id == job_id)
                and (status is None or run.status in status)
                and (since is None or run.at_ms >= since)
                and (before is None or (run.at_ms, run.id) < before)
            ]
        return found[:limit]

    def run(self, run_id: str) -> Run | None:
        with self._contents.lock:
            return self._contents.runs.get(run_id)

    def add_run(self, run: Run) -> None:
        with self._contents.lock:
            self._contents.runs[run.id] = run

    def prune(self, *, before: int, keep: int, limit: int = 500) -> int:
        with self._contents.lock:
            seen: dict[str, int] = {}
            doomed = []
            for run in self._newest_first():
                seen[run.job_id] = seen.get(run.job_id, 0) + 1
                if run.at_ms < before or seen[run.job_id] > keep:
                    doomed.append(run.id)
            # The oldest first, should they be more than the limit.
            doomed = doomed[::-1][:limit]
            for run_id in doomed:
                del self._contents.runs[run_id]
            return len(doomed)

    def _newest_first(self) -> list[Run]:
        return sorted(self._contents.runs.values(), key=lambda run: (run.at_ms, run.id), reverse=True)

    # -- documents ----------------------------------------------------------------------------

    def docs(self, kind: str, *, since: int = 0) -> list[Doc]:
        with self._contents.lock:
            return [
                doc
                for doc in self._contents.docs.values()
                if doc.kind == kind and (doc.revision > since if since else not doc.deleted)
            ]

    def doc(self, kind: str, id: str) -> Doc | None:
        with self._contents.lock:
            doc = self._contents.docs.get((kind, id))
            return None if doc is None or doc.deleted else doc

    def put(
        self,
        kind: str,
        id: str,
        body: Mapping[str, Any],
        *,
        expect: int | None = None,
        quiet: bool = False,
    ) -> Doc | None:
        with self._contents.lock:
            now = self._clock()
            old = self._contents.docs.get((kind, id))
            living = old is not None and not old.deleted
            if expect is not None and expect != (old.revision if old is not None and living else 0):
                return None
            # A quiet document has revision 0, which is no proof that there is none.
            if expect == 0 and living:
                return None
            if quiet:
                revision = old.revision if old is not None and living else 0
            else:
                revision = self._next_revision(now)
            doc = Doc(kind=kind, id=id, body=_copy(body), revision=revision, updated=now)
            self._contents.docs[kind, id] = doc
            return doc

    def delete(self, kind: str, id: str, *, expect: int | None = None, quiet: bool = False) -> bool:
        with self._contents.lock:
            now = self._clock()
            old = self._contents.docs.get((kind, id))
            if old is None or old.deleted or (expect is not None and expect != old.revision):
                return False
            if quiet:
                del self._contents.docs[kind, id]
                return True
            self._contents.docs[kind, id] = Doc(
                kind=kind, id=id, body={}, revision=self._next_revision(now), updated=now, deleted=True
            )
            return True

    def _next_revision(self, now: int) -> int:
        """Raise the revision, never below the clock: it grows even in a store that was emptied."""
        contents = self._contents
        for place, doc in list(contents.docs.items()):
            if doc.deleted and doc.updated < now - _DAY_MS:
                del contents.docs[place]
        contents.revision = max(contents.revision + 1, now)
        return contents.revision


def _copy(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a store that writes JSON would give back."""
    copied: dict[str, Any] = json.loads(json.dumps(dict(body)))
    return copied


def _freed(row: ClaimRow) -> ClaimRow:
    return replace(row, holder=None, held_tick=None, since=None, expires=None, progress=None)
