"""One process's part in an election: wait, own, watch, hand over, come back.

Owns the one thread of it (a greenlet and a native waiter under gevent and eventlet). Knows nothing
of jobs: what an owner does is in the hooks. The thread takes the lock and gives it up by itself;
everybody else only leaves it a note, so :meth:`Campaign.stop` and :meth:`Campaign.resign` are safe
in signal handlers and in several threads at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import datetime, timezone
from typing import Protocol

from .. import forks
from ..green import green_kind
from . import native
from .base import Elector

__all__ = ["Campaign", "Declined", "Hooks"]

_PAUSE_AFTER_RESIGNING = 0.25
_BACK_OFF = (0.5, 1.0, 2.0, 5.0)


class Declined(Exception):
    """A term is not begun, and nothing is wrong: this process is leaving."""


class Hooks(Protocol):
    """What an owner does. All of it is called in the campaign's thread."""

    def begin_term(self) -> None:
        """Start to own; raising gives the ownership back, to be tried again later (:class:`Declined` without a word)."""

    def check_term(self) -> str | None:
        """Return why to resign now, or None. Called at every tick of the watch: cheap, never waiting."""

    def end_term(self, reason: str) -> None:
        """Stop to own, at once and without waiting; the lock is freed when this returns."""


class Campaign:
    """A process's standing in an election.

    :param elector: what is campaigned for.
    :param hooks: what an owner does.
    :param subject: what is owned, for the log: "the schedule of host web-1".
    :param watch_seconds: how often an owner looks whether it still holds the lock and may go on.
    :param logger: where to log; default this module's.

    :ivar state: ``idle`` (never started), ``waiting``, ``owner`` or ``stopped``.
    :ivar since: when the state began (aware, UTC).
    :ivar term: how many times this process has become owner.
    """

    def __init__(
        self,
        elector: Elector,
        hooks: Hooks,
        *,
        subject: str = "the schedule of this host",
        watch_seconds: float = 0.5,
        logger: logging.Logger | None = None,
    ) -> None:
        self.elector = elector
        self.state = "idle"
        self.since = datetime.now(timezone.utc)
        self.term = 0
        self._hooks = hooks
        self._subject = subject
        self._watch_seconds = watch_seconds
        self._logger = logger or logging.getLogger(__name__)
        self._reset()
        forks.watch(self)

    def _reset(self) -> None:
        # Native and never held while another greenlet could run: made before a server patches its
        # threads, a lock of threading's would stop the hub.
        self._guard = native.original("_thread", "allocate_lock")()
        self._left: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self._waker: native.Waker | None = None
        self._waiter: _NativeWaiter | None = None
        self._wanted = False
        self._stop_reason = ""
        self._resign_reason: str | None = None
        self._failures = 0
        self._said_standby = False
        self._election_trouble: str | None = None
        self._begin_trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why the election can be neither won nor waited for, or a term not begun; None when all is well."""
        return self._election_trouble or self._begin_trouble

    @property
    def thread(self) -> threading.Thread | None:
        """The campaign's thread, or None when it has none."""
        return self._thread

    # -- from any thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Campaign from now on; harmless when it does already."""
        thread = threading.Thread(target=self._main, name="singlejob-campaign", daemon=True)
        left = threading.Event()
        left.set()
        waker = self._waker or native.Waker()
        with self._guard:
            self._wanted = True
            if self._thread is not None:
                # A stopped campaign's thread may still be blocked in the kernel: it simply goes on.
                if self.state == "stopped":
                    self._enter("waiting")
                return
            self._waker, self._left, self._thread = waker, left, thread
            self._enter("waiting")
        try:
            thread.start()
        except BaseException:
            self._thread = None
            raise

    def stop(self, reason: str) -> None:
        """Leave the election; an owner hands over at once. Never waits, may be called anywhere, any time."""
        self._stop_reason = reason
        self._wanted = False
        self.elector.cancel()
        if self.state in ("waiting", "idle"):
            self._enter("stopped")
        self._notify()

    def resign(self, reason: str) -> None:
        """Hand over at once if owner, then campaign again. Never waits, may be called anywhere, any time."""
        if self.state == "owner":
            self._resign_reason = reason
            self._notify()

    def wait_until_left(self, timeout: float) -> bool:
        """Wait until this process is not owner.

        :param timeout: seconds.
        :returns: False when it still was at the end.
        """
        left = self._left
        return left is None or left.wait(timeout)

    def after_fork(self) -> None:
        """Forget, in a forked child, a campaign that is its parent's."""
        self.elector.after_fork()
        if self._waker is not None:
            self._waker.close()
        self._reset()
        self.state = "idle"

    # -- the thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        waker = self._waker
        assert waker is not None
        try:
            while self._goes_on():
                try:
                    self._one_round(waker)
                except (Exception, SystemExit):
                    self._logger.exception("The campaign for %s failed; it goes on", self._subject)
                    self._pause(waker, self._back_off())
        finally:
            if self._wanted and self._thread is threading.current_thread():
                self._thread = None
                self._election_trouble = "the campaign's thread was killed"
                self._logger.error("The campaign for %s ended: its thread was killed", self._subject)

    def _goes_on(self) -> bool:
        with self._guard:
            if not self._wanted:
                self._thread = None
                self._said_standby = False
                self._enter("stopped")
            return self._wanted

    def _one_round(self, waker: native.Waker) -> None:
        self._enter("waiting")
        waker.drain()
        try:
            won = self.elector.try_acquire()
            self._election_trouble = None
            if not won:
                self._stand_by()
                won = self._wait_for_lock(waker)
        except OSError as error:
            self._in_trouble(str(error.strerror or error))
            self._pause(waker, self._back_off())
            return
        if not won:
            return
        try:
            began = self._wanted and self._own(waker)
        finally:
            self.elector.release()
            self._had_left()
        self._pause(waker, _PAUSE_AFTER_RESIGNING if began else self._back_off())

    def _stand_by(self) -> None:
        self._begin_trouble = None
        self._failures = 0
        if self._wanted and not self._said_standby:
            self._said_standby = True
            self._logger.info(
                "This worker (pid %d) is a standby for %s (%s)",
                os.getpid(),
                self._subject,
                self.elector.describe(),
            )

    def _own(self, waker: native.Waker) -> bool:
        self._resign_reason = None
        self._had_left(False)
        try:
            self._hooks.begin_term()
        except Declined as declined:
            self._logger.debug("A term of %s is not begun: %s", self._subject, declined)
            return False
        except Exception as error:
            text = f"a term of {self._subject} could not begin: {type(error).__name__}: {error}"
            if text != self._begin_trouble:
                self._begin_trouble = text
                self._logger.warning(
                    "This worker (pid %d) was elected for %s and could not begin; it tries again",
                    os.getpid(),
                    self._subject,
                    exc_info=True,
                )
            return False
        self._begin_trouble = None
        self._failures = 0
        self._said_standby = False
        self.term += 1
        self._enter("owner")
        reason = "its watch failed"
        try:
            self._logger.info(
                "This worker (pid %d) owns %s (%s)", os.getpid(), self._subject, self.elector.describe()
            )
            reason = self._watch(waker)
        finally:
            self._enter("waiting" if self._wanted else "stopped")
            try:
                self._hooks.end_term(reason)
            except Exception:
                self._logger.exception("The end of a term of %s failed", self._subject)
        return True

    def _watch(self, waker: native.Waker) -> str:
        """Stay owner until there is a reason not to, and return it."""
        while True:
            if self._wanted and self._resign_reason is None:
                native.wait_readable(waker.fileno(), self._watch_seconds)
                waker.drain()
            if not self._wanted:
                return self._stop_reason or "stopped"
            reason, self._resign_reason = self._resign_reason, None
            if reason is None and not self.elector.still_held():
                reason = f"{self.elector.describe()} was deleted, replaced or closed under its owner"
            if reason is None:
                reason = self._hooks.check_term()
            if reason is not None and self._wanted:
                self._logger.warning(
                    "This worker (pid %d) hands over %s: %s", os.getpid(), self._subject, reason
                )
                return reason

    def _wait_for_lock(self, waker: native.Waker) -> bool:
        if green_kind() is None:
            return self.elector.wait_acquire()
        if self._waiter is None:
            self._waiter = _NativeWaiter(self.elector)
        self._waiter.wanted_by(waker)
        while self._wanted:
            result = self._waiter.result()
            if result is not None:
                return result
            native.wait_readable(waker.fileno(), None)
            waker.drain()
        return self._waiter.abandon()

    # -- small parts --------------------------------------------------------------------------

    def _enter(self, state: str) -> None:
        if self.state != state:
            self.state = state
            self.since = datetime.now(timezone.utc)

    def _had_left(self, left: bool = True) -> None:
        event = self._left
        if event is not None:
            event.set() if left else event.clear()

    def _in_trouble(self, text: str) -> None:
        if text != self._election_trouble:
            self._election_trouble = text
            self._logger.error("No owner for %s can be elected here: %s", self._subject, text)

    def _back_off(self) -> float:
        self._failures += 1
        return _BACK_OFF[min(self._failures, len(_BACK_OFF)) - 1]

    def _pause(self, waker: native.Waker, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._wanted:
            left = end - time.monotonic()
            if left <= 0:
                return
            native.wait_readable(waker.fileno(), left)
            waker.drain()

    def _notify(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.notify()


class _NativeWaiter:
    """Waits for an election in a thread of the system and wakes a greenlet when it has an answer.

    At most one thread at a time: one that was abandoned stays blocked in the kernel, frees at once
    what it takes later, and is wanted again by the next start.
    """

    def __init__(self, elector: Elector) -> None:
        self._elector = elector
        self._guard = native.original("_thread", "allocate_lock")()
        self._waker: native.Waker | None = None
        self._runs = False
        self._answer: bool | OSError | None = None

    def wanted_by(self, waker: native.Waker) -> None:
        with self._guard:
            self._waker = waker
            if self._runs:
                return
            self._runs = True
        native.start_native_thread(self._wait)

    def result(self) -> bool | None:
        """Return the answer, or None when there is none yet.

        :raises OSError: when waiting failed.
        """
        with self._guard:
            answer, self._answer = self._answer, None
        if isinstance(answer, OSError):
            raise answer
        return answer

    def abandon(self) -> bool:
        """Want it no more; return True when it was won in that very moment."""
        with self._guard:
            self._waker = None
            answer, self._answer = self._answer, None
        return answer is True

    def _wait(self) -> None:
        # Touches nothing that monkey patching has replaced: a greenlet's lock here would block for ever.
        answer: bool | OSError
        try:
            answer = self._elector.wait_acquire()
        except OSError as error:
            answer = error
        except Exception as error:
            answer = OSError(f"waiting for {self._elector.describe()} failed: {error!r}")
        with self._guard:
            self._runs = False
            waker = self._waker
            if waker is None:
                if answer is True:
                    self._elector.release()
                return
            self._answer = answer
        waker.notify()
