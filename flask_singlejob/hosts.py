"""The cluster's hosts as their owners tell of themselves in the store.

Owns the heartbeat documents and what follows from them: who lives, in which order hosts try a job, which
definitions nobody has any more, and where hosts disagree. No tick's safety depends on any of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from .catalog import Catalog
from .claims import Claimant
from .clock import steady_seconds
from .records import Doc, from_ms
from .stores.base import Store

__all__ = ["HostBook", "living_hosts"]

logger = logging.getLogger(__name__)

#: A host's owner tells of itself this often, seconds, or at a third of the lease.
BEAT_SECONDS = 10.0
#: A host that was silent for so many of its beats does not count as living.
SILENT_BEATS = 3
#: Hosts whose clock is further off than this, seconds, are warned of.
OFFSET_WARNING_SECONDS = 1.0
#: A host that was heard of within so many milliseconds has been told already what is said once per host.
KNOWN_MS = 3600 * 1000
#: Documents of hosts that are gone are deleted after so many milliseconds.
FORGET_MS = 7 * 24 * 3600 * 1000


def living_hosts(docs: list[Doc], now: int) -> list[Doc]:
    """Return the documents of hosts whose owner told of itself recently, by the store's clock."""
    return [
        doc
        for doc in docs
        if not doc.body.get("left")
        and now - doc.updated <= SILENT_BEATS * int(doc.body.get("beat_ms", 10_000)) + 2000
    ]


