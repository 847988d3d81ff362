"""What the tests of ticks share: instants written as text, schedules in one line, zones that change."""

from __future__ import annotations

import importlib.util
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from flask_singlejob.records import from_ms, to_ms
from flask_singlejob.ticks import Schedule, build, parse_trigger, pin, zone_from

UTC = timezone.utc

#: APScheduler has calendar intervals since 3.11.
HAS_CALENDAR = importlib.util.find_spec("apscheduler.triggers.calendarinterval") is not None

DAY = 86_400_000
HOUR = 3_600_000
MINUTE = 60_000

#: Zones whose clocks change at 1, 2 and 3 o'clock, at and around midnight, by half an hour, or never.
CHANGING_ZONES = (
    "Europe/Berlin",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Africa/Cairo",
    "America/Santiago",
    "Atlantic/Azores",
    "Pacific/Apia",
)


def at(text: str) -> int:
    """Return UTC milliseconds of ISO text; without an offset it is in UTC."""
    moment = datetime.fromisoformat(text)
    return to_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def text(ms: int | None, zone: str = "UTC") -> str | None:
    """Return an instant as local text without offset."""
    if ms is None:
        return None
    return from_ms(ms).astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")


def schedule(
    trigger: Any, zone: str = "UTC", *, now: str = "2025-01-01T00:00:00", **options: Any
) -> Schedule:
    """Return the schedule of a trigger that was defined at a given time."""
    parsed = parse_trigger(trigger, options)
    fields = pin(parsed.fields, now_ms=at(now), zone=zone_from(zone))
    custom = trigger if not isinstance(trigger, str | dict) else None
    return build(fields, zone=zone_from(zone), custom=custom)


def walk(given: Schedule, after: int, upto: int) -> list[int]:
    """Return the ticks in (after, upto], asked for one by one."""
    found = []
    tick = given.next_after(after)
    while tick is not None and tick <= upto:
        found.append(tick)
        tick = given.next_after(tick)
    return found


def days(first: date, last: date) -> list[date]:
    """Return all days from the first to the last."""
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]
