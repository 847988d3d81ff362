"""Which ticks of a job are due: from its pinned trigger, its last settled tick and the store's clock.

The way in to everything about time: fields (``fields.py``, ``triggers.py``), schedules (``schedules.py``)
and zones (``zones.py``). Pure functions; "now" is always given. Knows no store, no claim and no job.
"""

from __future__ import annotations

from datetime import tzinfo
from typing import Any, Literal, NamedTuple, Protocol

from apscheduler.triggers.base import BaseTrigger

from .combined import AndSchedule, OrSchedule
from .custom import CustomSchedule
from .errors import JobDefinitionError
from .fields import Fields, check_storable, fingerprint, needs_pin, pin
from .schedules import (
    CalendarSchedule,
    CronSchedule,
    DateSchedule,
    IntervalSchedule,
    Schedule,
    Span,
)
from .triggers import TRIGGER_OPTIONS, Parsed, parse_trigger
from .zones import local_zone, zone_from, zone_name

__all__ = [
    "TRIGGER_OPTIONS",
    "Due",
    "Fields",
    "Grace",
    "Parsed",
    "Schedule",
    "Span",
    "build",
    "check_storable",
    "due",
    "fingerprint",
    "grace_ms",
    "local_zone",
    "needs_pin",
    "parse_trigger",
    "pin",
    "zone_from",
    "zone_name",
]

#: A job's grace time: seconds, None for no limit, or the default that goes by its ticks.
Grace = int | float | Literal["default"] | None

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000

_KINDS: dict[str, type[IntervalSchedule | DateSchedule | CronSchedule | CalendarSchedule]] = {
    "interval": IntervalSchedule,
    "date": DateSchedule,
    "cron": CronSchedule,
    "calendarinterval": CalendarSchedule,
}
_COMBINED: dict[str, type[AndSchedule | OrSchedule]] = {"and": AndSchedule, "or": OrSchedule}


def build(fields: Fields, *, zone: tzinfo, custom: BaseTrigger | None = None) -> Schedule:
    """Return the schedule of pinned fields.

    :param zone: the cluster's zone, for triggers that name none.
    :param custom: the trigger object that the fields came from; needed where a part is of a class that
        is not APScheduler's own.
    :raises JobDefinitionError: if the fields are not pinned, not whole, or of an unknown kind.
    """
    zone = zone_from(zone)
    try:
        if needs_pin(fields):
            raise JobDefinitionError(f"the trigger {fields!r} still means 'from now': pin it first")
        return _build(fields, zone, custom)
    except JobDefinitionError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise JobDefinitionError(f"the trigger {fields!r} cannot be read: {error!r}") from error


def _build(fields: Fields, zone: tzinfo, custom: BaseTrigger | None) -> Schedule:
    kind = fields["type"]
    if kind in _COMBINED:
        objects: list[Any] = [None] * len(fields["triggers"]) if custom is None else custom.triggers
        parts = [
            _build(part, zone, object_) for part, object_ in zip(fields["triggers"], objects, strict=True)
        ]
        return _COMBINED[kind](fields, zone, parts)
    if kind == "custom":
        if custom is None:
            raise JobDefinitionError(f"the trigger {fields['ref']} exists only in code, and is not at hand")
        return CustomSchedule(fields, zone, custom)
    if kind not in _KINDS:
        raise JobDefinitionError(f"a trigger of the kind {kind!r} is not known to this release")
    return _KINDS[kind](fields, zone if fields["zone"] is None else zone_from(fields["zone"]))


class _Ticks(Protocol):
    """What is asked of a schedule here."""

    def next_after(self, ms: int, /) -> int | None: ...

    def last(self, after: int, upto: int, /) -> int | None: ...

    def span(self, after: int, upto: int, /) -> Span | None: ...


def grace_ms(policy: Grace, schedule: _Ticks, tick: int, lease_ms: int) -> int | None:
    """Return how late, in milliseconds, a tick may still run; None for no limit.

    By default half the gap to the next tick, at most 1 h, but never under 60 s or twice the lease (a longer
    lease would outlast every tick of a holder that died). The last tick of all has 1 h.

    :param policy: seconds, None or ``"default"``.
    """
    if policy is None:
        return None
    if policy != "default":
        return round(policy * 1000)
    following = schedule.next_after(tick)
    half = _HOUR_MS if following is None else (following - tick) // 2
    return max(min(half, _HOUR_MS), _floor(lease_ms))


def _floor(lease_ms: int) -> int:
    return max(_MINUTE_MS, 2 * lease_ms)


class Due(NamedTuple):
    """What is to be done with a job now.

    :param missed: the ticks that are beyond their grace time; they precede ``tick``.
    :param tick: the tick to run, UTC milliseconds, or None.
    :param stood_for: how many due ticks it stands for; 0 without a tick.
    :param wait_until: without a tick, the next one, UTC milliseconds; None when there is none.
    """

    missed: Span | None
    tick: int | None
    stood_for: int
    wait_until: int | None


def due(schedule: _Ticks, *, resolved: int, now: int, grace: Grace, coalesce: bool, lease_ms: int) -> Due:
    """Return which ticks after ``resolved``, up to ``now``, are missed and which is to run.

    With ``coalesce`` the last due tick stands for all that are in their grace time, otherwise the oldest of
    them runs alone. Nothing is enumerated, however long the time between ``resolved`` and ``now``.

    :param resolved: the last settled tick, UTC milliseconds.
    :param now: the store's clock, UTC milliseconds.
    :param grace: see :func:`grace_ms`.
    """
    first = _first_in_grace(schedule, resolved, now, grace, lease_ms)
    missed = schedule.span(resolved, now if first is None else first - 1)
    if first is None:
        return Due(missed, None, 0, schedule.next_after(max(resolved, now)))
    if not coalesce:
        return Due(missed, first, 1, None)
    span = schedule.span(first - 1, now)
    return Due(missed, first, 1, None) if span is None else Due(missed, span.last, span.count, None)


def _first_in_grace(schedule: _Ticks, resolved: int, now: int, grace: Grace, lease_ms: int) -> int | None:
    oldest = (
        None if grace is None else now - (_floor(lease_ms) if grace == "default" else round(grace * 1000))
    )
    after = resolved if oldest is None else max(resolved, oldest - 1)
    first = schedule.next_after(after)
    if first is not None and first <= now:
        return first
    if grace != "default":
        return None
    # Later than the floor by now. Half the gap to its next tick can only be more for the very last one:
    # the tick after any other is due already.
    last = schedule.last(resolved, now)
    if last is None:
        return None
    limit = grace_ms(grace, schedule, last, lease_ms)
    return last if limit is not None and now - last <= limit else None
