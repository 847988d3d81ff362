"""For tests of applications and of stores: a clock that stands still, due runs, and the store contract.

Imports no test framework: :class:`StoreContract` is plain methods that pytest collects in a subclass.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from .contract.claims import ClaimContract
from .contract.keeping import KeepingContract
from .contract.races import RaceContract
from .records import Run, from_ms, to_ms

__all__ = ["FrozenClock", "StoreContract", "run_due"]


class FrozenClock:
    """A clock that moves only when it is told to; called, it gives UTC milliseconds.

    :param start: where it stands (aware); None: now.
    :raises ValueError: if ``start`` has no time zone.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._ms = to_ms(datetime.now(timezone.utc) if start is None else start)

    def __call__(self) -> int:
        return self._ms

    @property
    def now(self) -> datetime:
        """Where it stands: aware, UTC."""
        return from_ms(self._ms)

    def advance(self, seconds: float | timedelta) -> None:
        """Move it on, or back when negative.

        :param seconds: seconds, or a ``timedelta``.
        """
        step = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        self._ms += round(step / timedelta(milliseconds=1))

    def move_to(self, moment: datetime) -> None:
        """Set it to a moment (aware).

        :raises ValueError: if it has no time zone.
        """
        self._ms = to_ms(moment)


class StoreContract(ClaimContract, KeepingContract, RaceContract):
    """Every promise of :class:`~flask_singlejob.stores.base.Store` as a test, for any store.

    Subclass it under a name that your test runner collects, and say how a store is made::

        class TestMyStore(StoreContract):
            def make_store(self, cluster):
                return MyStore("…", cluster=cluster)

    Set ``shared_by_processes`` to False for a store that lives in one process; override ``pass_time``
    for one whose clock a test moves.
    """


def run_due(app: Any, until: datetime | timedelta | float) -> list[Run]:
    """Run, here and now and in their order, every tick of an app's jobs that falls due up to a moment.

    For tests: no thread, no election, no waiting. With a :class:`FrozenClock` as the store's clock
    (``SINGLEJOB_STORE_OPTIONS = {"clock": clock}``) the clock is moved from tick to tick and ends at
    ``until``; without one, only what is due by now can be run. Ticks are claimed as an owner claims them.
    The first call for an app pins its definitions: an interval's first tick is one interval later.

    :param app: a Flask app with SingleJob.
    :param until: an aware datetime, or how far on from the store's now (seconds or ``timedelta``).
    :returns: the ended runs, failed ones among them, in the order in which they were run.
    :raises ValueError: for a naive datetime, or a moment ahead of a clock that cannot be moved.
    """
    # An app's tests have Flask; a store's may not.
    from .testing_runs import run_all_due

    return run_all_due(app, until)
