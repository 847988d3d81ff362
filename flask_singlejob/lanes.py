"""Threads for runs: a lane per executor, each with a fixed number of places.

A run's thread is a daemon: the interpreter joins other threads before anything else at exit, so a long
job would keep a stopping worker, and with it the ownership, alive. Waiting for runs is the engine's task.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["Lane"]

logger = logging.getLogger(__name__)


class Lane:
    """At most ``size`` pieces of work at once, none of them queued.

    :param alias: the executor's alias, for thread names.
    """

    def __init__(self, alias: str, size: int) -> None:
        self.alias = alias
        self.size = size
        self._busy = 0
        self._idle = threading.Condition()

    @property
    def free(self) -> int:
        """How many places are free now."""
        return self.size - self._busy

    @property
    def busy(self) -> int:
        """How many pieces of work are going on."""
        return self._busy

    def submit(self, work: Callable[[], None], done: Callable[[], None]) -> bool:
        """Start the work on a thread of its own, if a place is free.

        :param done: called on that thread after the place is free again.
        :returns: False, with nothing started, when no place is free or no thread can be made.
        """
        with self._idle:
            if self._busy >= self.size:
                return False
            self._busy += 1

        def body() -> None:
            try:
                work()
            except BaseException:
                logger.exception("a piece of scheduler work failed")
            finally:
                with self._idle:
                    self._busy -= 1
                    self._idle.notify_all()
                done()

        try:
            threading.Thread(target=body, name=f"singlejob-{self.alias}", daemon=True).start()
        except RuntimeError as error:
            with self._idle:
                self._busy -= 1
            logger.warning("no thread could be started for a run: %s", error)
            return False
        return True

    def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing is going on, at most so many seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: self._busy == 0, seconds)
