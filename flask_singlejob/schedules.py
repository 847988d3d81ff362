"""Schedules: the ticks of a trigger from any instant on, the same whatever was asked before.

A schedule is built from pinned fields and knows no clock. Instants are UTC milliseconds. Nothing is
enumerated that need not be: the last tick of a span and their number are found by arithmetic, so a span of
ten years costs no more than one of a minute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from datetime import date, datetime, time, tzinfo
from itertools import islice
from math import gcd
from typing import Any

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from .cron import GRID_FROM, CronTimes
from .moments import moment_ms
from .records import from_ms, to_ms
from .wording import describe
from .zones import offset_at, offset_grid, zone_name

__all__ = [
    "COUNT_LIMIT",
    "CalendarSchedule",
    "CronSchedule",
    "DateSchedule",
    "IntervalSchedule",
    "Schedule",
    "Span",
]

#: Ticks that cannot be counted by arithmetic are counted up to this number, and estimated beyond it.
COUNT_LIMIT = 10_000
# No tick is given after it, so that every tick is a datetime in every zone.
_LAST_MS = to_ms(datetime.fromisoformat("9990-01-01T00:00:00+00:00"))
_FIRST_MS = to_ms(datetime.fromisoformat("1900-01-01T00:00:00+00:00"))


@dataclass(frozen=True, slots=True)
class Span:
    """A row of ticks.

    :param first: the earliest, UTC milliseconds.
    :param last: the latest, UTC milliseconds.
    :param count: how many there are, both included.
    :param exact: False when ``count`` is an estimate.
    """

    first: int
    last: int
    count: int
    exact: bool


class Schedule(ABC):
    """The ticks of one trigger, in UTC milliseconds.

    :param fields: pinned fields.
    :param zone: the zone in which a trigger that names none is read, its own otherwise.
    """

    def __init__(self, fields: dict[str, Any], zone: tzinfo) -> None:
        self.fields = fields
        self.zone = zone

    @abstractmethod
    def next_after(self, ms: int) -> int | None:
        """Return the first tick after an instant, or None when there is none any more."""

    @abstractmethod
    def last_upto(self, ms: int) -> int | None:
        """Return the last tick at or before an instant, or None."""

    def grid(self) -> tuple[int, int] | None:
        """Return (offset, step) of a grid that every tick lies on, in milliseconds, or None."""
        return None

    def count(self, after: int, upto: int) -> tuple[int, bool]:
        """Return how many ticks lie in ``after < tick <= upto``, and whether that is exact."""
        found = self.ticks(after, upto, COUNT_LIMIT)
        if len(found) < COUNT_LIMIT or found[-1] == self.last(after, upto):
            return len(found), True
        return max(COUNT_LIMIT, round(COUNT_LIMIT * (upto - after) / (found[-1] - after))), False

    def ticks(self, after: int, upto: int, limit: int) -> list[int]:
        """Return the ticks in ``after < tick <= upto``, oldest first, at most ``limit``."""
        found: list[int] = []
        tick = self.next_after(after)
        while tick is not None and tick <= upto and len(found) < limit:
            found.append(tick)
            tick = self.next_after(tick)
        return found

    def last(self, after: int, upto: int) -> int | None:
        """Return the last tick in ``after < tick <= upto``, or None."""
        tick = self.last_upto(upto)
        return tick if tick is not None and tick > after else None

    def span(self, after: int, upto: int) -> Span | None:
        """Return the ticks in ``after < tick <= upto`` as first, last and count, or None."""
        first = self.next_after(after)
        if first is None or first > upto:
            return None
        last = self.last(after, upto)
        # A search that gave up on its way back leaves what is known.
        last = first if last is None else last
        count, exact = self.count(after, upto) if first != last else (1, True)
        return Span(first, last, count, exact)

    @property
    @abstractmethod
    def trigger(self) -> BaseTrigger:
        """An APScheduler trigger that equals this schedule, for job handles."""

    def describe(self) -> str:
        """Return the schedule in words, such as ``at 03:00 every day (Europe/Berlin)``."""
        return describe(self.fields, zone_name(self.zone))

    def __str__(self) -> str:
        return str(self.trigger)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


def _aware(ms: int | None, zone: tzinfo) -> datetime | None:
    return None if ms is None else from_ms(ms).astimezone(zone)


class IntervalSchedule(Schedule):
    """Every tick is the anchor plus a whole number of intervals: never the last run plus one."""

    def __init__(self, fields: dict[str, Any], zone: tzinfo) -> None:
        super().__init__(fields, zone)
        anchor = moment_ms(fields["start"], zone)
        assert anchor is not None, "the fields are pinned"
        self._end = moment_ms(fields["end"], zone)
        self._set(anchor, round(fields["seconds"] * 1000), self._end)

    def _set(self, anchor: int, step: int, end: int | None) -> None:
        if step < 1:
            raise ValueError(f"an interval of {step} ms never ends")
        self.anchor = anchor
        self.step = step
        self.stop = _LAST_MS if end is None else min(end, _LAST_MS)

    def grid(self) -> tuple[int, int]:
        return self.anchor % self.step, self.step

    def on_grid(self, offset: int, step: int) -> IntervalSchedule | None:
        """Return the schedule of those ticks that lie on a grid, or None when there are none."""
        common = gcd(self.step, step)
        apart, rest = divmod(offset - self.anchor, common)
        if rest:
            return None
        cycle = step // common
        first = self.anchor + self.step * (apart * pow(self.step // common, -1, cycle) % cycle)
        part = copy(self)
        part._set(first, self.step * cycle, self.stop)
        return part

    def next_after(self, ms: int) -> int | None:
        tick = self.anchor if ms < self.anchor else ms + self.step - (ms - self.anchor) % self.step
        return tick if tick <= self.stop else None

    def last_upto(self, ms: int) -> int | None:
        ms = min(ms, self.stop)
        return None if ms < self.anchor else ms - (ms - self.anchor) % self.step

    def count(self, after: int, upto: int) -> tuple[int, bool]:
        first, last = self.next_after(after), self.last_upto(upto)
        if first is None or last is None or last < first:
            return 0, True
        return (last - first) // self.step + 1, True

    def ticks(self, after: int, upto: int, limit: int) -> list[int]:
        first = self.next_after(after)
        if first is None:
            return []
        return list(islice(range(first, min(upto, self.stop) + 1, self.step), max(0, limit)))

    @property
    def trigger(self) -> BaseTrigger:
        return IntervalTrigger(
            seconds=self.fields["seconds"],
            start_date=_aware(self.anchor, self.zone),
            end_date=_aware(self._end, self.zone),
            timezone=self.zone,
        )


class DateSchedule(Schedule):
    """One tick."""

    def __init__(self, fields: dict[str, Any], zone: tzinfo) -> None:
        super().__init__(fields, zone)
        at = moment_ms(fields["at"], zone)
        assert at is not None, "the fields are pinned"
        self.at = at

    def next_after(self, ms: int) -> int | None:
        return self.at if self.at > ms else None

    def last_upto(self, ms: int) -> int | None:
        return self.at if self.at <= ms else None

    @property
    def trigger(self) -> BaseTrigger:
        return DateTrigger(run_date=_aware(self.at, self.zone), timezone=self.zone)


class CronSchedule(Schedule):
    """The instants at which a zone's clock shows what an expression names; see :mod:`.cron`."""

    def __init__(self, fields: dict[str, Any], zone: tzinfo) -> None:
        super().__init__(fields, zone)
        self._start = moment_ms(fields["start"], zone)
        self._end = moment_ms(fields["end"], zone)
        # Whole seconds at or after the start, and at or before the end.
        self._first = -(-(_FIRST_MS if self._start is None else self._start) // 1000)
        self._stop = (_LAST_MS if self._end is None else min(self._end, _LAST_MS)) // 1000
        self._times = CronTimes(fields["fields"], zone)

    def grid(self) -> tuple[int, int]:
        offset, step = self._times.grid()
        return offset * 1000, step * 1000

    def _bounds(self, after: int, upto: int) -> tuple[int, int]:
        return max(after // 1000 + 1, self._first), min(upto // 1000, self._stop) + 1

    def next_after(self, ms: int) -> int | None:
        start, _ = self._bounds(ms, ms)
        tick = self._times.next(start)
        return None if tick is None or tick > self._stop else tick * 1000

    def last_upto(self, ms: int) -> int | None:
        _, end = self._bounds(ms, ms)
        tick = self._times.previous(end - 1)
        return None if tick is None or tick < self._first else tick * 1000

    def count(self, after: int, upto: int) -> tuple[int, bool]:
        return self._times.count(*self._bounds(after, upto)), True

    def ticks(self, after: int, upto: int, limit: int) -> list[int]:
        seconds = self._times.between(*self._bounds(after, upto))
        return [second * 1000 for second in islice(seconds, max(0, limit))]

    @property
    def trigger(self) -> BaseTrigger:
        return CronTrigger(
            **self.fields["fields"],
            start_date=_aware(self._start, self.zone),
            end_date=_aware(self._end, self.zone),
            timezone=self.zone,
        )


class CalendarSchedule(Schedule):
    """A chain of days from the start date on, at one time of day.

    As for APScheduler, a day whose clock leaves that time out has no tick, and of a repeated time the
    earlier one counts.
    """

    def __init__(self, fields: dict[str, Any], zone: tzinfo) -> None:
        super().__init__(fields, zone)
        self._time = time(fields["hour"], fields["minute"], fields["second"])
        self._months = fields["years"] * 12 + fields["months"]
        self._days = fields["weeks"] * 7 + fields["days"]
        if self._months < 0 or self._days < 0 or not self._months + self._days:
            raise ValueError("a calendar interval of no length")
        self._end = date.max if fields["end_date"] is None else date.fromisoformat(fields["end_date"])
        self._chain = [date.fromisoformat(fields["start_date"])]
        self._ended = self._chain[0] > self._end

    def grid(self) -> tuple[int, int]:
        seconds = self._time.hour * 3600 + self._time.minute * 60 + self._time.second
        step = offset_grid(self.zone)
        return (seconds - offset_at(self.zone, GRID_FROM)) % step * 1000, step * 1000

    def _following(self, day: date) -> date | None:
        year, month, number = day.year, day.month - 1, day.day
        try:
            while True:
                month += self._months
                year, month = year + month // 12, month % 12
                if year >= 9990:
                    return None
                try:
                    moved = date(year, month + 1, number)
                except ValueError:
                    continue  # a day that this month does not have
                return date.fromordinal(moved.toordinal() + self._days)
        except (ValueError, OverflowError):
            return None

    def _reach(self, day: date) -> None:
        """Make the chain long enough to hold a day after the given one, if there is any."""
        while not self._ended and self._chain[-1] <= day:
            following = self._following(self._chain[-1])
            if following is None or following > self._end or following.year >= 9990:
                self._ended = True
            else:
                self._chain.append(following)

    def _tick(self, day: date) -> int | None:
        local = datetime.combine(day, self._time)
        tick = to_ms(local.replace(tzinfo=self.zone))
        return tick if from_ms(tick).astimezone(self.zone).replace(tzinfo=None) == local else None

    def _in(self, days: Iterable[date]) -> Iterable[int]:
        return (tick for day in days if (tick := self._tick(day)) is not None)

    def _place(self, ms: int) -> int:
        """Return the place in the chain of the day of an instant, by the zone's calendar."""
        day = from_ms(min(max(ms, _FIRST_MS), _LAST_MS)).astimezone(self.zone).date()
        self._reach(day)
        return bisect_left(self._chain, day)

    def next_after(self, ms: int) -> int | None:
        place = self._place(ms)
        while True:
            if place >= len(self._chain):
                self._reach(self._chain[-1])
            if place >= len(self._chain) or (self._ended and place == 0 and self._chain[0] > self._end):
                return None
            tick = self._tick(self._chain[place])
            if tick is not None and tick > ms:
                return tick
            place += 1

    def last_upto(self, ms: int) -> int | None:
        if self._chain[0] > self._end:
            return None
        place = self._place(ms) + 1
        # A change of the clock takes the tick of one day at most.
        days = reversed(self._chain[max(0, place - 4) : place])
        return next((tick for tick in self._in(days) if tick <= ms), None)

    def count(self, after: int, upto: int) -> tuple[int, bool]:
        if self._chain[0] > self._end:
            return 0, True
        low, high = self._place(after), self._place(upto) + 1
        return sum(after < tick <= upto for tick in self._in(self._chain[low:high])), True

    @property
    def trigger(self) -> BaseTrigger:
        from apscheduler.triggers.calendarinterval import (
            CalendarIntervalTrigger,
        )

        names = ("years", "months", "weeks", "days", "hour", "minute", "second", "start_date", "end_date")
        return CalendarIntervalTrigger(**{name: self.fields[name] for name in names}, timezone=self.zone)
