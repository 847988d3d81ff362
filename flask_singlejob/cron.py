"""The ticks of a cron expression: which local times it names, and when a zone's clock shows them.

APScheduler compiles and checks the expressions; its search for the next time is not used, since it leaves
days out where the clocks change (a daily job at midnight, the day after). Here each local time is found
without a zone and then placed in UTC:

* a local time that occurs twice (the repeated hour) is two ticks, as for APScheduler;
* a local time that is left out (the missing hour) is one tick, moved on by the length of the gap (02:30 runs
  when the clock shows 03:30), unless the job runs in every hour anyway or has a tick there already.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone, tzinfo
from functools import lru_cache
from heapq import merge
from itertools import islice, product
from math import gcd
from typing import Any

from apscheduler.triggers.cron import CronTrigger

from .zones import Segment, offset_at, offset_grid, segment_at

__all__ = ["GRID_FROM", "CronTimes", "LocalTimes"]

_DAY = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST_YEAR, _LAST_YEAR = 1970, 9990
# The calendar repeats itself after so many years, days of the week included.
_CYCLE = 400
_MONTHS_KEPT = 5000
#: A UTC second (1980) from which on every zone's offset lies on its grid.
GRID_FROM = 315_532_800


@lru_cache(maxsize=4096)
def _values(name: str, expression: str) -> tuple[int, ...]:
    """Return the values that one field's expression names; thousands of jobs share a few dozen of these."""
    trigger = CronTrigger(**{name: expression}, timezone=timezone.utc)
    field = next(field for field in trigger.fields if field.name == name)
    near = datetime(2000, 1, 1)
    least, most = {"month": (1, 12), "hour": (0, 23)}.get(name, (0, 59))
    return tuple(
        value
        for value in range(least, most + 1)
        if field.get_next_value(near.replace(**{name: value})) == value  # type: ignore[arg-type]
    )


