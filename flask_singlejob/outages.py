"""When the store was away, by its own clock as estimated here; each outage is logged once.

Decides nothing but the reason of a missed tick.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .clock import StoreClock, steady_seconds
from .errors import StoreError

__all__ = ["Outages"]

logger = logging.getLogger(__name__)

#: Outages are remembered, to tell why a tick was missed, up to so many.
OUTAGES = 50


class Outages:
    """When the store was away, by its own clock as estimated here; logs each outage once.

    A store that answers and takes no writes is away as well: once a write has failed, only a write ends the outage.
    """

    def __init__(self, clock: StoreClock, describe: Callable[[], str]) -> None:
        self._clock = clock
        self._describe = describe
        self._lock = threading.Lock()
        self._began: int | None = None
        self._began_steady = 0.0
        self._past: list[tuple[int, int]] = []
        self._refused = False
        self.reason: str | None = None

    @property
    def refused(self) -> bool:
        """True while the last write has failed."""
        return self._refused

    @property
    def away_seconds(self) -> float | None:
        """For how long the store has been away, seconds, or None."""
        return None if self.reason is None else steady_seconds() - self._began_steady

    def note(self, error: StoreError | None, *, wrote: bool = True) -> None:
        """Take in a failed call, or (None) a good one.

        :param wrote: it was to write something.
        """
        if error is None and self.reason is None:
            return
        with self._lock:
            now = self._clock.now_ms() if self._clock.known else None
            if error is not None:
                self._refused = self._refused or wrote
                first = self.reason is None
                self.reason = str(error)
                if first:
                    self._began = now
                    self._began_steady = steady_seconds()
                    logger.warning("the store is away, ticks wait for it within their grace time: %s", error)
                return
            if self.reason is None or (self._refused and not wrote):
                return
            self._refused = False
            lasted = steady_seconds() - self._began_steady
            self.reason = None
            if now is not None:
                # Away from the start: what its clock showed then is only known now.
                began = now - int(lasted * 1000) if self._began is None else self._began
                self._past = [*self._past[-OUTAGES:], (began, now)]
            self._began = None
        logger.warning("the store %s is back after %.1f s", self._describe(), lasted)

    def covers(self, since: int, until: int) -> bool:
        """Tell whether the store was away at some time between two instants of its clock."""
        with self._lock:
            spans = list(self._past)
            if self._began is not None:
                spans.append((self._began, until))
        return any(began <= until and ended >= since for began, ended in spans)
