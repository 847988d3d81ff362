"""History of the MongoDB store, and the way of its records there from a claim's outbox.

A record that ends a claim is first written into the claim's own document, with the release, in one
write; from there it is copied here, by whoever comes next should its writer die. Copying twice, or
late, changes nothing: each record bears a number that only grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..records import Run, RunStatus, new_id
from .mongodb_link import NOW, Link, digest, literal

__all__ = ["History", "outbox_after"]


def _fields(cluster: str, run: Run) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "run": run.id,
        "job": run.job_id,
        "status": run.status.value,
        "at": run.at_ms,
        "record": json.dumps(run.to_record()),
    }


def outbox_after(cluster: str, *records: tuple[Run, bool, Any]) -> dict[str, Any]:
    """Return the changes of a claim's document that put records into its outbox.

    :param records: a run, whether it gives way to one that is there, and an expression that must hold.
    """
    # Above every number before it, and above those of a document of this name that was deleted.
    number = {"$max": [{"$add": [{"$ifNull": ["$outbox_number", 0]}, len(records)]}, NOW]}
    entries: list[Any] = [{"$ifNull": ["$outbox", []]}]
    for place, (run, gives_way, condition) in enumerate(records):
        entry = {
            "ref": new_id(),
            "number": {"$add": [number, place]},
            "gives_way": gives_way,
            "fields": literal(_fields(cluster, run)),
        }
        entries.append({"$cond": [condition, [entry], []]})
    return {"outbox": {"$concatArrays": entries}, "outbox_number": {"$add": [number, len(records)]}}


class History:
    """The history of one cluster."""

    def __init__(self, link: Link, cluster: str) -> None:
        self._link = link
        self._cluster = cluster

    def create(self) -> None:
        """Make the indexes; making the same one twice, or at the same time, is no error in MongoDB."""
        history = self._link.history
        history.create_index([("cluster", 1), ("at", -1), ("run", -1)])
        history.create_index([("cluster", 1), ("job", 1), ("at", -1), ("run", -1)])
        history.create_index([("cluster", 1), ("status", 1), ("at", -1), ("run", -1)])

    def flush(self, claim: Mapping[str, Any]) -> None:
        """Copy the outbox of a claim's document into history and empty it."""
        entries = claim.get("outbox") or []
        for entry in sorted(entries, key=lambda entry: entry["number"]):
            self._write(entry["fields"], entry["number"], entry["gives_way"])
        if entries:
            refs = [entry["ref"] for entry in entries]
            self._link.claims.update_one({"_id": claim["_id"]}, {"$pull": {"outbox": {"ref": {"$in": refs}}}})

    def flush_all(self) -> None:
        """Copy what processes left behind that died between release and copy."""
        left = {"cluster": self._cluster, "outbox.0": {"$exists": True}}
        for claim in list(self._link.claims.find(left, {"outbox": 1})):
            self.flush(claim)

    def add(self, run: Run) -> None:
        """Add a record that belongs to no claim."""
        self._write(_fields(self._cluster, run), 0, gives_way=False)

    def _write(self, fields: Mapping[str, Any], number: int, gives_way: bool) -> None:
        id = digest(self._cluster, fields["run"])
        new = {**fields, "number": number}
        try:
            if gives_way:
                self._link.history.update_one({"_id": id}, {"$setOnInsert": new}, upsert=True)
            else:
                older = {"_id": id, "number": {"$lte": number}}
                self._link.history.update_one(older, {"$set": new}, upsert=True)
        except Exception as error:
            # There is one with a greater number: this copy comes late.
            if not self._link.is_duplicate(error):
                raise

    def runs(
        self,
        job_id: str | None,
        status: Sequence[RunStatus] | None,
        since: int | None,
        before: tuple[int, str] | None,
        limit: int,
    ) -> list[Run]:
        """Return records, newest first."""
        if limit <= 0:
            return []
        self.flush_all()
        wanted: dict[str, Any] = {"cluster": self._cluster}
        if job_id is not None:
            wanted["job"] = job_id
        if status is not None:
            wanted["status"] = {"$in": [RunStatus(one).value for one in status]}
        if since is not None:
            wanted["at"] = {"$gte": since}
        if before is not None:
            at, id = before
            wanted["$or"] = [{"at": {"$lt": at}}, {"at": at, "run": {"$lt": id}}]
        found = self._link.history.find(wanted).sort([("at", -1), ("run", -1)]).limit(limit)
        return [Run.from_record(json.loads(one["record"])) for one in found]

    def run(self, run_id: str) -> Run | None:
        """Return one record, or None."""
        self.flush_all()
        found = self._link.history.find_one({"_id": digest(self._cluster, run_id)})
        return None if found is None else Run.from_record(json.loads(found["record"]))

    def prune(self, before: int, keep: int, limit: int) -> int:
        """Delete at most ``limit`` old or surplus records, the oldest first."""
        self.flush_all()
        history = self._link.history
        old = history.find({"cluster": self._cluster, "at": {"$lt": before}}, {"_id": 1}).sort([("at", 1)])
        doomed = [one["_id"] for one in old.limit(limit)]
        counts = history.aggregate(
            [
                {"$match": {"cluster": self._cluster, "at": {"$gte": before}}},
                {"$group": {"_id": "$job", "count": {"$sum": 1}}},
                {"$match": {"count": {"$gt": keep}}},
            ]
        )
        for job in list(counts):
            room = min(job["count"] - keep, limit - len(doomed))
            if room <= 0:
                break
            surplus = {"cluster": self._cluster, "job": job["_id"], "at": {"$gte": before}}
            oldest = history.find(surplus, {"_id": 1}).sort([("at", 1), ("run", 1)]).limit(room)
            doomed += [one["_id"] for one in oldest]
        if not doomed:
            return 0
        return int(history.delete_many({"_id": {"$in": doomed}}).deleted_count)
