"""The election's port in trouble: a stranger is told apart from a peer, and no other port is tried."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from flask_singlejob.election import SocketElector, default_port
from flask_singlejob.election import socket as socket_module

DEADLINE_SECONDS = 15.0


@pytest.fixture
def port() -> int:
    with contextlib.closing(socket.socket()) as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@pytest.fixture
def elector(port: int) -> Iterator[SocketElector]:
    made = SocketElector(port, f"app:{port}")
    yield made
    made.cancel()
    made.release()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_port_of_another_program_is_an_error_and_no_wait(elector: SocketElector, port: int) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", port))):
        with pytest.raises(
            OSError, match=rf"port {port} is taken by another program.*SINGLEJOB_ELECTION_PORT"
        ):
            elector.wait_acquire()
        assert elector.port == port
        with pytest.raises(OSError, match="another program"):
            elector.try_acquire()
    assert elector.try_acquire()


def test_port_of_another_app_of_this_kind_is_an_error(elector: SocketElector, port: int) -> None:
    other = SocketElector(port, "another app")
    assert other.try_acquire()
    try:
        with pytest.raises(OSError, match="another app that uses Flask-SingleJob"):
            elector.wait_acquire()
    finally:
        other.release()


def test_waiter_sleeps_in_the_kernel_and_is_woken_by_the_owners_end(
    elector: SocketElector, port: int
) -> None:
    assert elector.try_acquire()
    waiter = SocketElector(port, f"app:{port}")
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(waiter.wait_acquire()), daemon=True)
    thread.start()
    eventually(lambda: waiter._connection is not None)
    elector.release()
    thread.join(DEADLINE_SECONDS)
    assert results == [True]
    waiter.release()


def test_port_is_free_again_right_after_its_owner_had_waiters(elector: SocketElector, port: int) -> None:
    for _ in range(5):
        assert elector.try_acquire()
        with contextlib.closing(socket.create_connection(("127.0.0.1", port))):
            elector.release()


def test_host_without_ipv4_uses_its_ipv6_loopback(
    elector: SocketElector, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = socket_module._new_socket

    def without_ipv4(family: int) -> socket.socket:
        if family == socket.AF_INET:
            raise OSError(97, "Address family not supported by protocol")
        made: socket.socket = genuine(family)
        return made

    try:
        with contextlib.closing(socket.socket(socket.AF_INET6)) as trial:
            trial.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    monkeypatch.setattr(socket_module, "_new_socket", without_ipv4)
    assert elector.try_acquire()
    assert SocketElector(port, f"app:{port}").try_acquire() is False


def test_default_ports_are_stable_and_in_their_range() -> None:
    ports = {default_port(f"app-{number}") for number in range(500)}
    assert len(ports) > 300
    assert min(ports) >= 47200
    assert max(ports) <= 48199
    assert default_port("app") == default_port("app")
