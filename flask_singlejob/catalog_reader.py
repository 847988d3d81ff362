"""The catalog kept up with the store: reading what changed, and pinning what definitions take from "now".

Holds no lock while the store is asked: code that defines jobs never waits for the store.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from .catalog import Catalog
from .clock import steady_seconds
from .records import Doc
from .stores.base import Store
from .ticks import pin

__all__ = ["KINDS", "CatalogReader", "Changes", "pin_definitions"]

#: The documents that jobs are made of.
KINDS = ("cluster", "definition", "job")


class CatalogReader:
    """Keeps a catalog up with the store's documents, reading only what changed since the last look.

    No lock is held while the store is asked: code that defines jobs never waits for the store.
    """

    #: Traces of deleted documents are kept for a day: after half of it everything is read anew.
    FULL_SECONDS = 12 * 3600.0

    def __init__(self, catalog: Catalog, lock: threading.RLock) -> None:
        self._catalog = catalog
        self._lock = lock
        self._revision: int | None = None
        self._read_at = 0.0

    def forget(self) -> None:
        """Read everything anew at the next refresh."""
        self._revision = None

    def refresh(self, store: Store, revision: int, *, also: str | None = None) -> Changes:
        """Take in what changed up to a revision.

        :param revision: the store's, from a poll before this call.
        :param also: a further kind of documents, to be handed on.
        """
        if self._revision == revision:
            return Changes()
        full = self._revision is None or steady_seconds() - self._read_at > self.FULL_SECONDS
        since = 0 if full or self._revision is None else self._revision
        kinds = KINDS if also is None else (*KINDS, also)
        docs = store.docs_of(kinds, since=since)
        cluster, pins, jobs, others = ([doc for doc in docs if doc.kind == kind] for kind in (*KINDS, also))
        with self._lock:
            catalog = self._catalog
            catalog.take_cluster(cluster)
            catalog.take_pins(pins)
            catalog.take_jobs(jobs)
            if full:
                for gone in catalog.jobs.keys() - {doc.id for doc in jobs}:
                    catalog.forget_stored(gone)
        self._revision = revision
        self._read_at = steady_seconds()
        return Changes(
            full=full,
            jobs=frozenset(doc.id for doc in jobs)
            | frozenset(str(doc.body.get("job_id")) for doc in pins if not doc.deleted),
            cluster=frozenset(doc.id for doc in cluster),
            others=tuple(others),
        )


@dataclass(frozen=True)
class Changes:
    """What a look at the store's documents found changed.

    :param full: everything was read.
    :param jobs: the ids of jobs whose document or pin changed.
    :param cluster: the ids of documents about the whole cluster that changed.
    :param others: the documents of the further kind that was asked for.
    """

    full: bool = False
    jobs: frozenset[str] = frozenset()
    cluster: frozenset[str] = frozenset()
    others: tuple[Doc, ...] = ()


def pin_definitions(
    store: Store, catalog: Catalog, lock: threading.RLock, *, now: int, zone_name: str | None, by: str
) -> None:
    """Pin, once for the cluster, what the code's definitions take from "now", and the zone.

    The first insert wins; a definition that had been retired starts anew.
    """
    if catalog.zone_name is None and zone_name is not None:
        store.put("cluster", "zone", {"zone": zone_name, "by": by}, expect=0)
        zone = store.doc("cluster", "zone")
        if zone is not None:
            with lock:
                catalog.take_cluster([zone])
    with lock:
        defined = [definition for definition in catalog.defined.values() if definition.scope != "worker"]
        pins = dict(catalog.pins)
        cluster_zone = catalog.zone
    for definition in defined:
        mark = definition.fingerprint
        known = pins.get(mark)
        if known is not None and not known.body.get("retired"):
            continue
        body = {
            "job_id": definition.id,
            "fields": pin(definition.fields, now_ms=now, zone=cluster_zone),
            "first": now if definition.first == "now" else definition.first,
            "since": now,
            "retired": None,
            "by": by,
        }
        if known is not None:
            # The anchor stays; what fell due while no code defined the job never was due.
            body = {**known.body, "since": now, "retired": None, "by": by}
        written = store.put("definition", mark, body, expect=0 if known is None else known.revision)
        written = written or store.doc("definition", mark)
        if written is not None:
            with lock:
                catalog.take_pins([written])
