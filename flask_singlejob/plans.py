"""What the owner of a term knows of each job, and what is to be done next for it.

Owns the one lock over it. Every change that may make something due marks the job; the planner's loop looks
at what is marked. Calls no store.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .catalog import EffectiveJob
from .clock import steady_seconds
from .records import ClaimKey, ClaimRow, RunStatus

__all__ = ["Board", "Plan", "Todo"]

#: The store's clock is taken to have stepped, not drifted, when it moved by more milliseconds.
CLOCK_MOVED_MS = 50
#: Claims whose answer was lost are remembered, to be known again, up to so many.
DOUBTS = 1000


@dataclass
class Plan:
    """What the owner of this term knows of one job.

    :ivar local_runs: the ids of its runs that go on in this process.
    :ivar ended_run: the last of them that ended: a poll may still show it.
    :ivar held_from: since when the job has been held by what settles no ticks, the store's milliseconds.
    :ivar adopt: a row that is held by a claim of this process whose answer was lost.
    """

    job: EffectiveJob
    key: ClaimKey
    row: ClaimRow | None = None
    attempting: bool = False
    local_runs: set[str] = field(default_factory=set)
    retry_at: float = 0.0
    failures: int = 0
    held_from: int | None = None
    full_since: int | None = None
    paused_recorded: int = 0
    looked: int | None = None
    held_slots: set[int] = field(default_factory=set)
    dropped: bool = False
    seen_claimed: bool = False
    ended_run: str | None = None
    adopt: ClaimRow | None = None


@dataclass(frozen=True)
class Todo:
    """One thing to do for a plan: on a lane (a claim) or as an errand (a write that starts no run).

    :ivar late: owed for long: such runs are started one after the other.
    :ivar ahead: decided a moment before the tick, to be claimed at it.
    """

    what: str
    tick: int = 0
    stood_for: int = 1
    resolved: int = 0
    first: int = 0
    count: int = 0
    status: RunStatus = RunStatus.MISSED
    reason: str = ""
    detail: str | None = None
    late: bool = False
    ahead: bool = False


class Board:
    """The plans of a term, shared by the loop that decides and the threads that do.

    :param wake: makes the loop look now.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.plans: dict[str, Plan] = {}
        self.dirty: set[str] = set()
        self.wake_at: dict[str, float] = {}
        self.requests: dict[str, tuple[str, int]] = {}
        self.stopped = threading.Event()
        self.wake = wake
        self._doubts: dict[str, int] = {}

    def free(self, plans: Sequence[Plan], *, again: bool = True) -> None:
        """End an attempt.

        :param again: look at the jobs again.
        """
        with self.lock:
            for plan in plans:
                plan.attempting = False
                if again and self.plans.get(plan.job.id) is plan:
                    self.dirty.add(plan.job.id)

    @staticmethod
    def back_off(plan: Plan) -> None:
        """Try again after a pause that grows with each failure, on what the store holds by then."""
        plan.failures += 1
        pause = min(2.0, 0.1 * 2 ** min(plan.failures, 6)) * random.uniform(0.75, 1.25)
        plan.retry_at = steady_seconds() + pause
        plan.row = None

    def clock_moved(self, moved_ms: float) -> None:
        """Look at every job again when the store's clock stepped."""
        if abs(moved_ms) > CLOCK_MOVED_MS:
            with self.lock:
                self.dirty |= self.plans.keys()
            self.wake()

    def doubt(self, claim: str, resolved: int) -> None:
        """Remember a claim of which the store did not say whether it was won.

        :param resolved: the last settled tick before it.
        """
        with self.lock:
            self._doubts[claim] = resolved
            while len(self._doubts) > DOUBTS:
                del self._doubts[next(iter(self._doubts))]

    def doubts(self, claim: str | None) -> bool:
        """Tell whether a claim is one whose answer was lost."""
        return claim in self._doubts

    def settle_doubt(self, claim: str) -> int | None:
        """Forget a claim whose answer was lost.

        :returns: the last settled tick before it.
        """
        with self.lock:
            return self._doubts.pop(claim, None)

    def drop_request(self, request_id: str) -> None:
        """Forget a request to run a job by hand that somebody took."""
        with self.lock:
            self.requests.pop(request_id, None)