class LocalTimes:
    """The local times that an expression names, as seconds since 1970 of a clock without zone.

    :param expressions: cron fields by name, as APScheduler takes them.
    """

    def __init__(self, expressions: dict[str, Any]) -> None:
        self._fields = {
            field.name: field for field in CronTrigger(**expressions, timezone=timezone.utc).fields
        }
        hours, minutes, seconds = (
            _values(name, str(self._fields[name])) for name in ("hour", "minute", "second")
        )
        self.every_hour = len(hours) == 24
        self._times = _seconds_of_day(hours, minutes, seconds)
        self._months = _values("month", str(self._fields["month"]))
        self._day_fields = [
            field for name in ("day", "week", "day_of_week") if str(field := self._fields[name]) != "*"
        ]
        self._kept: dict[tuple[int, int], Sequence[int]] = {}

    def _names(self, name: str, near: Any, value: int) -> bool:
        field = self._fields[name]
        return bool(field.get_next_value(near.replace(**{name: value})) == value)

    def _days(self, year: int, month: int) -> Sequence[int]:
        """Return the days, since 1970, that are named in a month."""
        days = self._kept.get((year, month))
        if days is None:
            if len(self._kept) > _MONTHS_KEPT:
                self._kept.clear()
            first = date(year, month, 1)
            start = first.toordinal() - _EPOCH_DAY
            following = date(year + month // 12, month % 12 + 1, 1).toordinal() - _EPOCH_DAY
            if month not in self._months or not self._names("year", first, year):
                days = ()
            elif not self._day_fields:
                days = range(start, following)
            else:
                days = tuple(day for day in range(start, following) if self._has_day(day))
            self._kept[year, month] = days
        return days

    def _has_day(self, day: int) -> bool:
        moment = date.fromordinal(day + _EPOCH_DAY)
        return all(field.get_next_value(moment) == field.get_value(moment) for field in self._day_fields)

    def _months_from(self, day: int, step: int) -> Iterator[tuple[int, int]]:
        """Yield the months that may hold a named day, from a day's own on, forwards or backwards."""
        near = date.fromordinal(min(max(day + _EPOCH_DAY, 1), date.max.toordinal()))
        years = 0
        for year in range(near.year, _LAST_YEAR + 1) if step > 0 else range(near.year, _FIRST_YEAR - 1, -1):
            if year < _FIRST_YEAR or not self._names("year", date(2000, 1, 1), year):
                continue
            years += 1
            if years > _CYCLE:
                return
            for month in self._months if step > 0 else reversed(self._months):
                if year != near.year or (month - near.month) * step >= 0:
                    yield year, month

    def grid(self) -> tuple[int, int]:
        """Return (offset, step), in seconds of the day, of a grid that every named time lies on."""
        first = self._times[0]
        return first, gcd(_DAY, *(time - first for time in self._times))

    def next(self, local: int) -> int | None:
        """Return the first named time at or after a local second."""
        day, second = divmod(local, _DAY)
        place = bisect_left(self._times, second)
        today = place < len(self._times)
        for year, month in self._months_from(day, 1):
            days = self._days(year, month)
            index = bisect_left(days, day if today else day + 1)
            if index < len(days):
                found = days[index]
                return found * _DAY + (self._times[place] if found == day else self._times[0])
        return None

    def previous(self, local: int) -> int | None:
        """Return the last named time at or before a local second."""
        day, second = divmod(local, _DAY)
        place = bisect_right(self._times, second)
        for year, month in self._months_from(day, -1):
            days = self._days(year, month)
            index = bisect_right(days, day if place else day - 1)
            if index:
                found = days[index - 1]
                return found * _DAY + (self._times[place - 1] if found == day else self._times[-1])
        return None

    def count(self, start: int, end: int) -> int:
        """Return how many named times lie in ``start <= local < end``."""
        if start >= end:
            return 0
        (first, before), (last, upto) = divmod(start, _DAY), divmod(end, _DAY)
        whole = 0
        for year, month in self._months_from(first, 1):
            days = self._days(year, month)
            if days and days[0] > last:
                break
            whole += bisect_left(days, last) - bisect_left(days, first)
        total = whole * len(self._times)
        if self._named(first):
            total -= bisect_left(self._times, before)
        if self._named(last):
            total += bisect_left(self._times, upto)
        return total

    def _named(self, day: int) -> bool:
        moment = date.fromordinal(day + _EPOCH_DAY)
        if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
            return False
        days = self._days(moment.year, moment.month)
        index = bisect_left(days, day)
        return index < len(days) and days[index] == day

    def between(self, start: int, end: int) -> Iterator[int]:
        """Yield the named times in ``start <= local < end``, earliest first."""
        found = self.next(start)
        while found is not None and found < end:
            day, second = divmod(found, _DAY)
            for time in islice(self._times, bisect_left(self._times, second), None):
                if day * _DAY + time >= end:
                    return
                yield day * _DAY + time
            found = self.next((day + 1) * _DAY)


@lru_cache(maxsize=64)
def _seconds_of_day(
    hours: tuple[int, ...], minutes: tuple[int, ...], seconds: tuple[int, ...]
) -> Sequence[int]:
    if len(hours) * len(minutes) * len(seconds) == _DAY:
        return range(_DAY)
    return array("l", (h * 3600 + m * 60 + s for h, m, s in product(hours, minutes, seconds)))


class CronTimes:
    """The ticks of an expression in a zone, as UTC seconds.

    :param expressions: cron fields by name.
    :param zone: the zone whose clock they are read on.
    """

    def __init__(self, expressions: dict[str, Any], zone: tzinfo) -> None:
        self._local = LocalTimes(expressions)
        self._zone = zone
        self._near: Segment | None = None
        self._moved_kept: dict[int, tuple[int, ...]] = {}

    def grid(self) -> tuple[int, int]:
        """Return (offset, step), in seconds, of a grid that every tick since 1973 lies on."""
        offset, step = self._local.grid()
        step = gcd(step, offset_grid(self._zone))
        return (offset - offset_at(self._zone, GRID_FROM)) % step, step

    def _segment(self, second: int) -> Segment:
        near = self._near
        if near is None or not near.start <= second < near.end:
            near = self._near = segment_at(self._zone, second)
        return near

    def _moved(self, segment: Segment) -> tuple[int, ...]:
        """Return the ticks whose local times were left out when the segment began."""
        if segment.offset <= segment.before or self._local.every_hour:
            return ()
        moved = self._moved_kept.get(segment.start)
        if moved is None:
            gap = segment.offset - segment.before
            left_out = self._local.between(segment.start + segment.before, segment.start + segment.offset)
            moved = tuple(
                local - segment.before for local in left_out if self._local.next(local + gap) != local + gap
            )
            self._moved_kept[segment.start] = moved
        return moved

    def next(self, second: int) -> int | None:
        """Return the first tick at or after a UTC second."""
        while second < segment_limit()[1]:
            segment = self._segment(second)
            # No clock is ever two days off, so nothing is named by any earlier time: a rare job is found
            # without a walk through every change of offset before it.
            local = self._local.next(second + segment.offset - 2 * _DAY)
            if local is None:
                return None
            if local - _DAY > second:
                second = local - _DAY
                continue
            local = self._local.next(second + segment.offset)
            found = [] if local is None else [local - segment.offset]
            moved = self._moved(segment)
            found += moved[bisect_left(moved, second) :][:1]
            if found and min(found) < segment.end:
                return min(found)
            second = segment.end
        return None

    def previous(self, second: int) -> int | None:
        """Return the last tick at or before a UTC second."""
        while second >= segment_limit()[0]:
            segment = self._segment(second)
            local = self._local.previous(second + segment.offset + 2 * _DAY)
            if local is None:
                return None
            if local + _DAY < second:
                second = local + _DAY
                continue
            local = self._local.previous(second + segment.offset)
            found = [] if local is None else [local - segment.offset]
            moved = self._moved(segment)
            found += moved[: bisect_right(moved, second)][-1:]
            if found and max(found) >= segment.start:
                return max(found)
            second = segment.start - 1
        return None

    def count(self, start: int, end: int) -> int:
        """Return how many ticks lie in ``start <= second < end``."""
        total = 0
        while start < end:
            segment = self._segment(start)
            stop = min(end, segment.end)
            total += self._local.count(start + segment.offset, stop + segment.offset)
            moved = self._moved(segment)
            total += bisect_left(moved, stop) - bisect_left(moved, start)
            start = stop
        return total

    def between(self, start: int, end: int) -> Iterator[int]:
        """Yield the ticks in ``start <= second < end``, earliest first."""
        while start < end:
            segment = self._segment(start)
            stop = min(end, segment.end)
            offset = segment.offset
            moved = self._moved(segment)
            named = self._local.between(start + offset, stop + offset)
            yield from merge(
                (local - offset for local in named),
                moved[bisect_left(moved, start) : bisect_left(moved, stop)],
            )
            start = stop


def segment_limit() -> tuple[int, int]:
    """Return the UTC seconds between which ticks are looked for."""
    return (_FIRST_YEAR - 1970 - 1) * 366 * _DAY, (date(_LAST_YEAR, 1, 1).toordinal() - _EPOCH_DAY) * _DAY
