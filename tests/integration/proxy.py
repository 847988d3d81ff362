"""A TCP proxy in front of a server that cuts connections where a test says: before or after the server's work."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

__all__ = ["Proxy"]


class Proxy:
    """Passes bytes on, until told otherwise.

    :param port: the server's, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._swallow = 0
        self.swallowed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
            except OSError:
                return
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            for one, other, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass_on, args=(one, other, answers), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if answers and self._swallows():
                    break
                other.sendall(data)
        self._close(one)
        self._close(other)

    def _swallows(self) -> bool:
        with self._lock:
            if not self._swallow:
                return False
            self._swallow -= 1
            self.swallowed += 1
            return True

    def _close(self, one: socket.socket) -> None:
        with self._lock:
            self._open.discard(one)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def cut(self) -> None:
        """Reset every connection, whatever it is in the middle of."""
        for one in list(self._open):
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._close(one)

    def swallow(self, count: int) -> None:
        """Let the server do its work and lose so many of its answers, each with its connection."""
        with self._lock:
            self._swallow = count

    def close(self) -> None:
        """Refuse every connection from now on, and end those there are."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
