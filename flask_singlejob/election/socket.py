"""The election by a listening TCP port on the loopback address, for systems without file locks.

Owner is whose bind and listen succeeded; nothing is ever accepted, and never another port tried. A
waiter is a connection in the owner's backlog: the kernel resets it when the owner dies. Who holds the
port is told apart by a small file beside it; the port alone decides the election.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import select
import socket
import sys
import time
from typing import Any, Final

from .. import forks
from . import native, places
from .base import Elector
from .file import FileElector, probe

__all__ = ["SocketElector", "default_port"]

_FIRST_PORT: Final = 47200
_PORTS: Final = 1000
_BACKLOG: Final = 1024
_POLL_SECONDS: Final = 0.1
_SETTLE_SECONDS: Final = 2.0
_PORT_KEY: Final = "SINGLEJOB_ELECTION_PORT"

# Windows only: there SO_REUSEADDR lets anybody take a port that is in use.
_EXCLUSIVE: Final = getattr(socket, "SO_EXCLUSIVEADDRUSE", ~socket.SO_REUSEADDR)


def default_port(identity: str) -> int:
    """Return the port of an election that has none configured: 47200 to 48199."""
    return _FIRST_PORT + int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big") % _PORTS


class SocketElector(Elector):
    """An election for one port.

    :param port: on 127.0.0.1 (on ::1 where the host has no IPv4 loopback).
    :param identity: what tells this election from others.
    """

    def __init__(self, port: int, identity: str) -> None:
        self.port = port
        self._identity = identity
        self._listener: Any = None
        self._connection: Any = None
        self._side: FileElector | None = None
        self._waker: native.Waker | None = None
        self._unsure_since: float | None = None
        self._pid = os.getpid()
        self._cancelled = False
        forks.watch(self)

    def describe(self) -> str:
        return f"port {self.port} on the loopback address"

    def try_acquire(self) -> bool:
        if self._listener is not None:
            return True
        if self._bind():
            self._unsure_since = None
            return True
        self._refuse_strangers()
        return False

    def wait_acquire(self) -> bool:
        if self._waker is None:
            self._waker = native.Waker()
        quick_tries = 0
        while not self._take_cancel():
            if self.try_acquire():
                return True
            connection = self._connect() if self._unsure_since is None else None
            if connection is None:
                # It is not known whose it is; or its owner does not listen yet, or has just gone.
                quick_tries += 1
                self._wait(None, 0.005 if quick_tries < 20 else _POLL_SECONDS)
                continue
            quick_tries = 0
            self._connection = connection
            try:
                self._wait(connection, None)
            finally:
                self._connection = None
                connection.close()
        return False

    def look(self) -> dict[str, Any]:
        """Tell who holds the port, without taking it or waiting for it.

        :returns: ``held`` by this election and, when it is, ``pid`` and ``since`` (text); else ``stranger`` when
            anybody else has the port.
        """
        path = self._side_path(self._identity)
        if sys.platform == "win32":
            found: dict[str, Any] = {"held": os.path.exists(path), "pid": None, "since": None}
        else:
            seen = probe(path)
            found = {key: seen[key] for key in ("held", "pid", "since")}
        if not found["held"]:
            connection = self._connect()
            if connection is not None:
                connection.close()
                found["stranger"] = self._stranger()
        return found

    def cancel(self) -> None:
        self._cancelled = True
        waker = self._waker
        if waker is not None:
            waker.notify()

    def still_held(self) -> bool:
        listener = self._listener
        if listener is None or self._pid != os.getpid():
            return False
        try:
            if hasattr(socket, "SO_ACCEPTCONN"):
                return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            return bool(listener.getsockname()[1] == self.port)
        except OSError:
            return False

    def release(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            if self._pid == os.getpid():
                # Ends the listening even where a child that knows nothing of us keeps a copy.
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        side, self._side = self._side, None
        if side is not None:
            side.release()

    def after_fork(self) -> None:
        for mine in (self._listener, self._connection):
            if mine is not None:
                with contextlib.suppress(OSError):
                    mine.close()
        self._listener = self._connection = None
        if self._side is not None:
            self._side.after_fork()
            self._side = None
        if self._waker is not None:
            self._waker.close()
            self._waker = None
        self._pid = os.getpid()
        self._cancelled = False

    # -- within -------------------------------------------------------------------------------

    def _take_cancel(self) -> bool:
        if self._waker is not None:
            self._waker.drain()
        cancelled, self._cancelled = self._cancelled, False
        return cancelled

    def _bind(self) -> bool:
        while True:
            forked = forks.fork_count()
            family, address = _loopback()
            listener = _new_socket(family)
            if forked == forks.fork_count():
                break
            listener.close()
        try:
            if os.name == "nt":
                listener.setsockopt(
                    socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", ~socket.SO_REUSEADDR), 1
                )
            else:
                # For TIME_WAIT only: two listeners are refused all the same, by listen() if not by bind().
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, self.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno in (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE)):
                return False
            raise OSError(
                error.errno,
                f"port {self.port} on {address} cannot be taken ({error.strerror}); "
                f"set {_PORT_KEY} to a port that this user may listen on",
            ) from error
        self._listener = listener
        self._sign()
        return True

    def _sign(self) -> None:
        """Say whose port it is, so that others need not wait for a stranger."""
        try:
            if sys.platform != "win32":
                side = FileElector(self._side_path(self._identity))
                if side.try_acquire():
                    self._side = side
            else:
                path = self._side_path(self._identity)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"singlejob": 1, "pid": os.getpid()}, file)
        except OSError:
            # The port alone decides; who cannot read the file says so.
            self._side = None

    def _side_path(self, identity: str) -> str:
        name = places.file_name(identity, f".port-{self.port}")
        return os.path.join(places.private_directory(), name)

    def _refuse_strangers(self) -> None:
        """Return when the port is held by a peer of this election, or that is not yet sure.

        :raises OSError: when it is held by anything else.
        """
        if self._peer_holds():
            self._unsure_since = None
            return
        # An owner signs a moment after it has bound, and frees the port a moment before the file.
        now = time.monotonic()
        if self._unsure_since is None:
            self._unsure_since = now
        if now - self._unsure_since >= _SETTLE_SECONDS:
            raise OSError(
                errno.EADDRINUSE,
                f"port {self.port} is taken by {self._stranger()}; "
                f"set {_PORT_KEY} to a free port, the same for every worker of this app on this host",
            )

    def _peer_holds(self) -> bool:
        path = self._side_path(self._identity)
        if sys.platform == "win32":
            return os.path.exists(path)
        places.make_private_directory(os.path.dirname(path))
        return bool(probe(path)["held"])

    def _stranger(self) -> str:
        with contextlib.suppress(OSError):
            directory = places.private_directory()
            for name in os.listdir(directory):
                if not name.endswith(f".port-{self.port}") or sys.platform == "win32":
                    continue
                found = probe(os.path.join(directory, name))
                if found["held"]:
                    return f"another app that uses Flask-SingleJob (pid {found['pid']})"
        return "another program"

    def _connect(self) -> Any:
        """Return a connection that waits in the owner's backlog, or None."""
        family, address = _loopback()
        connection = _new_socket(family)
        self._connection = connection
        kept = False
        try:
            connection.settimeout(1.0)
            # The kernel asks for us whether the owner's end is still there, should its reset get lost.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), 2)
            connection.connect((address, self.port))
            # A port among those of outgoing connections can be connected to itself.
            kept = connection.getsockname() != connection.getpeername()
        except OSError:
            kept = False
        finally:
            self._connection = None
            if not kept:
                connection.close()
        return connection if kept else None

    def _wait(self, connection: Any, timeout: float | None) -> None:
        """Wait until the connection ends, the waiter is cancelled, or so many seconds have passed."""
        descriptors = [] if connection is None else [connection.fileno()]
        if self._waker is not None:
            descriptors.append(self._waker.fileno())
        if os.name == "nt":
            native.original("select", "select")(descriptors, [], [], timeout)
        else:
            _poll(descriptors, timeout)


def _poll(descriptors: list[int], timeout: float | None) -> None:
    poll = native.original("select", "poll")()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(None if timeout is None else max(0, int(timeout * 1000)))


def _new_socket(family: int) -> Any:
    # The waiter is a native thread also under gevent and eventlet, whose sockets belong to a hub.
    made = native.original("socket", "socket")(family, socket.SOCK_STREAM)
    made.set_inheritable(False)
    return made


def _loopback() -> tuple[int, str]:
    """Return family and address of the loopback interface, the same for every process of the host."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with contextlib.closing(_new_socket(family)) as trial:
                trial.bind((address, 0))
        except OSError:
            continue
        return family, address
    raise OSError(
        errno.EADDRNOTAVAIL,
        "this host has no loopback address for the election's port; set SINGLEJOB_ELECTION to 'file'",
    )
