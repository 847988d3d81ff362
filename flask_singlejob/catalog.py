"""What the code defines and what the store changed, merged into the jobs of the cluster.

Owns the rules of which wins. Pure: it reads no clock and no store, so every process that has the same
code and documents comes to the same jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timezone, tzinfo
from typing import Any

from .definitions import Definition, restore
from .errors import JobDefinitionError
from .records import Doc
from .ticks import Fields, Schedule, Span, build, pin, zone_from

__all__ = ["Catalog", "EffectiveJob"]

logger = logging.getLogger(__name__)


class _WithFirst:
    """A schedule with one extra tick before all others (``next_run_time``)."""

    def __init__(self, schedule: Schedule, first: int) -> None:
        self._schedule = schedule
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)

    def __str__(self) -> str:
        return str(self._schedule)

    def next_after(self, ms: int) -> int | None:
        return self._first if ms < self._first else self._schedule.next_after(ms)

    def ticks(self, after: int, upto: int, limit: int) -> list[int]:
        if after >= self._first:
            return self._schedule.ticks(after, upto, limit)
        if upto < self._first or limit < 1:
            return []
        return [self._first, *self._schedule.ticks(self._first, upto, limit - 1)]

    def last(self, after: int, upto: int) -> int | None:
        if upto < self._first:
            return None
        later = self._schedule.last(max(after, self._first), upto)
        return later if later is not None else (self._first if after < self._first else None)

    def span(self, after: int, upto: int) -> Any:
        if after >= self._first:
            return self._schedule.span(after, upto)
        if upto < self._first:
            return None
        later = self._schedule.span(self._first, upto)
        if later is None:
            return Span(self._first, self._first, 1, True)
        return Span(self._first, later.last, later.count + 1, later.exact)


@dataclass(frozen=True)
class EffectiveJob:
    """A job as the cluster runs it: definition, pinned schedule, and what operators changed.

    :param schedule: None when it cannot be computed (broken, removed).
    :param floor: nothing up to it is due, UTC milliseconds.
    :param since: when the cluster first saw it: its floor, but for a date that was past by then.
    :param resumed_at: when its last pause ended; ticks up to it were skipped by the pause.
    :param origin: ``code`` or ``store``.
    :param pinned: False while no owner has pinned what its trigger takes from "now".
    """

    definition: Definition
    schedule: Schedule | None
    floor: int
    since: int = 0
    paused: bool = False
    resumed_at: int = 0
    removed: bool = False
    changed: bool = False
    origin: str = "code"
    pinned: bool = True
    revision: int = 0

    @property
    def id(self) -> str:
        return self.definition.id

    @property
    def broken(self) -> str | None:
        return self.definition.broken

    def next_tick(self, after: int) -> int | None:
        """Return the tick that follows, UTC milliseconds; None when paused, removed, broken or ended."""
        if self.schedule is None or self.paused or self.removed:
            return None
        return self.schedule.next_after(max(after, self.floor))


class Catalog:
    """The jobs of one app: its code's definitions, and the store's documents over them.

    :param local: returns the zone to use until one is pinned for the cluster.
    """

    def __init__(self, local: Callable[[], tzinfo]) -> None:
        self.defined: dict[str, Definition] = {}
        self.registry: dict[str, Callable[..., Any]] = {}
        self.jobs: dict[str, Doc] = {}
        self.pins: dict[str, Doc] = {}
        self.revision = 0
        self.zone_name: str | None = None
        self.cluster_paused = False
        self.cluster_resumed_at = 0
        self._local = local
        self._cache: dict[str, EffectiveJob] = {}

    # -- taking in ------------------------------------------------------------------------------

    def define(self, definition: Definition) -> None:
        """Add or replace a definition of the code."""
        self.defined[definition.id] = definition
        self._cache.pop(definition.id, None)

    def undefine(self, id: str) -> None:
        """Drop a definition of the code."""
        self.defined.pop(id, None)
        self._cache.pop(id, None)

    def forget_stored(self, id: str) -> None:
        """Forget a stored job that is gone."""
        self.jobs.pop(id, None)
        self._cache.pop(id, None)

    def take_jobs(self, docs: list[Doc]) -> set[str]:
        """Take in documents of the kind ``job``.

        :returns: the ids that changed.
        """
        changed = set()
        for doc in docs:
            known = self.jobs.get(doc.id)
            if known is not None and known.revision >= doc.revision:
                continue
            if doc.deleted:
                self.jobs.pop(doc.id, None)
            else:
                self.jobs[doc.id] = doc
            self.revision = max(self.revision, doc.revision)
            self._cache.pop(doc.id, None)
            changed.add(doc.id)
        return changed

    def take_pins(self, docs: list[Doc]) -> None:
        """Take in documents of the kind ``definition``."""
        for doc in docs:
            # Read again with each look at the jobs: what did not change keeps the schedules built from it.
            if not doc.deleted and self.pins.get(doc.id) != doc:
                self.pins[doc.id] = doc
                job_id = doc.body.get("job_id")
                if isinstance(job_id, str):
                    self._cache.pop(job_id, None)

    def take_cluster(self, docs: list[Doc]) -> bool:
        """Take in documents of the kind ``cluster`` (zone, pause).

        :returns: True when something changed for every job.
        """
        before = (self.zone_name, self.cluster_paused, self.cluster_resumed_at)
        for doc in docs:
            if doc.id == "zone" and not doc.deleted:
                self.zone_name = str(doc.body.get("zone"))
            elif doc.id == "pause":
                self.cluster_paused = not doc.deleted and bool(doc.body.get("paused"))
                if not self.cluster_paused and not doc.deleted:
                    self.cluster_resumed_at = int(doc.body.get("resumed_at") or 0)
        after = (self.zone_name, self.cluster_paused, self.cluster_resumed_at)
        if before != after:
            self._cache.clear()
        return before != after

    # -- giving out -----------------------------------------------------------------------------

    @property
    def zone(self) -> tzinfo:
        """The cluster's zone, once pinned; before that this host's."""
        if self.zone_name is not None:
            try:
                return zone_from(self.zone_name)
            except (JobDefinitionError, ValueError, KeyError) as error:
                logger.warning(
                    "the cluster's zone %r is not known on this host, UTC is used: %s", self.zone_name, error
                )
                return timezone.utc
        return self._local()

    def ids(self) -> list[str]:
        """Return every job id, defined or stored."""
        stored = [id for id, doc in self.jobs.items() if doc.body.get("stored") and id not in self.defined]
        return [*self.defined, *stored]

    def effective(self, id: str, *, now: int) -> EffectiveJob | None:
        """Return one job as the cluster runs it, or None when there is none of that id.

        :param now: the store's clock, for what is not pinned yet.
        """
        cached = self._cache.get(id)
        if cached is not None:
            return cached
        base = self.defined.get(id)
        doc = self.jobs.get(id)
        if base is None and (doc is None or not doc.body.get("stored")):
            return None
        job = self._merge(id, base, doc, now)
        if job.pinned:
            self._cache[id] = job
        return job

    def all(self, *, now: int) -> list[EffectiveJob]:
        """Return every job as the cluster runs it, removed ones left out."""
        jobs = (self.effective(id, now=now) for id in self.ids())
        return [job for job in jobs if job is not None and not job.removed]

    def _merge(self, id: str, base: Definition | None, doc: Doc | None, now: int) -> EffectiveJob:
        body = {} if doc is None else doc.body
        revision = 0 if doc is None else doc.revision
        if base is None:
            definition = restore(id, body, registry=self.registry)
            return self._build(
                definition,
                fields=definition.fields,
                first=definition.first,
                floor=int(body.get("since") or 0),
                body=body,
                origin="store",
                revision=revision,
            )
        pinned = self.pins.get(base.fingerprint)
        if pinned is not None:
            fields, floor = dict(pinned.body["fields"]), int(pinned.body["since"])
            first = pinned.body.get("first")
        else:
            fields, floor = pin(base.fields, now_ms=now, zone=self.zone), now
            first = now if base.first == "now" else base.first
        bound = not body.get("stored") and body.get("fingerprint") == base.fingerprint
        changes = body.get("changes") if bound else None
        removed = bool(body.get("removed")) if bound else False
        definition = base
        if changes:
            definition = restore(id, {"v": body.get("v", 1), **changes}, registry=self.registry, base=base)
            if "trigger" in changes:
                fields, first = dict(changes["trigger"]), None
                floor = max(floor, int(body.get("since") or 0))
            if "first" in changes:
                first = changes["first"]
        return self._build(
            definition,
            fields=fields,
            first=first,
            floor=floor,
            body={} if body.get("stored") else body,
            origin="code",
            revision=revision,
            pinned=pinned is not None,
            removed=removed,
            changed=bool(changes),
        )

    def _build(
        self,
        definition: Definition,
        *,
        fields: Fields,
        first: Any,
        floor: int,
        body: Mapping[str, Any],
        origin: str,
        revision: int,
        pinned: bool = True,
        removed: bool = False,
        changed: bool = False,
    ) -> EffectiveJob:
        schedule: Schedule | None = None
        since = floor
        if not removed:
            try:
                schedule = build(fields, zone=self.zone, custom=definition.custom)
            except (JobDefinitionError, KeyError, TypeError, ValueError) as error:
                if definition.broken is None:
                    definition = replace(definition, broken=f"its trigger cannot be restored: {error}")
            else:
                at = fields.get("at")
                if isinstance(at, int):
                    # A date that was past already when the cluster first saw it is due, as late as it is.
                    floor = min(floor, at - 1)
                if isinstance(first, int):
                    schedule = _WithFirst(schedule, first)  # type: ignore[assignment]
                    floor = min(floor, first - 1)
        resumed_at = int(body.get("resumed_at") or 0)
        paused = bool(body.get("paused", definition.starts_paused))
        return EffectiveJob(
            definition=definition,
            schedule=schedule,
            floor=floor,
            since=since,
            paused=paused or self.cluster_paused,
            resumed_at=max(resumed_at, self.cluster_resumed_at),
            removed=removed,
            changed=changed,
            origin=origin,
            pinned=pinned,
            revision=revision,
        )
