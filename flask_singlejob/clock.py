"""Time as this process may use it: a clock that counts sleep, and an estimate of the store's clock.

Owns no policy. The host's wall clock is only ever shown, never decided by: a step of it by an hour
moves no tick. The estimate is good to half a round trip; the store has the last word in each claim.
"""

from __future__ import annotations

import threading
import time

__all__ = ["StoreClock", "steady_seconds"]

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def steady_seconds() -> float:
    """Return seconds of a clock that never steps and goes on while the machine sleeps.

    Linux has CLOCK_BOOTTIME for it (see clock_gettime(2)); elsewhere ``time.monotonic`` has to do.
    """
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    return time.monotonic()


class StoreClock:
    """What the store's clock says now, carried on between answers by :func:`steady_seconds`.

    Each answer bounds the truth: the store read its clock after we sent and before we received. The
    estimate moves only when it leaves those bounds, so a slow answer makes it no worse.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base: float | None = None  # store's ms minus steady ms
        self._low: float = 0.0  # the same, at its least
        self._offset_ms: float | None = None
        self.stepped_ms = 0.0

    @property
    def known(self) -> bool:
        """True once the store has told its time."""
        return self._base is not None

    def sync(self, store_ms: int, sent: float, received: float) -> float:
        """Take in one answer.

        :param store_ms: the store's clock in the answer, UTC milliseconds.
        :param sent: :func:`steady_seconds` before the request went out.
        :param received: :func:`steady_seconds` after the answer came.
        :returns: by how many milliseconds the estimate was moved.
        """
        low = store_ms - received * 1000
        high = store_ms + 1 - sent * 1000
        wall = time.time() * 1000
        with self._lock:
            before = self._base
            if before is None:
                self._base = (low + high) / 2
                moved = 0.0
            else:
                self._base = min(max(before, low), high)
                moved = self._base - before
            self._low = low
            self._offset_ms = wall - (self._base + steady_seconds() * 1000)
            self.stepped_ms = moved
        return moved

    def now_ms(self) -> int:
        """Return the store's clock as estimated now, UTC milliseconds.

        :raises RuntimeError: before the first answer.
        """
        base = self._base
        if base is None:
            raise RuntimeError("the store has not told its time yet")
        return int(base + steady_seconds() * 1000)

    def seconds_until(self, store_ms: int) -> float:
        """Return the seconds until the store's clock is estimated to reach an instant, 0.0 when it has.

        :param store_ms: UTC milliseconds.
        :raises RuntimeError: before the first answer.
        """
        base = self._base
        if base is None:
            raise RuntimeError("the store has not told its time yet")
        return max(0.0, (store_ms - base) / 1000 - steady_seconds())

    def past_ms(self) -> int:
        """Return an instant that the store's clock has reached for sure, UTC milliseconds.

        :raises RuntimeError: before the first answer.
        """
        return min(self.now_ms(), int(self._low + steady_seconds() * 1000))

    @property
    def offset_seconds(self) -> float | None:
        """How far this host's wall clock was ahead of the store's at the last answer, seconds."""
        offset = self._offset_ms
        return None if offset is None else offset / 1000
