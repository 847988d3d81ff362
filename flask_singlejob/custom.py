"""The schedule of a trigger class of somebody else's making, for jobs that are defined in code.

Its ticks must depend on nothing but the times it is asked with: not on the clock, not on chance, not on
what it was asked before. Two hosts would run different ticks otherwise; nothing here can tell.
"""

from __future__ import annotations

import copy
from datetime import datetime, tzinfo
from typing import Any

from apscheduler.triggers.base import BaseTrigger

from .errors import JobDefinitionError
from .records import from_ms, to_ms
from .schedules import Schedule

__all__ = ["CustomSchedule"]

# How often a trigger that answers with a past time is asked for the one after it.
_ASK_LIMIT = 1000
_COUNT_LIMIT = 1000
_LOOK_BACK_MS = 200 * 366 * 86_400_000


class CustomSchedule(Schedule):
    """Asks the trigger object itself, each time without a previous fire time."""

    def __init__(self, fields: dict[str, Any], zone: tzinfo, custom: BaseTrigger) -> None:
        super().__init__(fields, zone)
        self._given = custom
        # Jitter is added after the claim, never to the tick.
        self._asked = copy.copy(custom)
        if getattr(custom, "jitter", None):
            self._asked.jitter = None

    def next_after(self, ms: int) -> int | None:
        now = from_ms(ms + 1).astimezone(self.zone)
        previous: datetime | None = None
        for _ in range(_ASK_LIMIT):
            try:
                answer = self._asked.get_next_fire_time(previous, now)
            except Exception as error:
                raise JobDefinitionError(f"the trigger {self.fields['ref']} failed: {error!r}") from error
            if answer is None:
                return None
            if not isinstance(answer, datetime) or answer.tzinfo is None:
                raise JobDefinitionError(
                    f"the trigger {self.fields['ref']} gave {answer!r}: give an aware datetime or None"
                )
            tick = to_ms(answer)
            if tick > ms:
                return tick
            if previous is not None and answer <= previous:
                return None
            previous = answer
        return None

    def last_upto(self, ms: int) -> int | None:
        # "Is there a tick after x, up to ms?" is true up to the last tick and false from there on.
        reach = 60_000
        while (tick := self.next_after(ms - reach)) is None or tick > ms:
            reach *= 4
            if reach > _LOOK_BACK_MS:
                return None
        known, beyond = tick, ms
        while beyond > known:
            middle = (known + beyond) // 2
            tick = self.next_after(middle)
            if tick is not None and tick <= ms:
                known = tick
            else:
                beyond = middle
        return known

    def count(self, after: int, upto: int) -> tuple[int, bool]:
        found = self.ticks(after, upto, _COUNT_LIMIT)
        if len(found) < _COUNT_LIMIT:
            return len(found), True
        return max(_COUNT_LIMIT, round(_COUNT_LIMIT * (upto - after) / (found[-1] - after))), False

    @property
    def trigger(self) -> BaseTrigger:
        return self._given
