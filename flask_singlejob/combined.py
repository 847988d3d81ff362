"""Schedules that combine others: the ticks of any part, or those that all parts share."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger

from .schedules import COUNT_LIMIT, IntervalSchedule, Schedule

__all__ = ["AndSchedule", "OrSchedule"]

# A combination whose parts have not agreed after so many candidates counts as ended.
_SEARCH_LIMIT = 2_000


class OrSchedule(Schedule):
    """The ticks of any of its parts, each part keeping its own anchor."""

    def __init__(self, fields: dict[str, Any], zone: tzinfo, parts: list[Schedule]) -> None:
        super().__init__(fields, zone)
        self.parts = parts

    def next_after(self, ms: int) -> int | None:
        ticks = [tick for part in self.parts if (tick := part.next_after(ms)) is not None]
        return min(ticks, default=None)

    def last_upto(self, ms: int) -> int | None:
        ticks = [tick for part in self.parts if (tick := part.last_upto(ms)) is not None]
        return max(ticks, default=None)

    def count(self, after: int, upto: int) -> tuple[int, bool]:
        counts = [part.count(after, upto) for part in self.parts]
        total = sum(count for count, _ in counts)
        if sum(count > 0 for count, _ in counts) <= 1:
            return total, all(exact for _, exact in counts)
        if total > COUNT_LIMIT:
            return total, False  # at most that many: ticks that parts share count for each
        return len({tick for part in self.parts for tick in part.ticks(after, upto, COUNT_LIMIT)}), True

    def ticks(self, after: int, upto: int, limit: int) -> list[int]:
        found = {tick for part in self.parts for tick in part.ticks(after, upto, limit)}
        return sorted(found)[: max(0, limit)]

    @property
    def trigger(self) -> BaseTrigger:
        return OrTrigger([part.trigger for part in self.parts])


class AndSchedule(Schedule):
    """The ticks that all parts share.

    Intervals are matched by arithmetic, with one another and with the times of day of other parts. The search
    for a day on which all agree ends after a bounded number of candidates: parts that meet more rarely than
    that count as ended.
    """

    def __init__(self, fields: dict[str, Any], zone: tzinfo, parts: list[Schedule]) -> None:
        super().__init__(fields, zone)
        self.parts = parts
        self._sought = _simplified(parts)
        # Where a search has ended in vain: a trigger without ticks must not cost a search at each look.
        self._none_after = self._none_upto = (0, 0)

    def next_after(self, ms: int) -> int | None:
        if self._sought is None:
            return None
        start = ms
        for _ in range(_SEARCH_LIMIT):
            if self._none_after[0] <= ms < self._none_after[1]:
                return None
            ticks = []
            for part in self._sought:
                tick = part.next_after(ms)
                if tick is None:
                    return None
                ticks.append(tick)
                ms = max(ms, tick - 1)
            if min(ticks) == max(ticks):
                return ticks[0]
        self._none_after = (start, ms)
        return None

    def last_upto(self, ms: int) -> int | None:
        if self._sought is None:
            return None
        start = ms
        for _ in range(_SEARCH_LIMIT):
            if self._none_upto[0] < ms <= self._none_upto[1]:
                return None
            ticks = []
            for part in self._sought:
                tick = part.last_upto(ms)
                if tick is None:
                    return None
                ticks.append(tick)
                ms = min(ms, tick)
            if min(ticks) == max(ticks):
                return ticks[0]
        self._none_upto = (ms, start)
        return None

    def count(self, after: int, upto: int) -> tuple[int, bool]:
        if self._sought is None:
            return 0, True
        rarest = min(self._sought, key=lambda part: part.count(after, upto)[0])
        others = [part for part in self._sought if part is not rarest]
        ticks = rarest.ticks(after, upto, COUNT_LIMIT)
        shared = sum(all(part.last_upto(tick) == tick for part in others) for tick in ticks)
        total, exact = rarest.count(after, upto)
        if total <= len(ticks):
            return shared, exact
        return max(shared, round(total * shared / len(ticks))), not others and exact

    @property
    def trigger(self) -> BaseTrigger:
        return AndTrigger([part.trigger for part in self.parts])


def _simplified(parts: list[Schedule]) -> list[Schedule] | None:
    """Return parts that share the same ticks, all intervals being one; None when they share none."""
    intervals = [part for part in parts if isinstance(part, IntervalSchedule)]
    others = [part for part in parts if not isinstance(part, IntervalSchedule)]
    if not intervals:
        return others
    both = max(intervals, key=lambda interval: interval.anchor)
    for part in parts:
        grid = part.grid()
        found = both if grid is None else both.on_grid(*grid)
        if found is None:
            return None
        both = found
    both.stop = min(interval.stop for interval in intervals)
    return [*others, both]
