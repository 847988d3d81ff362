"""The frozen values that pass between the parts: keys, claims, runs, documents, health.

Owns their shape and their flat, JSON-ready form. Knows no store, no Flask, no APScheduler.
Instants are integers, UTC milliseconds since 1970, wherever a name ends in ``_ms`` or the
docstring says so; everywhere else they are aware datetimes in UTC.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

__all__ = [
    "ClaimKey",
    "ClaimOutcome",
    "ClaimRequest",
    "ClaimRow",
    "Doc",
    "Health",
    "Poll",
    "Run",
    "RunStatus",
    "from_ms",
    "new_id",
    "to_ms",
]

UTC = timezone.utc
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_ms(moment: datetime) -> int:
    """Return an aware datetime as UTC milliseconds.

    :raises ValueError: if ``moment`` has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(ms: int) -> datetime:
    """Return UTC milliseconds as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def new_id() -> str:
    """Return a random name of 32 hex digits for a claim, a run or a process."""
    return os.urandom(16).hex()


class RunStatus(str, Enum):
    """How a run stands or ended."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSED = "missed"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """What can be claimed in a cluster: a job (on one host, in one slot), a lock, a once-only task.

    :param kind: ``job``, ``lock`` or ``once``.
    :param name: job id, lock name or task key; case-sensitive, any text up to 255 characters.
    :param host: the host id for a host-scope job, else empty.
    :param slot: 0 for the row itself; 1 to n for the places of a job with ``max_instances`` n > 1.
    """

    kind: str
    name: str
    host: str = ""
    slot: int = 0

    def digest(self, cluster: str) -> str:
        """Return 32 hex digits that name this key in the given cluster, safe in any collation."""
        text = json.dumps([cluster, self.kind, self.name, self.host, self.slot])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def with_slot(self, slot: int) -> ClaimKey:
        """Return the same key for another slot."""
        return self if slot == self.slot else replace(self, slot=slot)


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claimable row as the store holds it. Times are UTC milliseconds of the store's clock.

    :param resolved: every tick up to it is settled. For a once-only task: when it was done, 0 before.
    :param token: the fencing number of the last claim; it only grows.
    :param holder: the random id of the claim that holds the row, also its run's id; None when free.
    :param held_tick: the tick that is held (the time of the claim for a run by hand).
    :param since: when the holder took it.
    :param expires: when the holder's lease ends unless renewed.
    :param hold_until: not to be claimed before it, held or not (``hold_at_least``).
    :param rerun_tick: a lost tick that has to run again before any other, else None.
    :param rerun_attempt: how many times ``rerun_tick`` was tried already.
    :param streak: id of the skipped or missed record that a like one would extend, else None.
    :param info: what the holder says of itself: ``host``, ``pid``, ``instance``, ``cause``, ``scope``,
        ``attempt``, ``stood_for``. Kept after release until the next claim.
    :param progress: what the running job last reported.
    :param last_run: the flat record of the last finished run (succeeded, failed or lost), else None.
    :param last_success: when a run last succeeded, else None.
    """

    key: ClaimKey
    resolved: int = 0
    token: int = 0
    holder: str | None = None
    held_tick: int | None = None
    since: int | None = None
    expires: int | None = None
    hold_until: int = 0
    rerun_tick: int | None = None
    rerun_attempt: int = 0
    streak: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] | None = None
    last_run: Mapping[str, Any] | None = None
    last_success: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One try to take a row.

    :param holder: a fresh :func:`new_id`.
    :param lease_ms: how long the claim holds without renewal.
    :param tick: the tick to settle and hold; None for a run by hand, a lock or a once-only task.
    :param seen_resolved: the claim succeeds only if ``resolved`` is still exactly this; None: any.
        Required with ``tick`` unless ``rerun``.
    :param rerun: take ``tick`` because it equals the row's ``rerun_tick``; ``resolved`` stays.
    :param hold_ms: the row stays taken at least this long, even after its release.
    :param slot: with ``max_instances`` n > 1, the slot (1 to n) that is to hold the run. The tick is then
        settled in the key's own row (slot 0) and held in the slot's row, both or neither.
    :param info: see :class:`ClaimRow`.
    """

    holder: str
    lease_ms: int
    tick: int | None = None
    seen_resolved: int | None = None
    rerun: bool = False
    hold_ms: int = 0
    slot: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """What came of a :class:`ClaimRequest`.

    :param won: True when the row is ours.
    :param row: the row afterwards: as claimed when won, else as somebody else left it. With a slot,
        the slot's row when won, the key's own row otherwise.
    :param now: the store's clock, UTC milliseconds, at the answer.
    """

    won: bool
    row: ClaimRow
    now: int


@dataclass(frozen=True, slots=True)
class Poll:
    """The answer to the one small question an owner asks per poll.

    :param now: the store's clock, UTC milliseconds.
    :param revision: grows with every change of a document that was not put quietly.
    :param held: every row of the cluster that has a holder.
    """

    now: int
    revision: int
    held: tuple[ClaimRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Doc:
    """A named JSON document in the store.

    :param revision: the cluster's revision at its last change.
    :param updated: the store's clock at its last change, UTC milliseconds.
    :param deleted: True for the trace of a removed document (``body`` is empty then).
    """

    kind: str
    id: str
    body: Mapping[str, Any]
    revision: int
    updated: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a job, or the record that one did not happen. Datetimes are aware, in UTC.

    :param id: the random id of its claim.
    :param cause: ``schedule``, ``manual`` or ``rerun``.
    :param scheduled_at: its tick; by hand, the time of the claim; the first tick of a record that
        stands for several.
    :param last_scheduled_at: the last tick of a record that stands for several, else None.
    :param stood_for: how many ticks a coalesced run stood for.
    :param duration: seconds.
    :param reason: why it was skipped, missed or lost.
    :param error: the traceback of a failed run.
    :param count: how many ticks a skipped or missed record stands for.
    :param progress: what a running job last reported, else None.
    """

    id: str
    job_id: str
    cause: str
    scheduled_at: datetime
    status: RunStatus
    stood_for: int = 1
    scope: str = "cluster"
    host: str | None = None
    pid: int | None = None
    token: int | None = None
    attempt: int = 1
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration: float | None = None
    reason: str | None = None
    detail: str | None = None
    error: str | None = None
    count: int = 1
    last_scheduled_at: datetime | None = None
    progress: Mapping[str, Any] | None = None

    @property
    def at_ms(self) -> int:
        """When it ended (or began, or was due, whichever is known), UTC milliseconds: the order of history."""
        return to_ms(self.finished_at or self.started_at or self.last_scheduled_at or self.scheduled_at)

    def to_record(self) -> dict[str, Any]:
        """Return a flat dict with instants as UTC milliseconds, ready for JSON; see :meth:`from_record`."""
        record: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, datetime):
                value = to_ms(value)
            elif isinstance(value, RunStatus):
                value = value.value
            elif isinstance(value, Mapping):
                value = dict(value)
            record[name] = value
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Run:
        """Return the run of a flat dict; fields that this version does not know are left out."""
        values = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        for name in ("scheduled_at", "started_at", "finished_at", "last_scheduled_at"):
            if values.get(name) is not None:
                values[name] = from_ms(values[name])
        values["status"] = RunStatus(values["status"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict with instants as ISO 8601 text in UTC."""
        result = self.to_record()
        for name in ("scheduled_at", "started_at", "finished_at", "last_scheduled_at"):
            value = getattr(self, name)
            result[name] = None if value is None else value.isoformat()
        return result


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of a health check; true or false as a bool.

    :param ok: True when nothing is wrong.
    :param reasons: one sentence per thing that is wrong.
    """

    ok: bool
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok
