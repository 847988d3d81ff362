"""APScheduler's trigger objects as fields, without what they took from "now" or from the host.

A trigger object has filled in, when it was made, what was not given to it. It is recognised and becomes null
again:

* a start (or run date) with a fraction of a second, which is one interval after (or is) a moment within the
  hour before it was handed over: nobody writes microseconds by hand;
* a calendar interval's start date that was today in that hour, by this host's calendar;
* a zone that is the host's own as tzlocal gives it. A zone object of another kind (``timezone.utc`` on a host
  set to UTC) was given by hand and stays. Naming the host's own zone cannot be told from naming none:
  ``ObjectReader.host_zone`` reports it.
"""

from __future__ import annotations

import copy
import re
from datetime import datetime, timedelta, tzinfo
from typing import Any

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from .errors import JobDefinitionError
from .fields import CALENDAR_STEPS, Fields, fail, jitter_of, seconds_of
from .moments import parse_day
from .records import to_ms
from .zones import zone_name

try:
    from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
except ImportError:  # APScheduler 3.10 has none
    CalendarIntervalTrigger = None

__all__ = ["CalendarIntervalTrigger", "ObjectReader"]

# How long before its registration a trigger object may have been made.
_MADE_WITHIN = timedelta(hours=1)
_SECOND = timedelta(seconds=1)


class ObjectReader:
    """Reads trigger objects that were made shortly before a given moment."""

    def __init__(self, made_at: datetime) -> None:
        self.made_at = made_at
        self.host_zone: str | None = None

    def read(self, trigger: BaseTrigger) -> tuple[Fields, float | None]:
        """Return fields and jitter; a subclass that computes its own times is a custom trigger."""
        jitter = jitter_of(getattr(trigger, "jitter", None))
        for known, reader in (
            (CronTrigger, self._cron),
            (IntervalTrigger, self._interval),
            (DateTrigger, self._date),
            (CalendarIntervalTrigger, self._calendar),
        ):
            if known is not None and _computes_as(trigger, known):
                return reader(trigger), jitter
        for known, kind in ((AndTrigger, "and"), (OrTrigger, "or")):
            if _computes_as(trigger, known):
                parts = [self.read(part) for part in trigger.triggers]
                if not parts:
                    fail(f"{type(trigger).__name__} takes a list of at least one trigger")
                inner = max((part[1] or 0 for part in parts), default=0) or None
                return {"type": kind, "triggers": [part[0] for part in parts]}, jitter or inner
        cls = type(trigger)
        bare = copy.copy(trigger)
        if jitter is not None:
            bare.jitter = None
        # An address in a default repr differs in each process.
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(bare))
        return {"type": "custom", "ref": f"{cls.__module__}:{cls.__qualname__}", "repr": text}, jitter

    def _zone(self, zone: tzinfo) -> str | None:
        if _is_host_zone(zone):
            self.host_zone = self.host_zone or _nameable(zone)
            return None
        return zone_name(zone)

    def _cron(self, trigger: Any) -> Fields:
        return {
            "type": "cron",
            "start": None if trigger.start_date is None else to_ms(trigger.start_date),
            "end": None if trigger.end_date is None else to_ms(trigger.end_date),
            "zone": self._zone(trigger.timezone),
            "fields": {field.name: str(field) for field in trigger.fields if not field.is_default},
        }

    def _interval(self, trigger: Any) -> Fields:
        start = trigger.start_date
        from_now = self._just_now(start - trigger.interval, start)
        # The zone of an interval changes no tick: one without a name is left out.
        zone = None if _is_host_zone(trigger.timezone) else _nameable(trigger.timezone)
        return {
            "type": "interval",
            "start": None if from_now else to_ms(start),
            "end": None if trigger.end_date is None else to_ms(trigger.end_date),
            "zone": zone,
            "seconds": seconds_of(trigger.interval, repr(trigger.interval)),
        }

    def _date(self, trigger: Any) -> Fields:
        at = trigger.run_date
        return {"type": "date", "at": None if self._just_now(at, at) else to_ms(at), "zone": None}

    def _calendar(self, trigger: Any) -> Fields:
        day = parse_day("start_date", trigger.start_date)
        local = self.made_at.astimezone()
        todays = {moment.date().isoformat() for moment in (local, local - _MADE_WITHIN)}
        time = trigger._time
        return {
            "type": "calendarinterval",
            **{name: getattr(trigger, name) for name in CALENDAR_STEPS},
            **{name: getattr(time, name) for name in ("hour", "minute", "second")},
            "start_date": None if day in todays else day,
            "end_date": parse_day("end_date", trigger.end_date),
            "zone": self._zone(trigger.timezone),
        }

    def _just_now(self, moment: datetime, written: datetime) -> bool:
        return written.microsecond != 0 and -_MADE_WITHIN <= moment - self.made_at <= _SECOND


def _computes_as(trigger: BaseTrigger, known: Any) -> bool:
    return isinstance(trigger, known) and type(trigger).get_next_fire_time is known.get_next_fire_time


def _is_host_zone(zone: tzinfo) -> bool:
    """Tell whether a trigger object's zone is what tzlocal gives here, of the same kind and name."""
    try:
        import tzlocal

        host = tzlocal.get_localzone()
    except Exception:  # then no trigger object can have got its zone from it
        return False
    if zone is host:
        return True
    key = getattr(host, "key", None)
    return key is not None and getattr(zone, "key", None) == key


def _nameable(zone: tzinfo) -> str | None:
    try:
        return zone_name(zone)
    except JobDefinitionError:
        return None
