"""Ends calls that a database server does not answer, by shutting their connection down.

The drivers of PostgreSQL have no time limit for an answer: a server that is stopped or cut off would
block its caller for ever. One thread of the system per store looks; it rests while nothing is under way.
It cannot end an attempt to connect: that is what ``connect_timeout`` is for.
"""

from __future__ import annotations

import _socket
import os
import threading
import time
from types import TracebackType
from typing import Any

from ..election.native import original, start_native_thread

__all__ = ["Guard", "Line", "Watch", "line_of"]

_LOOK_SECONDS = 0.25


class Line:
    """A second descriptor of a connection's socket: it stays ours, whatever the driver does with its own."""

    def __init__(self, fd: int) -> None:
        self._socket = _socket.socket(fileno=os.dup(fd))

    def shut(self) -> None:
        """Make whoever reads from or writes to the connection fail at once."""
        try:
            self._socket.shutdown(2)
        except OSError:
            # It was closed by the other side: that does as well.
            return

    def close(self) -> None:
        """Give the descriptor back; the connection itself stays as it is."""
        self._socket.close()


def line_of(connection: Any) -> Line | None:
    """Return a line of a driver's connection, or None when the driver shows no descriptor."""
    inner = getattr(connection, "_sock", None)
    try:
        fd = (connection if inner is None else inner).fileno()
        return Line(fd) if isinstance(fd, int) and fd >= 0 else None
    except Exception:
        return None


class Guard:
    """One verb under way: a context manager that gives it a limit of seconds."""

    def __init__(self, watch: Watch, seconds: float) -> None:
        self._watch = watch
        self.deadline = time.monotonic() + seconds
        self.expired = False
        self.line: Line | None = None

    def remaining(self) -> float:
        """Return how many seconds are left."""
        return self.deadline - time.monotonic()

    def __enter__(self) -> Guard:
        self._watch.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.remove(self)


class Watch:
    """The guards of one store and the thread that looks after them."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Real locks, also under gevent: greenlets hold them for an instant and never switch meanwhile.
        self._lock: Any = original("_thread", "allocate_lock")()
        self._wake: Any = original("_thread", "allocate_lock")()
        self._wake.acquire()
        self._guards: dict[int, Guard] = {}
        self._current = threading.local()
        self._generation = object()
        self._started = False
        self._resting = False

    def guard(self, seconds: float) -> Guard:
        """Return a limit for what the calling thread does inside it."""
        return Guard(self, seconds)

    def add(self, guard: Guard) -> None:
        """Begin to look after a guard."""
        self._current.guard = guard
        with self._lock:
            self._guards[id(guard)] = guard
            start = not self._started
            self._started = True
            if self._resting:
                self._resting = False
                self._wake.release()
        if start:
            generation = self._generation
            start_native_thread(lambda: self._look(generation))

    def remove(self, guard: Guard) -> None:
        """Cease to look after a guard."""
        self._current.guard = None
        with self._lock:
            self._guards.pop(id(guard), None)
            guard.line = None

    def attach(self, line: Line | None) -> None:
        """Say which connection the calling thread's verb uses from now on."""
        guard: Guard | None = getattr(self._current, "guard", None)
        if guard is None:
            return
        with self._lock:
            guard.line = line
            if guard.expired and line is not None:
                line.shut()

    def detach(self, line: Line) -> None:
        """Take a connection that is being closed from whoever used it, and close the line."""
        with self._lock:
            for guard in self._guards.values():
                if guard.line is line:
                    guard.line = None
            line.close()

    def after_fork(self) -> None:
        """Begin anew in a child: the thread exists in the parent only."""
        self._reset()

    def stop(self) -> None:
        """Let the thread end unless a verb is under way; the next verb starts another."""
        with self._lock:
            if self._guards:
                return
            self._generation = object()
            self._started = False
            if self._resting:
                self._resting = False
                self._wake.release()

    def _look(self, generation: object) -> None:
        sleep = original("time", "sleep")
        lock, wake = self._lock, self._wake
        while True:
            with lock:
                if self._generation is not generation:
                    return
                for guard in self._guards.values():
                    if not guard.expired and guard.remaining() <= 0:
                        guard.expired = True
                        if guard.line is not None:
                            guard.line.shut()
                if not self._guards:
                    self._resting = True
                resting = self._resting
            if resting:
                wake.acquire()
            else:
                sleep(_LOOK_SECONDS)
