"""A store in MongoDB (5 or newer): each claim is one ``find_one_and_update`` by the server's clock.

Experimental: docs/stores.md says on what it was tested. It needs no transactions: the places of a job
with several instances lie in the job's own document, and a record that ends a claim is written with
its release. A single server works; only a replica set keeps its promises when a server dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import StoreError
from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Doc, Poll, Run, RunStatus, new_id
from .base import Store
from .mongodb_docs import Documents
from .mongodb_history import History, outbox_after
from .mongodb_link import NOW, Link, digest, literal
from .mongodb_rows import changes_of, conditions_of, fields_of, freed, place_of, row_of, rows_of, start_of

__all__ = ["SCHEMES", "MongoStore"]

#: URL schemes that the store takes.
SCHEMES = ("mongodb", "mongodb+srv")

_COLLECTIONS = """\
{prefix}claims  one document per claimable name: resolved, token, hold_until, rerun_tick, streak,
                last_run, places.s0 (and s1 to sn for a job with several instances): holder, expires, ...;
                outbox: records on their way to {prefix}runs
                index (cluster, kind), (cluster, held)
{prefix}runs    one document per record of history: job, status, at, record (JSON)
                index (cluster, at, run), (cluster, job, at, run), (cluster, status, at, run)
{prefix}docs    one document per version of a stored document's body (JSON)
                index (cluster, updated)
{prefix}meta    one document per cluster: revision, index of its documents
"""


class MongoStore(Store):
    """A :class:`~flask_singlejob.stores.base.Store` in a MongoDB database.

    :param url: ``mongodb://`` or ``mongodb+srv://``; without a database in it: ``singlejob``.
    :param options: keyword arguments for ``MongoClient``. Time limits may be tightened, not widened;
        write concern and read preference are the store's own.
    :raises ConfigError: if pymongo is missing, or URL or options cannot be used.
    """

    def __init__(
        self, url: str, *, cluster: str, table_prefix: str, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(cluster=cluster, table_prefix=table_prefix)
        self._link = Link(url, table_prefix=table_prefix, options=options)
        self._documents = Documents(self._link, cluster)
        self._history = History(self._link, cluster)

    # -- life ---------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """What tells this store from others: its servers, database, prefix and cluster."""
        return f"{self._link.name} {self.table_prefix} {self.cluster}"

    def describe(self) -> str:
        """Return the URL without user, password and options, and the collections' prefix."""
        return f"{self._link.name} (collections {self.table_prefix}*)"

    def create(self) -> None:
        """Make the indexes and the cluster's own document."""
        with self._link.bounded():
            self._link.claims.create_index([("cluster", 1), ("kind", 1)])
            self._link.claims.create_index([("cluster", 1), ("held", 1)])
            self._link.bodies.create_index([("cluster", 1), ("updated", 1)])
            self._history.create()
            self._documents.create()

    def ddl(self) -> str:
        """Return which collections and indexes there are."""
        return _COLLECTIONS.replace("{prefix}", self.table_prefix)

    def close(self) -> None:
        """Close every connection. The next verb opens a new one."""
        self._link.close()

    def after_fork(self) -> None:
        """Forget the parent's client without closing it."""
        self._link.after_fork()

    # -- claims -------------------------------------------------------------------------------

    def _id(self, key: ClaimKey) -> dict[str, Any]:
        return {"_id": digest(self.cluster, key.kind, key.name, key.host)}

    def poll(self) -> Poll:
        """Return clock, revision and held rows, joined on the server."""
        held = {"$match": {"cluster": self.cluster, "held": {"$gt": 0}}}
        question = [
            {"$match": {"_id": digest("meta", self.cluster)}},
            {"$project": {"revision": 1, "now": NOW}},
            {"$lookup": {"from": self._link.claims.name, "pipeline": [held], "as": "held"}},
        ]
        with self._link.bounded():
            answer = next(iter(self._link.meta.aggregate(question)), None)
            if answer is None:
                self._documents.create()
                answer = next(iter(self._link.meta.aggregate(question)), None)
        if answer is None:
            raise StoreError(f"The store {self._link.name} failed: a document just written cannot be read")
        rows = [row for claim in answer["held"] for row in rows_of(claim) if row.holder is not None]
        return Poll(now=answer["now"], revision=answer["revision"], held=tuple(rows))

    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        """Return the rows of the keys, making those that are missing."""
        wanted = list(dict.fromkeys(keys))
        with self._link.bounded():
            return self._ensured(wanted)

    def _ensured(self, keys: Sequence[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        for _ in range(5):
            found = {row.key: row for row in self._read(keys)}
            missing = [key for key in keys if key not in found]
            if not missing:
                return {key: found[key] for key in keys}
            self._link.upsert_all(
                self._link.claims,
                [(self._id(key), [{"$set": start_of(key, self.cluster)}]) for key in missing],
            )
        raise StoreError(f"The store {self._link.name} failed: the row of {missing[0].name!r} cannot be made")

    def rows(self, keys: Iterable[ClaimKey] | None = None, *, kind: str | None = None) -> list[ClaimRow]:
        """Return the rows there are."""
        with self._link.bounded():
            if keys is not None:
                wanted = [key for key in dict.fromkeys(keys) if kind is None or key.kind == kind]
                return self._read(wanted)
            match: dict[str, Any] = {"cluster": self.cluster}
            if kind is not None:
                match["kind"] = kind
            claims = self._link.claims.find(match).sort([("kind", 1), ("name", 1), ("host", 1)])
            return [row for claim in claims for row in rows_of(claim)]

    def _read(self, keys: Sequence[ClaimKey]) -> list[ClaimRow]:
        ids = [self._id(key)["_id"] for key in keys]
        claims = self._link.claims.find({"_id": {"$in": ids}})
        rows = {row.key: row for claim in claims for row in rows_of(claim)}
        return [rows[key] for key in keys if key in rows]

    def claim(self, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
        """Take a row with one conditional update of its document."""
        place = key.with_slot(request.slot) if request.slot else key
        conditions, changes = conditions_of(key, place, request), changes_of(key, place, request)

        def write() -> dict[str, Any] | None:
            found: dict[str, Any] | None = self._link.claims.find_one_and_update(
                {**self._id(key), "$and": conditions}, [{"$set": changes}], return_document=True
            )
            return found

        def look_again() -> dict[str, Any] | None:
            found: dict[str, Any] | None = self._link.confirmed_claims.find_one(
                {**self._id(key), f"{place_of(place)}.holder": request.holder}
            )
            return found

        with self._link.bounded():
            for _ in range(2):
                won = self._link.unless_unknown(write, look_again)
                if won is not None:
                    row = row_of(won, place.slot)
                    return ClaimOutcome(True, row, row.since or 0)
                claim, now = self._with_clock(key)
                if claim is not None and {f"s{key.slot}", f"s{place.slot}"} <= set(claim["places"]):
                    return ClaimOutcome(False, row_of(claim, key.slot), now)
                self._ensured([key, place])
        raise StoreError(f"The store {self._link.name} failed: the row of {key.name!r} vanished")

    def _with_clock(self, key: ClaimKey) -> tuple[dict[str, Any] | None, int]:
        question = [{"$match": self._id(key)}, {"$addFields": {"now": NOW}}]
        claim = next(iter(self._link.claims.aggregate(question)), None)
        return (None, 0) if claim is None else (dict(claim), claim["now"])

    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Lengthen a lease that is still good."""
        place = place_of(key)
        changes: dict[str, Any] = {
            f"{place}.expires": {"$max": [f"${place}.expires", {"$add": [NOW, lease_ms]}]},
            f"{place}.renewed": NOW,
        }
        if progress is not None:
            changes[f"{place}.progress"] = literal(json.dumps(dict(progress)))
        with self._link.bounded():
            claim = self._link.claims.find_one_and_update(
                self._holding(key, holder, token, {"$gt": [f"${place}.expires", NOW]}),
                [{"$set": changes}],
                return_document=True,
            )
        if claim is None:
            return None
        held = claim["places"][f"s{key.slot}"]
        return int(held["expires"] - held["renewed"])

    def _holding(self, key: ClaimKey, holder: str, token: int, lease: Any) -> dict[str, Any]:
        place = place_of(key)
        wanted = {**self._id(key), f"{place}.holder": holder, f"{place}.token": token}
        return {**wanted, "$expr": lease} if lease is not None else wanted

    def _finish(self, key: ClaimKey, wanted: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
        """Do one write that may fill the outbox, then empty the outbox."""
        op = new_id()

        def write() -> dict[str, Any] | None:
            found: dict[str, Any] | None = self._link.claims.find_one_and_update(
                dict(wanted), [{"$set": {**changes, "op": op}}], return_document=True
            )
            return found

        def look_again() -> dict[str, Any] | None:
            found: dict[str, Any] | None = self._link.confirmed_claims.find_one({**self._id(key), "op": op})
            return found

        with self._link.bounded():
            claim = self._link.unless_unknown(write, look_again)
        if claim is None:
            return False
        # It is written already: should the copy fail, the next reader of the history makes it.
        with suppress(StoreError), self._link.bounded():
            self._history.flush(claim)
        return True

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
        """End a claim that is still good, with what came of it, in one write."""
        changes = freed(key)
        records: list[tuple[Run, bool, Any]] = []
        if run is not None:
            records.append((run, False, True))
            changes["last_run"] = literal(json.dumps(run.to_record()))
            if run.status is RunStatus.SUCCEEDED:
                changes["last_success"] = NOW
        if resolved is not None:
            unchanged = {"$eq": ["$resolved", literal(seen_resolved)]}
            raised = {"$max": ["$resolved", {"$toLong": resolved}]}
            changes["resolved"] = {"$cond": [unchanged, raised, "$resolved"]}
            if skipped is not None:
                records.append((skipped, False, unchanged))
                changes["streak"] = {
                    "$cond": [unchanged, literal(skipped.id), {"$ifNull": ["$streak", None]}]
                }
        if done:
            changes["resolved"] = NOW
        if records:
            changes.update(outbox_after(self.cluster, *records))
        good = {"$gt": [f"${place_of(key)}.expires", NOW]}
        return self._finish(key, self._holding(key, holder, token, good), changes)

    def settle(self, key: ClaimKey, seen_resolved: int, resolved: int, record: Run | None = None) -> bool:
        """Move ``resolved`` of a free row that nobody changed meanwhile."""
        own = fields_of(key)
        changes: dict[str, Any] = {f"{own}resolved": {"$toLong": resolved}, f"{own}streak": None}
        if record is not None:
            changes[f"{own}streak"] = literal(record.id)
            changes.update(outbox_after(self.cluster, (record, False, True)))
        wanted = {**self._id(key), f"{own}resolved": seen_resolved, f"{place_of(key)}.holder": None}
        return self._finish(key, wanted, changes)

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
        """End somebody's claim, if it still is that one and its lease has ended or it is forced."""
        place = place_of(key)
        higher = {"$max": [{"$add": [{"$max": ["$token", f"${place}.token"]}, 1]}, NOW]}
        changes = {**freed(key), "token": higher, f"{place}.token": higher}
        if lost is not None:
            changes["last_run"] = literal(json.dumps(lost.to_record()))
            changes.update(outbox_after(self.cluster, (lost, True, True)))
        if rerun:
            changes["rerun_tick"] = f"${place}.held_tick"
            changes["rerun_attempt"] = {"$ifNull": [f"${place}.attempt", 1]}
        ended = None if forced else {"$lte": [f"${place}.expires", NOW]}
        return self._finish(key, self._holding(key, holder, token, ended), changes)

    # -- history and documents ----------------------------------------------------------------

    def runs(
        self,
        job_id: str | None = None,
        *,
        status: Sequence[RunStatus] | None = None,
        since: int | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Return records, newest first."""
        with self._link.bounded():
            return self._history.runs(job_id, status, since, before, limit)

    def run(self, run_id: str) -> Run | None:
        """Return one record of the history, or None."""
        with self._link.bounded():
            return self._history.run(run_id)

    def add_run(self, run: Run) -> None:
        """Add a record that belongs to no claim."""
        with self._link.bounded():
            self._history.add(run)

    def prune(self, *, before: int, keep: int, limit: int = 500) -> int:
        """Delete at most ``limit`` old or surplus records, and what documents left behind."""
        with self._link.bounded():
            deleted = self._history.prune(before, keep, limit)
            if deleted < limit:
                self._documents.sweep()
            return deleted

    def docs(self, kind: str, *, since: int = 0) -> list[Doc]:
        """Return the documents of a kind by revision."""
        with self._link.bounded():
            return self._documents.docs(kind, since)

    def doc(self, kind: str, id: str) -> Doc | None:
        """Return one living document, or None."""
        with self._link.bounded():
            return self._documents.doc(kind, id)

    def put(
        self,
        kind: str,
        id: str,
        body: Mapping[str, Any],
        *,
        expect: int | None = None,
        quiet: bool = False,
    ) -> Doc | None:
        """Write a document and raise the cluster's revision."""
        with self._link.bounded():
            return self._documents.put(kind, id, body, expect, quiet)

    def delete(self, kind: str, id: str, *, expect: int | None = None, quiet: bool = False) -> bool:
        """Remove a document; unless ``quiet`` its trace stays for two days."""
        with self._link.bounded():
            return self._documents.delete(kind, id, expect, quiet)

    # -- looking after it ---------------------------------------------------------------------

    def checks(self) -> list[tuple[str, str]]:
        """Return what of the deployment weakens claims: an old server, or one without replicas."""
        with self._link.bounded():
            admin = self._link.claims.database.client.admin
            hello = admin.command("hello")
            version = str(admin.command("buildInfo")["version"])
        found = []
        if int(version.partition(".")[0]) < 5:
            found.append((f"MongoDB {version} is too old", "use MongoDB 5 or newer"))
        if "setName" not in hello and hello.get("msg") != "isdbgrid":
            found.append(
                ("this MongoDB is a single server: claims are lost with it", "use a replica set of three")
            )
        return found
