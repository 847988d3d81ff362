"""Documents of the MongoDB store, all of a cluster's changes in the order of one revision number.

One document per cluster holds the revision and an index that points to each body, so that raising
the one and switching the other is a single write; bodies lie beside it and are never changed but by
quiet writes. A reader that meets a body just replaced reads the index again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import StoreError
from ..records import Doc, new_id
from .mongodb_link import NOW, Link, digest, literal

__all__ = ["Documents"]

_TRACE_MS = 2 * 24 * 3600 * 1000


class Documents:
    """The documents of one cluster."""

    def __init__(self, link: Link, cluster: str) -> None:
        self._link = link
        self._cluster = cluster

    @property
    def _meta_id(self) -> dict[str, Any]:
        return {"_id": digest("meta", self._cluster)}

    def create(self) -> None:
        """Make the cluster's own document unless it is there."""
        start = {"$setOnInsert": {"cluster": self._cluster, "revision": 0, "index": {}}}
        try:
            self._link.meta.update_one(self._meta_id, start, upsert=True)
        except Exception as error:
            if not self._link.is_duplicate(error):
                raise

    def docs(self, kind: str, since: int) -> list[Doc]:
        """Return the documents of a kind, by revision."""
        for _ in range(20):
            meta = self._link.meta.find_one(self._meta_id, {"index": 1}) or {}
            entries = [entry for entry in meta.get("index", {}).values() if entry["kind"] == kind]
            if since:
                entries = [entry for entry in entries if entry["revision"] > since]
            else:
                entries = [entry for entry in entries if entry["version"] is not None]
            found = self._fill(entries)
            if found is not None:
                return sorted(found, key=lambda doc: (doc.revision, doc.id))
        raise self._too_busy()

    def doc(self, kind: str, id: str) -> Doc | None:
        """Return one living document, or None."""
        place = self._place(kind, id)
        for _ in range(20):
            meta = self._link.meta.find_one(self._meta_id, {place: 1}) or {}
            entry = meta.get("index", {}).get(digest(kind, id))
            if entry is None or entry["version"] is None:
                return None
            found = self._fill([entry])
            if found is not None:
                return found[0]
        raise self._too_busy()

    def _too_busy(self) -> StoreError:
        return StoreError(f"The store {self._link.name} failed: documents change faster than they are read")

    def put(self, kind: str, id: str, body: Mapping[str, Any], expect: int | None, quiet: bool) -> Doc | None:
        """Write a document: its body first, then the one write that makes it visible."""
        text = json.dumps(dict(body))
        if quiet and (doc := self._put_in_place(kind, id, text, expect)) is not None:
            return doc
        place, version = self._place(kind, id), new_id()
        new = {"cluster": literal(self._cluster), "body": literal(text), "updated": NOW}
        self._link.bodies.update_one({"_id": version}, [{"$set": new}], upsert=True)
        old = f"${place}"
        living = {"$ne": [{"$ifNull": [f"{old}.version", None]}, None]}
        revision: Any = {"$max": [{"$add": ["$revision", 1]}, NOW]}
        if quiet:
            revision = {"$cond": [living, f"{old}.revision", {"$toLong": 0}]}
        changes: dict[str, Any] = {
            f"{place}.kind": literal(kind),
            f"{place}.id": literal(id),
            f"{place}.version": version,
            f"{place}.replaced": {"$ifNull": [f"{old}.version", None]},
            f"{place}.revision": revision,
            f"{place}.deleted": None,
        }
        if not quiet:
            changes["revision"] = revision
        entry = self._change(place, expect, changes, lambda entry: entry.get("version") == version)
        if entry is None:
            self._link.bodies.delete_one({"_id": version})
            return None
        if entry["replaced"] is not None:
            self._link.bodies.delete_one({"_id": entry["replaced"]})
        stored = self._link.bodies.find_one({"_id": version})
        updated = stored["updated"] if stored is not None else entry["revision"]
        return Doc(kind, id, json.loads(text), entry["revision"], updated)

    def delete(self, kind: str, id: str, expect: int | None, quiet: bool) -> bool:
        """Remove a document; unless ``quiet`` its entry stays as a trace."""
        place, op = self._place(kind, id), new_id()
        condition = {f"{place}.version": {"$nin": [None]}}
        if quiet:
            before = self._link.meta.find_one(self._meta_id, {place: 1}) or {}
            entry = before.get("index", {}).get(digest(kind, id))
            if entry is None or entry["version"] is None or expect not in (None, entry["revision"]):
                return False
            same = {f"{place}.version": entry["version"], f"{place}.revision": entry["revision"]}
            gone = self._link.meta.update_one({**self._meta_id, **same}, {"$unset": {place: ""}})
            if gone.modified_count:
                self._link.bodies.delete_one({"_id": entry["version"]})
            return bool(gone.modified_count)
        revision = {"$max": [{"$add": ["$revision", 1]}, NOW]}
        changes = {
            "revision": revision,
            f"{place}.revision": revision,
            f"{place}.replaced": f"${place}.version",
            f"{place}.version": None,
            f"{place}.deleted": NOW,
            f"{place}.op": op,
        }
        entry = self._change(place, expect, changes, lambda entry: entry.get("op") == op, condition=condition)
        if entry is None:
            return False
        self._link.bodies.delete_one({"_id": entry["replaced"]})
        return True

    def sweep(self) -> None:
        """Forget old traces, and bodies that a process left behind when it died between two writes."""
        question = [{"$match": self._meta_id}, {"$project": {"index": 1, "now": NOW}}]
        for meta in self._link.meta.aggregate(question):
            self._sweep(meta["index"], meta["now"])

    def _sweep(self, index: Mapping[str, Any], now: int) -> None:
        for key, entry in index.items():
            if entry.get("deleted") is not None and entry["deleted"] < now - _TRACE_MS:
                same = {f"index.{key}.revision": entry["revision"]}
                self._link.meta.update_one({**self._meta_id, **same}, {"$unset": {f"index.{key}": ""}})
        used = [entry["version"] for entry in index.values() if entry["version"] is not None]
        orphans = {"cluster": self._cluster, "updated": {"$lt": now - _TRACE_MS}, "_id": {"$nin": used}}
        self._link.bodies.delete_many(orphans)

    @staticmethod
    def _place(kind: str, id: str) -> str:
        return f"index.{digest(kind, id)}"

    def _change(
        self,
        place: str,
        expect: int | None,
        changes: Mapping[str, Any],
        is_ours: Callable[[Mapping[str, Any]], bool],
        condition: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Change one entry of the index if it is as expected; return it afterwards."""
        wanted: dict[str, Any] = {**self._meta_id, **(condition or {})}
        if expect == 0 and condition is None:
            wanted[f"{place}.version"] = None
        elif expect is not None:
            wanted[f"{place}.version"] = {"$nin": [None]}
            wanted[f"{place}.revision"] = expect

        def entry_of(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
            found = (meta or {}).get("index", {}).get(place.partition(".")[2])
            return dict(found) if found is not None else None

        def write() -> dict[str, Any] | None:
            return entry_of(
                self._link.meta.find_one_and_update(
                    wanted, [{"$set": dict(changes)}], projection={place: 1}, return_document=True
                )
            )

        def look_again() -> dict[str, Any] | None:
            entry = entry_of(self._link.meta.find_one(self._meta_id, {place: 1}))
            return entry if entry is not None and is_ours(entry) else None

        entry = self._link.unless_unknown(write, look_again)
        if entry is None and self._link.meta.find_one(self._meta_id, {"_id": 1}) is None:
            self.create()
            entry = self._link.unless_unknown(write, look_again)
        return entry

    def _put_in_place(self, kind: str, id: str, text: str, expect: int | None) -> Doc | None:
        """Replace the body of a living document without touching the index; None when it is not so simple."""
        if expect is not None:
            return None
        meta = self._link.meta.find_one(self._meta_id, {self._place(kind, id): 1}) or {}
        entry = meta.get("index", {}).get(digest(kind, id))
        if entry is None or entry["version"] is None:
            return None
        changed = self._link.bodies.find_one_and_update(
            {"_id": entry["version"]},
            [{"$set": {"body": literal(text), "updated": NOW}}],
            return_document=True,
        )
        if changed is None:
            return None
        return Doc(kind, id, json.loads(text), entry["revision"], changed["updated"])

    def _fill(self, entries: list[dict[str, Any]]) -> list[Doc] | None:
        """Return the documents of entries; None when one of the bodies was just replaced."""
        versions = [entry["version"] for entry in entries if entry["version"] is not None]
        bodies = {body["_id"]: body for body in self._link.bodies.find({"_id": {"$in": versions}})}
        docs = []
        for entry in entries:
            kind, id, revision = entry["kind"], entry["id"], entry["revision"]
            if entry["version"] is None:
                docs.append(Doc(kind, id, {}, revision, entry["deleted"], deleted=True))
            elif entry["version"] in bodies:
                body = bodies[entry["version"]]
                docs.append(Doc(kind, id, json.loads(body["body"]), revision, body["updated"]))
            else:
                return None
        return docs
