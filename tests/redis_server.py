"""A private Redis server for tests, and a proxy in front of it that cuts connections."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.integration.waiting import wait_until

__all__ = ["CuttingProxy", "RedisServer", "free_port", "need_redis"]


def need_redis() -> str:
    """Return the server's program; without it the test is skipped, in CI it fails."""
    program = shutil.which("redis-server")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("redis-server is not installed, and CI has to have it")
        pytest.skip("redis-server is not installed")
    return program


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One ``redis-server`` in a directory of its own.

    :param options: command line options; appendonly is on unless they say otherwise.
    """

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self.directory = directory
        self.port = free_port()
        self.program_arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)]
        self.program_arguments += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *options]
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    def start(self) -> RedisServer:
        """Start it on its port, with what its directory holds, and wait until it answers."""
        command = [need_redis(), *self.program_arguments]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._answers, what=f"redis-server on port {self.port}")
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            return bool(self.client().ping())
        except redis.exceptions.ConnectionError:
            return False

    def client(self) -> Any:
        """Return a plain client that never tries twice."""
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), decode_responses=True)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *, keep_data: bool) -> None:
        """Kill it and start it again, with or without what it knew."""
        self.kill()
        if not keep_data:
            shutil.rmtree(self.directory)
            self.directory.mkdir()
        self.start()

    def freeze(self) -> None:
        """Stop it: it accepts connections and never answers."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on with what was sent to it meanwhile."""
        self.process.send_signal(signal.SIGCONT)


class CuttingProxy:
    """Passes bytes to ``target``; on demand it cuts a connection before or after a request is carried out."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.answers_to_cut = 0
        self.requests_to_cut = 0
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_answer and self.answers_to_cut > 0:
                    self.answers_to_cut -= 1
                    self.cuts += 1
                    break
                if not is_answer and self.requests_to_cut > 0:
                    self.requests_to_cut -= 1
                    self.cuts += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
