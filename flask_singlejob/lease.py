"""A held claim in this process: renewed, extended, lost or ended; and the keeper that does the renewing.

A lease is judged here on a clock that counts sleep, from before the request was sent, so a frozen
process knows at once that it is late. It cannot stop a thread: code that must not go on asks
:meth:`Lease.check`, and outside resources compare :attr:`Lease.token`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .clock import steady_seconds
from .errors import LeaseLostError, StoreError
from .records import ClaimKey, Run
from .stores.base import Store

__all__ = ["Keeper", "Lease"]

logger = logging.getLogger(__name__)

#: Progress of a running job is written at most once in so many seconds.
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Ending:
    """What the store is to be told when a lease is released: see ``Store.release``."""

    run: Run | None
    resolved: int | None
    seen_resolved: int | None
    skipped: Run | None
    done: bool


class Lease:
    """A claim that this process holds until it ends, is lost or is released.

    :ivar token: the fencing number: greater than that of every earlier holder of the same name.
    :ivar id: the random id of the claim (for a job, of its run).
    """

    def __init__(
        self,
        key: ClaimKey,
        claim_id: str,
        token: int,
        *,
        keeper: Keeper,
        lease_seconds: float,
        sent: float,
        max_runtime: float | None = None,
        on_lost: Callable[[Lease], None] | None = None,
        on_overran: Callable[[Lease], None] | None = None,
    ) -> None:
        self.key = key
        self.id = claim_id
        self.token = token
        self.lease_seconds = lease_seconds
        self._keeper = keeper
        self._deadline = sent + lease_seconds
        self._renew_at = sent + lease_seconds / 3
        self._overrun_at = None if max_runtime is None else sent + max_runtime
        self._on_lost = on_lost
        self._on_overran = on_overran
        self._lost_reason: str | None = None
        self._ended = False
        self._told = False
        self._finish: _Ending | None = None
        self._finished = threading.Event()
        self._finish_result = False
        self._progress: Mapping[str, Any] | None = None
        self._progress_at = 0.0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Lease {self.key.kind} {self.key.name!r} token={self.token}{' lost' if self.lost else ''}>"

    @property
    def name(self) -> str:
        """The name of the lock, job or task that is held."""
        return self.key.name

    @property
    def lost(self) -> bool:
        """True once the lease has ended without being released: somebody else may hold the name."""
        if self._lost_reason is not None:
            return True
        return not self._ended and steady_seconds() >= self._deadline

    def check(self) -> None:
        """Raise if the lease is lost. Local: no round trip.

        :raises LeaseLostError: when it is.
        """
        if self.lost:
            reason = self._lost_reason or "it could not be renewed in time"
            raise LeaseLostError(
                f"the lease on {self.key.kind} {self.key.name!r} (token {self.token}) is lost: {reason}"
            )

    def extend(self, seconds: float | timedelta) -> None:
        """Make the lease hold at least so many seconds from now; a renewal never shortens it.

        :param seconds: a positive number, or a ``timedelta``.
        :raises ValueError: if it is not.
        :raises LeaseLostError: when the lease is lost already.
        :raises StoreError: when the store does not answer; the lease holds as long as it did before.
        """
        given = seconds
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
            raise ValueError(f"extend() takes a positive number of seconds or a timedelta, not {given!r}")
        self.check()
        if not self._keeper.renew(self, seconds):
            self.check()

    def report(self, progress: Mapping[str, Any]) -> None:
        """Hand progress over to be written with the next renewal, at most once a second."""
        self._progress = progress
        self._keeper.nudge()

    # -- used by the keeper and by whoever ends the lease ---------------------------------------

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._ended or self._told:
                return
            self._lost_reason = reason
            self._told = True
        if self._on_lost is not None:
            _aside(self._on_lost, self)


def _aside(callback: Callable[[Lease], None], lease: Lease) -> None:
    """Call what may take its time off the thread that renews the other leases."""

    def body() -> None:
        try:
            callback(lease)
        except Exception:
            logger.exception("telling of the lease on %s %r failed", lease.key.kind, lease.key.name)

    threading.Thread(target=body, name="singlejob-aside", daemon=True).start()


class Keeper:
    """Renews every lease of this process at a third of its time, and ends those that are finished.

    One daemon thread, started with the first lease and gone when there has been none for a while. If it
    died, each lease would end by its own deadline: :meth:`Lease.check` needs no thread.
    """

    def __init__(self, store: Callable[[], Store], *, idle_seconds: float = 5.0) -> None:
        self._store = store
        self._idle_seconds = idle_seconds
        self._leases: dict[str, Lease] = {}
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next_look = 0.0
        self.failed_renewals = 0

    @property
    def held(self) -> list[Lease]:
        """The leases that are held now."""
        with self._condition:
            return list(self._leases.values())

    def hold(
        self,
        key: ClaimKey,
        claim_id: str,
        token: int,
        *,
        lease_seconds: float,
        sent: float,
        max_runtime: float | None = None,
        on_lost: Callable[[Lease], None] | None = None,
        on_overran: Callable[[Lease], None] | None = None,
    ) -> Lease:
        """Take over a claim that was just won and renew it until it is finished.

        :param sent: ``steady_seconds()`` from before the claim was sent.
        """
        lease = Lease(
            key,
            claim_id,
            token,
            keeper=self,
            lease_seconds=lease_seconds,
            sent=sent,
            max_runtime=max_runtime,
            on_lost=on_lost,
            on_overran=on_overran,
        )
        first = min(lease._renew_at, lease._overrun_at or lease._renew_at)
        with self._condition:
            self._leases[lease.id] = lease
            self._start()
            if first < self._next_look:
                self._condition.notify()
        return lease

    def finish(
        self,
        lease: Lease,
        *,
        run: Run | None = None,
        resolved: int | None = None,
        seen_resolved: int | None = None,
        skipped: Run | None = None,
        done: bool = False,
        wait_seconds: float = 0.0,
    ) -> bool:
        """Release the lease, with what the store is to keep of it; tried again while the store is away.

        :param wait_seconds: how long to wait for the store at most when the first try fails; the
            keeper goes on trying in the background until the lease ends.
        :returns: True when the store took it; False when the lease was lost or it is still being tried.
        """
        ending = _Ending(run, resolved, seen_resolved, skipped, done)
        if lease._lost_reason is not None:
            self._drop(lease)
            return False
        try:
            released = self._release(lease, ending)
        except StoreError as error:
            logger.warning("%s %r could not be released yet: %s", lease.key.kind, lease.key.name, error)
            with self._condition:
                lease._finish = ending
                self._start()
                self._condition.notify()
            if wait_seconds:
                lease._finished.wait(wait_seconds)
            return lease._finish_result
        self._end(lease, released)
        return released

    def drop(self, lease: Lease, reason: str) -> None:
        """Stop renewing a lease that is of no more use here; a release that is still being tried goes on."""
        lease._lost_reason = lease._lost_reason or reason
        lease._told = True
        if lease._finish is None:
            self._drop(lease)

    def renew(self, lease: Lease, seconds: float | None = None) -> bool:
        """Renew one lease now.

        :raises StoreError: when the store does not answer.
        """
        length = lease.lease_seconds if seconds is None else seconds
        sent = steady_seconds()
        progress, lease._progress = lease._progress, None
        try:
            good_ms = self._store().renew(
                lease.key, lease.id, lease.token, int(length * 1000), progress=progress
            )
        except StoreError:
            lease._progress = lease._progress or progress
            raise
        if progress is not None:
            lease._progress_at = sent
        if good_ms is None:
            lease._lose("another process took it over, or its time in the store was up")
            self._drop(lease)
            return False
        deadline = sent + good_ms / 1000
        with lease._lock:
            lease._deadline = max(lease._deadline, deadline)
            lease._renew_at = sent + lease.lease_seconds / 3
        return True

    def nudge(self) -> None:
        """Make the keeper look at its leases now."""
        with self._condition:
            self._condition.notify()

    def after_fork(self) -> None:
        """Forget, in a forked child, the leases of the parent: they are not this process's."""
        for lease in list(self._leases.values()):
            lease._lost_reason = "this process is a fork of the one that held it"
            lease._told = True
        self._leases = {}
        self._condition = threading.Condition()
        self._thread = None

    # -- the thread -----------------------------------------------------------------------------

    def _release(self, lease: Lease, ending: _Ending) -> bool:
        return self._store().release(
            lease.key,
            lease.id,
            lease.token,
            run=ending.run,
            resolved=ending.resolved,
            seen_resolved=ending.seen_resolved,
            skipped=ending.skipped,
            done=ending.done,
        )

    def _was_released(self, lease: Lease, ending: _Ending) -> bool:
        """Tell whether an earlier try, whose answer was lost, did release the lease."""
        store = self._store()
        if ending.run is not None:
            kept = store.run(ending.run.id)
            return kept is not None and kept.status == ending.run.status
        row = next(iter(store.rows([lease.key])), None)
        # Whoever ends somebody else's claim raises its token, and so does the next claim.
        return row is not None and row.holder is None and row.token == lease.token

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="singlejob-keeper", daemon=True)
            self._thread.start()

    def look_after(self) -> None:
        """Give the leases a new thread, should theirs have died without a word."""
        with self._condition:
            dead = self._thread is None or not self._thread.is_alive()
            if dead and self._leases:
                logger.error("the thread that renews leases was dead: another one does it now")
                self._start()

    def _drop(self, lease: Lease) -> None:
        with self._condition:
            self._leases.pop(lease.id, None)
        lease._finished.set()

    def _end(self, lease: Lease, released: bool) -> None:
        if released:
            with lease._lock:
                lease._ended = True
            lease._finish_result = True
        else:
            lease._lose("its time in the store was up before it was released")
        self._drop(lease)

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            # Whatever ended it (SystemExit raised into the thread, a greenlet's kill), leases need another.
            with contextlib.suppress(Exception), self._condition:
                if self._thread is threading.current_thread():
                    self._thread = None
                    if self._leases:
                        logger.error("the thread that renews leases ended: another one goes on with them")
                        self._start()

    def _loop(self) -> None:
        idle_since: float | None = None
        while True:
            try:
                with self._condition:
                    leases = list(self._leases.values())
                    if leases:
                        idle_since = None
                    else:
                        idle_since = idle_since if idle_since is not None else steady_seconds()
                        if steady_seconds() - idle_since > self._idle_seconds:
                            if self._thread is threading.current_thread():
                                self._thread = None
                            return
                pause = 1.0
                for lease in leases:
                    pause = min(pause, self._tend(lease))
                with self._condition:
                    if self._leases.keys() <= {lease.id for lease in leases}:
                        pause = max(pause, 0.005)
                        self._next_look = steady_seconds() + pause
                        self._condition.wait(pause)
                        self._next_look = steady_seconds()
            except Exception:
                logger.exception("the keeper of leases failed; it goes on")
                with contextlib.suppress(Exception), self._condition:
                    self._condition.wait(0.2)

    def _tend(self, lease: Lease) -> float:
        """Do what is due for one lease.

        :returns: seconds until it wants to be looked at again.
        """
        now = steady_seconds()
        if lease._finish is not None and not lease._ended:
            return self._retry_finish(lease, now)
        if lease._ended or lease._lost_reason is not None:
            self._drop(lease)
            return 1.0
        if now >= lease._deadline:
            self.failed_renewals += 1
            lease._lose("it could not be renewed before its end")
            self._drop(lease)
            return 1.0
        if lease._overrun_at is not None and now >= lease._overrun_at:
            lease._overrun_at = None
            if lease._on_overran is not None:
                _aside(lease._on_overran, lease)
        wants_progress = lease._progress is not None and now - lease._progress_at >= PROGRESS_SECONDS
        if now >= lease._renew_at or wants_progress:
            try:
                self.renew(lease)
            except StoreError as error:
                self.failed_renewals += 1
                lease._renew_at = steady_seconds() + min(1.0, lease.lease_seconds / 10)
                logger.warning(
                    "the lease on %s %r could not be renewed, %.1f s are left: %s",
                    lease.key.kind,
                    lease.key.name,
                    max(0.0, lease._deadline - steady_seconds()),
                    error,
                )
        later = [lease._renew_at, lease._deadline]
        if lease._overrun_at is not None:
            later.append(lease._overrun_at)
        if lease._progress is not None:
            later.append(lease._progress_at + PROGRESS_SECONDS)
        return min(later) - steady_seconds()

    def _retry_finish(self, lease: Lease, now: float) -> float:
        assert lease._finish is not None
        try:
            released = self._release(lease, lease._finish) or self._was_released(lease, lease._finish)
        except StoreError:
            if now >= lease._deadline:
                self._end(lease, False)
                return 1.0
            return min(1.0, lease.lease_seconds / 20)
        self._end(lease, released)
        return 1.0
