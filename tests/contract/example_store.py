"""An example of a store of one's own: a JSON file, read and written whole under a file lock.

It is for one host, and no store for much traffic: every verb costs a read and a write of the file.
What it shows is how little a store is: a way to change state in one step, and the conditions of
``flask_singlejob.stores.base.Store`` written down once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from flask_singlejob.errors import StoreError
from flask_singlejob.records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Doc, Poll, Run, RunStatus
from flask_singlejob.stores.base import Store, initial_resolved

_FREE = {"holder": None, "held_tick": None, "since": None, "expires": None, "progress": None}


class _State:
    """What the file held when its lock was taken, and the clock at that moment."""

    def __init__(self, text: str) -> None:
        empty: dict[str, Any] = {"revision": 0, "rows": {}, "runs": {}, "docs": {}}
        self.data: dict[str, Any] = json.loads(text) if text else empty
        self.now = time.time_ns() // 1_000_000

    def row(self, key: ClaimKey) -> dict[str, Any]:
        """Return a row to change, making it if it is missing."""
        fresh = ClaimRow(key, resolved=initial_resolved(key, self.now))
        plain = {field.name: getattr(fresh, field.name) for field in fields(fresh) if field.name != "key"}
        found: dict[str, Any] = self.data["rows"].setdefault(_name(key), plain)
        return found

    def held(self, key: ClaimKey, holder: str, token: int) -> dict[str, Any] | None:
        """Return a row if this claim still holds it."""
        row: dict[str, Any] | None = self.data["rows"].get(_name(key))
        return row if row and (row["holder"], row["token"]) == (holder, token) else None

    def write_run(self, run: Run) -> None:
        self.data["runs"][run.id] = run.to_record()

    def next_revision(self) -> int:
        # Never below the clock: it grows even when somebody deletes the file.
        self.data["revision"] = max(self.data["revision"] + 1, self.now)
        return int(self.data["revision"])


def _name(key: ClaimKey) -> str:
    return json.dumps([key.kind, key.name, key.host, key.slot])


def _row(name: str, row: Mapping[str, Any]) -> ClaimRow:
    return ClaimRow(ClaimKey(*json.loads(name)), **row)


class FileStore(Store):
    """A store in one file per cluster.

    :param directory: where the file is; all processes have to name the same one.
    """

    local = True

    def __init__(self, directory: Path, *, cluster: str, table_prefix: str = "singlejob_") -> None:
        super().__init__(cluster=cluster, table_prefix=table_prefix)
        self._path = directory / f"{table_prefix}{ClaimKey('store', cluster).digest(cluster)}.json"

    @contextmanager
    def _step(self) -> Iterator[_State]:
        """Give the state to read and change; nobody else has it meanwhile, and all is written or nothing."""
        try:
            with self._path.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                text = self._path.read_text() if self._path.exists() else ""
                state = _State(text)
                yield state
                changed = json.dumps(state.data)
                if changed != text:
                    draft = self._path.with_suffix(".new")
                    draft.write_text(changed)
                    os.replace(draft, self._path)
        except OSError as error:
            raise StoreError(f"The store {self.describe()} failed: {error.strerror}") from error

    @property
    def identity(self) -> str:
        return f"file://{self._path}"

    def describe(self) -> str:
        return self.identity

    def create(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def ddl(self) -> str:
        return f"mkdir -p {self._path.parent}\n"

    def close(self) -> None:
        """Nothing stays open between two verbs."""

    def after_fork(self) -> None:
        """Nothing is inherited either."""

    def poll(self) -> Poll:
        with self._step() as state:
            held = tuple(_row(name, row) for name, row in state.data["rows"].items() if row["holder"])
            return Poll(state.now, state.data["revision"], held)

    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        with self._step() as state:
            return {key: _row(_name(key), state.row(key)) for key in keys}

    def rows(self, keys: Iterable[ClaimKey] | None = None, *, kind: str | None = None) -> list[ClaimRow]:
        with self._step() as state:
            stored = state.data["rows"]
            names = list(stored) if keys is None else list(dict.fromkeys(map(_name, keys)))
            rows = [_row(name, stored[name]) for name in names if name in stored]
            return [row for row in rows if kind is None or row.key.kind == kind]

    def claim(self, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
        with self._step() as state:
            own, tick, now = state.row(key), request.tick, state.now
            place_key = key.with_slot(request.slot) if request.slot else key
            place = state.row(place_key)
            good = own["holder"] is None and place["holder"] is None and own["hold_until"] <= now
            if request.seen_resolved is not None:
                good = good and request.seen_resolved == own["resolved"]
            if tick is not None and request.rerun:
                good = good and own["rerun_tick"] == tick
            elif tick is not None:
                good = good and own["resolved"] < tick <= now and own["rerun_tick"] is None
            if not good:
                return ClaimOutcome(False, _row(_name(key), own), now)
            own["token"] = max(own["token"] + 1, now)
            if request.hold_ms:
                own["hold_until"] = now + request.hold_ms
            if tick is not None:
                own["streak"] = None
                own.update({"rerun_tick": None} if request.rerun else {"resolved": tick, "rerun_attempt": 0})
            place.update(_FREE, token=own["token"], holder=request.holder, since=now, info=dict(request.info))
            place.update(expires=now + request.lease_ms, held_tick=now if tick is None else tick)
            return ClaimOutcome(True, _row(_name(place_key), place), now)

    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        with self._step() as state:
            row = state.held(key, holder, token)
            if row is None or row["expires"] <= state.now:
                return None
            row["expires"] = max(row["expires"], state.now + lease_ms)
            if progress is not None:
                row["progress"] = dict(progress)
            return int(row["expires"] - state.now)

    def release(
        self, key: ClaimKey, holder: str, token: int, *, run: Run | None = None, resolved: int | None = None,
        seen_resolved: int | None = None, skipped: Run | None = None, done: bool = False,
    ) -> bool:  # fmt: skip
        with self._step() as state:
            place = state.held(key, holder, token)
            if place is None or place["expires"] <= state.now:
                return False
            place.update(_FREE)
            own = state.row(key.with_slot(0))
            if run is not None:
                state.write_run(run)
                own["last_run"] = run.to_record()
                if run.status is RunStatus.SUCCEEDED:
                    own["last_success"] = state.now
            if resolved is not None and own["resolved"] == seen_resolved:
                own["resolved"] = max(own["resolved"], resolved)
                if skipped is not None:
                    state.write_run(skipped)
                    own["streak"] = skipped.id
            if done:
                own["resolved"] = state.now
            return True

    def settle(self, key: ClaimKey, seen_resolved: int, resolved: int, record: Run | None = None) -> bool:
        with self._step() as state:
            row = state.data["rows"].get(_name(key))
            if row is None or row["holder"] is not None or row["resolved"] != seen_resolved:
                return False
            if record is not None:
                state.write_run(record)
            row.update(resolved=resolved, streak=record.id if record is not None else None)
            return True

    def expire(
        self, key: ClaimKey, holder: str, token: int, *, lost: Run | None = None, rerun: bool = False,
        forced: bool = False,
    ) -> bool:  # fmt: skip
        with self._step() as state:
            place, own = state.held(key, holder, token), state.row(key.with_slot(0))
            if place is None or not (forced or place["expires"] <= state.now):
                return False
            if rerun:
                own.update(rerun_tick=place["held_tick"], rerun_attempt=place["info"].get("attempt", 1))
            place.update(_FREE)
            own["token"] = place["token"] = max(own["token"] + 1, place["token"] + 1, state.now)
            if lost is not None:
                state.data["runs"].setdefault(lost.id, lost.to_record())
                own["last_run"] = lost.to_record()
            return True

    def runs(
        self, job_id: str | None = None, *, status: Sequence[RunStatus] | None = None,
        since: int | None = None, before: tuple[int, str] | None = None, limit: int = 100,
    ) -> list[Run]:  # fmt: skip
        with self._step() as state:
            runs = [Run.from_record(record) for record in state.data["runs"].values()]
        runs = [
            run
            for run in sorted(runs, key=lambda run: (run.at_ms, run.id), reverse=True)
            if job_id in (None, run.job_id)
            and (status is None or run.status in status)
            and (since is None or run.at_ms >= since)
            and (before is None or (run.at_ms, run.id) < before)
        ]
        return runs[:limit]

    def run(self, run_id: str) -> Run | None:
        with self._step() as state:
            record = state.data["runs"].get(run_id)
            return Run.from_record(record) if record else None

    def add_run(self, run: Run) -> None:
        with self._step() as state:
            state.write_run(run)

    def prune(self, *, before: int, keep: int, limit: int = 500) -> int:
        newest: dict[str, int] = {}
        doomed = []
        for run in self.runs(limit=2**31):
            newest[run.job_id] = newest.get(run.job_id, 0) + 1
            if run.at_ms < before or newest[run.job_id] > keep:
                doomed.append(run.id)
        with self._step() as state:
            return sum(state.data["runs"].pop(id, None) is not None for id in doomed[::-1][:limit])

    def docs(self, kind: str, *, since: int = 0) -> list[Doc]:
        with self._step() as state:
            docs = [Doc(**doc) for doc in state.data["docs"].values() if doc["kind"] == kind]
        return [doc for doc in docs if (doc.revision > since if since else not doc.deleted)]

    def doc(self, kind: str, id: str) -> Doc | None:
        return next((doc for doc in self.docs(kind) if doc.id == id), None)

    def put(
        self, kind: str, id: str, body: Mapping[str, Any], *, expect: int | None = None, quiet: bool = False
    ) -> Doc | None:
        with self._step() as state:
            old = state.data["docs"].get(json.dumps([kind, id]), {"deleted": True})
            living = not old["deleted"]
            if expect is not None and (living != bool(expect) or (expect and old["revision"] != expect)):
                return None
            revision = (old["revision"] if living else 0) if quiet else state.next_revision()
            doc = Doc(kind, id, dict(body), revision, state.now)
            state.data["docs"][json.dumps([kind, id])] = asdict(doc)
            return doc

    def delete(self, kind: str, id: str, *, expect: int | None = None, quiet: bool = False) -> bool:
        with self._step() as state:
            old = state.data["docs"].get(json.dumps([kind, id]))
            if old is None or old["deleted"] or (expect is not None and expect != old["revision"]):
                return False
            if quiet:
                del state.data["docs"][json.dumps([kind, id])]
            else:
                old.update(body={}, revision=state.next_revision(), updated=state.now, deleted=True)
            return True
