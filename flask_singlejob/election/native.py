"""Real threads and waits under gevent's and eventlet's monkey patching, and plain ones without.

Looks into what is loaded already and imports neither of them by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

from ..green import green_kind

__all__ = ["Waker", "original", "start_native_thread", "wait_readable"]

# The functions below os and select, which eventlet replaces.
_posix: Any = importlib.import_module("posix") if os.name == "posix" else None


def original(module: str, name: str) -> Any:
    """Return a function of the standard library as it was before any monkey patching."""
    kind = green_kind()
    if kind == "gevent":
        return sys.modules["gevent.monkey"].get_original(module, name)
    if kind == "eventlet":
        return getattr(sys.modules["eventlet.patcher"].original(module), name)
    return getattr(importlib.import_module(module), name)


def start_native_thread(function: Callable[[], None]) -> None:
    """Run a function in a thread of the system that nothing ever waits for, also under monkey patching."""
    original("_thread", "start_new_thread")(function, ())


def wait_readable(fd: int, timeout: float | None) -> bool:
    """Wait until a descriptor can be read, letting other greenlets run where there are any.

    :param timeout: seconds; None: as long as it takes.
    :returns: False when the time was up.
    """
    kind = green_kind()
    if kind == "gevent":
        green_socket = importlib.import_module("gevent.socket")
        try:
            green_socket.wait_read(fd, timeout=timeout, timeout_exc=TimeoutError())
        except TimeoutError:
            return False
        return True
    if kind == "eventlet":
        hubs = importlib.import_module("eventlet.hubs")
        try:
            hubs.trampoline(fd, read=True, timeout=timeout, timeout_exc=TimeoutError)
        except TimeoutError:
            return False
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([fd], [], [], timeout)[0])
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0, int(timeout * 1000))))


class Waker:
    """Wakes whoever waits for :meth:`fileno` to be readable, from any thread and any signal handler."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        if _posix is not None:
            self._ends = os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)
        else:
            # Windows can wait for sockets only.
            self._sockets = socket.socketpair()
            for side in self._sockets:
                side.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        if self._ends is not None:
            return self._ends[0]
        if self._sockets is not None:
            return self._sockets[0].fileno()
        raise ValueError("the waker is closed")

    def notify(self) -> None:
        """Make it readable; harmless when it is already, or closed."""
        with contextlib.suppress(OSError):
            if self._ends is not None:
                _posix.write(self._ends[1], b"!")
            elif self._sockets is not None:
                self._sockets[1].send(b"!")

    def drain(self) -> bool:
        """Make it unreadable again; return whether it was readable."""
        found = False
        with contextlib.suppress(OSError):
            if self._ends is not None:
                found = bool(_posix.read(self._ends[0], 4096))
            elif self._sockets is not None:
                found = bool(self._sockets[0].recv(4096))
        return found

    def close(self) -> None:
        """Close this process's descriptors."""
        ends, self._ends = self._ends, None
        sockets, self._sockets = self._sockets, None
        for end in ends or ():
            with contextlib.suppress(OSError):
                os.close(end)
        for side in sockets or ():
            side.close()