class HostBook:
    """This host's entry and what the others' say.

    :param describe: what the engine tells of this process, JSON-ready.
    """

    def __init__(
        self,
        claimant: Claimant,
        *,
        lease_seconds: float,
        describe: Callable[[], Mapping[str, Any]],
        zone_name: Callable[[], str | None],
    ) -> None:
        self._claimant = claimant
        self._beat_seconds = min(BEAT_SECONDS, max(1.0, lease_seconds / 3))
        self._describe = describe
        self._zone_name = zone_name
        self._next_beat = 0.0
        self._beaten = False
        self._beats = 0
        self.others: list[Doc] = []
        self.living: tuple[str, ...] = (claimant.host,)
        self.double: str | None = None
        self.warnings: list[str] = []
        self._warned: set[str] = set()
        self._defines: dict[str, str] = {}
        self._elsewhere: set[str] = set()
        self._read_at = 0
        self._ranks: dict[str, int] = {}
        self._groups: dict[str, Any] = {}
        self.known_before = False

    @property
    def doc_id(self) -> str:
        """The id of this host's document: one per host id and kernel."""
        return f"{self._claimant.host}@{self._claimant.machine}"

    def start_term(self) -> None:
        """Tell of this owner at the next poll."""
        self._next_beat = 0.0
        self._beaten = False
        self._beats = 0

    @property
    def is_due(self) -> bool:
        """Whether it is time to tell of this host."""
        return steady_seconds() >= self._next_beat

    def beat(
        self,
        store: Store,
        now: int,
        catalog: Catalog,
        offset_seconds: float | None,
        *,
        at_once: bool = False,
    ) -> None:
        """Tell of this host when it is time, and read what the others told.

        :param now: the store's clock, UTC milliseconds.
        :param offset_seconds: how far this host's clock is ahead of the store's.
        :param at_once: it is time now.
        """
        if not self.is_due and not at_once:
            return
        docs = store.docs("host")
        own = next((doc for doc in docs if doc.id == self.doc_id), None)
        self._look_for_double(own, docs, now)
        if not self._beaten:
            self.known_before = own is not None and now - own.updated < KNOWN_MS
        self._defines = {
            id: definition.fingerprint
            for id, definition in catalog.defined.items()
            if definition.scope != "worker"
        }
        body = {
            "host": self._claimant.host,
            "machine": self._claimant.machine,
            "instance": self._claimant.instance,
            "pid": self._claimant.pid,
            "offset_ms": None if offset_seconds is None else round(offset_seconds * 1000),
            "zone": self._zone_name(),
            "beat_ms": int(self._beat_seconds * 1000),
            "elections": self._elections(own),
            "defines": self._defines,
            **self._describe(),
        }
        store.put("host", self.doc_id, body, quiet=True)
        for doc in docs:
            if now - doc.updated > FORGET_MS:
                store.delete("host", doc.id, quiet=True)
        self._read_at = now
        self._elsewhere = {
            str(mark)
            for doc in docs
            if doc.id != self.doc_id and now - doc.updated <= KNOWN_MS
            for mark in dict(doc.body.get("defines") or {}).values()
        }
        self.others = [doc for doc in living_hosts(docs, now) if doc.id != self.doc_id]
        self.living = tuple(
            sorted({self._claimant.host, *(str(doc.body.get("host")) for doc in self.others)})
        )
        self._ranks = {}
        self._groups = {str(doc.body.get("host")): doc.body.get("groups") for doc in self.others}
        self._groups[self._claimant.host] = body.get("groups")
        self._beats += 1
        self._warn(catalog, offset_seconds)
        # The first beats come early: a host that just started is known to the others at once.
        self._next_beat = steady_seconds() + (
            min(2.0, self._beat_seconds) if self._beats < 3 else self._beat_seconds
        )
        self._beaten = True

    def _elections(self, own: Doc | None) -> int:
        """Return how many owners this host has had, this one included."""
        known = 0 if own is None else int(own.body.get("elections") or 0)
        return known if self._beaten and known else known + 1

    def leave(self, store: Store) -> None:
        """Tell that this host has no owner for now (best effort, only when it is still ours to tell)."""
        doc = store.doc("host", self.doc_id)
        if doc is not None and doc.body.get("instance") == self._claimant.instance:
            store.put("host", self.doc_id, {**doc.body, "left": True}, quiet=True)

    def rank(self, job_id: str, group: str) -> int:
        """Return this host's place for a job by rendezvous hashing (Thaler and Ravishankar, 1998), 0 the first.

        With few hosts every owner tries every tick: 0.
        """
        living = [
            host
            for host in self.living
            if self._groups.get(host) is None or group in (self._groups[host] or ())
        ]
        if len(living) <= 2 or self._claimant.host not in living:
            return 0
        known = self._ranks.get(job_id)
        if known is None:
            order = sorted(
                living, key=lambda host: hashlib.sha256(f"{host}\n{job_id}".encode()).digest(), reverse=True
            )
            known = self._ranks[job_id] = order.index(self._claimant.host)
        return known

    def abandoned(self, catalog: Catalog) -> list[str]:
        """Return the fingerprints of pinned definitions that no host's code has any more.

        A host that fell silent keeps what it defined for an hour: it may be restarting, and what falls due
        meanwhile is late, not void. Whoever pins a definition has told of it before, so what was pinned after
        the last look at the hosts is not judged yet.
        """
        if not self._beaten or self._beats < 2:
            return []
        known = set(self._defines.values()) | self._elsewhere
        known |= {definition.fingerprint for definition in catalog.defined.values()}
        return [
            mark
            for mark, doc in catalog.pins.items()
            if mark not in known and not doc.body.get("retired") and doc.updated < self._read_at
        ]

    def _look_for_double(self, own: Doc | None, docs: list[Doc], now: int) -> None:
        self.double = None
        other_kernel = [
            doc
            for doc in living_hosts(docs, now)
            if doc.body.get("host") == self._claimant.host and doc.id != self.doc_id
        ]
        same_kernel = self._beaten and own is not None and own.body.get("instance") != self._claimant.instance
        if other_kernel or same_kernel:
            which = other_kernel[0] if other_kernel else own
            assert which is not None
            self.double = (
                f"two hosts have the id {self._claimant.host!r} (the other owner is pid {which.body.get('pid')}): "
                "give each its own SINGLEJOB_HOST_ID"
            )

    def _warn(self, catalog: Catalog, offset_seconds: float | None) -> None:
        found: list[str] = []
        if self.double is not None:
            found.append(self.double)
        if offset_seconds is not None and abs(offset_seconds) >= OFFSET_WARNING_SECONDS:
            found.append(
                f"the clock of host {self._claimant.host!r} is {_off(offset_seconds)} the store's: "
                "ticks go by the store's clock; set the host's by NTP"
            )
        own_zone = self._zone_name()
        by_cluster = not catalog.defined
        for job_id, definition in sorted(catalog.defined.items()):
            own = definition.fields.get("zone")
            by_cluster = by_cluster or own is None
            zone = own or catalog.zone_name
            if definition.host_zone is not None and zone is not None and definition.host_zone != zone:
                found.append(
                    f"the trigger object of job {job_id!r} names no zone but this host's, {definition.host_zone}; it is "
                    f"read in {zone}: give it timezone= to say which one you mean"
                )
        # Triggers that name a zone, or have SCHEDULER_TIMEZONE's, do not go by the cluster's.
        if by_cluster and own_zone and catalog.zone_name and own_zone != catalog.zone_name:
            found.append(
                f"host {self._claimant.host!r} is in the zone {own_zone}, the cluster in {catalog.zone_name}, which is "
                "used: set SCHEDULER_TIMEZONE to say which one you mean"
            )
        for doc in self.others:
            theirs = dict(doc.body.get("defines") or {})
            for job_id, mark in sorted(self._defines.items()):
                if job_id in theirs and theirs[job_id] != mark:
                    found.append(
                        f"job {job_id!r} has another trigger in the code of host {doc.body.get('host')!r} than in that of "
                        f"{self._claimant.host!r}: until they run the same release, both schedules are run, "
                        "each tick once"
                    )
            missing = sorted(set(self._defines) ^ set(theirs))
            if missing:
                found.append(
                    f"hosts {self._claimant.host!r} and {doc.body.get('host')!r} do not define the same jobs "
                    f"(only one has {', '.join(map(repr, missing[:5]))}{'…' if len(missing) > 5 else ''})"
                )
        self.warnings = found
        for text in found:
            # The offset differs at each beat: one line per kind is enough.
            kind = text.split(" is ")[0]
            if kind not in self._warned:
                self._warned.add(kind)
                logger.warning("%s", text)
        kinds = {text.split(" is ")[0] for text in found}
        self._warned &= kinds


def _off(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def host_dict(doc: Doc, *, living: bool) -> dict[str, Any]:
    """Return a host's document as ``status`` shows it."""
    body = doc.body
    offset = body.get("offset_ms")
    left = bool(body.get("left"))
    return {
        "host": body.get("host"),
        "living": living,
        "owner": None
        if left or not living
        else {"pid": body.get("pid"), "since": body.get("owner_since"), "instance": body.get("instance")},
        "seen": from_ms(doc.updated).isoformat(),
        "clock_offset": None if offset is None else offset / 1000,
        "zone": body.get("zone"),
        "version": body.get("version"),
        "workers": body.get("workers"),
        "groups": body.get("groups"),
        "container": body.get("container"),
        "warnings": list(body.get("warnings") or []),
    }
