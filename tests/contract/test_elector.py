"""What every elector promises, tried on real processes: one owner, and the kernel tells the next."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob.election import Elector, make_elector

DEADLINE_SECONDS = 15.0

#: A process that campaigns, says what it is, and does what it is told on its standard input.
PEER = """
import os, sys, time
from flask_singlejob.election import make_elector
kind, identity, lock_file = sys.argv[1:4]
elector = make_elector(kind, identity=identity, lock_file=lock_file or None)
def say(*words):
    print(*words, flush=True)
say("waits")
elector.wait_acquire()
say("owns", os.getpid())
for line in sys.stdin:
    order = line.strip()
    if order == "fork":
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        say("forked", child)
    elif order == "fork-and-exit":
        child = os.fork()
        if child == 0:
            elector.release()
            sys.exit(0)
        os.waitpid(child, 0)
        say("still" if elector.still_held() else "lost")
    elif order == "held":
        say("still" if elector.still_held() else "lost")
    elif order == "release":
        elector.release()
        say("released")
"""

#: A process that waits, cancels, and lets no thread of Python run from then on, as an ending one does.
CANCELLED_PEER = """
import ctypes, sys, threading, time
from flask_singlejob.election import make_elector
kind, identity, lock_file = sys.argv[1:4]
elector = make_elector(kind, identity=identity, lock_file=lock_file or None)
print("waits", flush=True)
threading.Thread(target=elector.wait_acquire, daemon=True).start()
time.sleep(0.5)
elector.cancel()
time.sleep(0.1)
print("cancelled", flush=True)
ctypes.PyDLL(None).sleep(60)
"""


class Peer:
    """Another process of the same election."""

    def __init__(self, kind: str, identity: str, lock_file: str, program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, kind, identity, lock_file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.expect("waits")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def said(self, word: str) -> str | None:
        return next((line for line in self.lines if line.startswith(word)), None)

    def expect(self, word: str) -> str:
        eventually(lambda: self.said(word) is not None, f"the peer to say {word!r}, it said {self.lines}")
        return str(self.said(word))

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)


class Election:
    """One election of a kind, with as many processes as a test asks for."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.identity = f"test:{uuid.uuid4().hex}"
        self.lock_file = str(directory / "private" / "app.lock") if kind == "file" else ""
        self.peers: list[Peer] = []
        self.electors: list[Elector] = []

    def elector(self, identity: str | None = None) -> Elector:
        made = make_elector(self.kind, identity=identity or self.identity, lock_file=self.lock_file or None)
        self.electors.append(made)
        return made

    def peer(self, *, program: str = PEER) -> Peer:
        made = Peer(self.kind, self.identity, self.lock_file, program)
        self.peers.append(made)
        return made

    def owners(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.process.poll() is None and peer.said("owns")]


@pytest.fixture(params=["file", "socket"])
def election(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Election]:
    made = Election(request.param, tmp_path)
    yield made
    for peer in made.peers:
        peer.end()
    for elector in made.electors:
        elector.cancel()
        elector.release()


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_only_one_of_several_processes_owns(election: Election) -> None:
    for _ in range(4):
        election.peer()
    eventually(lambda: len(election.owners()) == 1, "one owner")
    assert election.elector().try_acquire() is False
    assert len(election.owners()) == 1


def test_standby_takes_over_after_owner_is_killed(election: Election) -> None:
    for _ in range(4):
        election.peer()
    for _ in range(3):
        eventually(lambda: len(election.owners()) == 1, "one owner")
        election.owners()[0].kill()
    eventually(lambda: len(election.owners()) == 1, "the last one to own")


def test_standby_takes_over_after_owner_releases(election: Election) -> None:
    first = election.peer()
    first.expect("owns")
    second = election.peer()
    first.tell("release")
    second.expect("owns")
    assert first.expect("released")


def test_forked_child_does_not_keep_what_its_killed_parent_held(election: Election) -> None:
    owner = election.peer()
    owner.expect("owns")
    owner.tell("fork")
    child = int(owner.expect("forked").split()[1])
    standby = election.peer()
    owner.kill()
    standby.expect("owns")
    os.kill(child, 0)  # it is still there


def test_forked_child_that_releases_and_exits_does_not_free_its_parents(election: Election) -> None:
    owner = election.peer()
    owner.expect("owns")
    owner.tell("fork-and-exit")
    owner.expect("still")
    assert election.elector().try_acquire() is False


def test_held_after_every_reference_but_the_elector_is_dropped(election: Election) -> None:
    elector = election.elector()
    assert elector.try_acquire()
    gc.collect()
    assert elector.still_held()
    assert election.elector().try_acquire() is False


def test_taking_twice_is_harmless_and_release_frees(election: Election) -> None:
    elector = election.elector()
    assert elector.try_acquire()
    assert elector.try_acquire()
    assert elector.wait_acquire()
    elector.release()
    elector.release()
    assert not elector.still_held()
    assert election.elector().try_acquire()


def test_two_elections_do_not_meet(election: Election) -> None:
    assert election.elector().try_acquire()
    other = Election(election.kind, Path(election.lock_file).parent.parent / "other")
    elector = other.elector()
    try:
        assert elector.try_acquire()
    finally:
        elector.release()


def test_cancelled_waiter_never_becomes_owner_even_when_its_thread_cannot_run(election: Election) -> None:
    owner = election.peer()
    owner.expect("owns")
    waiter = election.peer(program=CANCELLED_PEER)
    waiter.expect("cancelled")
    owner.kill()
    # Whatever the kernel grants to the cancelled waiter is free again at once.
    eventually(election.elector().try_acquire, "another to own")
    assert waiter.process.poll() is None


def test_waiter_may_wait_again_after_a_cancel(election: Election) -> None:
    owner = election.peer()
    owner.expect("owns")
    waiter = election.elector()
    waiter.cancel()
    assert waiter.wait_acquire() is False
    thread, results = in_thread(waiter.wait_acquire)
    owner.kill()
    thread.join(DEADLINE_SECONDS)
    assert results == [True]


def test_cancel_in_several_threads_at_once_is_harmless(election: Election) -> None:
    owner = election.peer()
    owner.expect("owns")
    waiter = election.elector()
    thread, results = in_thread(waiter.wait_acquire)
    for canceller, _ in [in_thread(waiter.cancel) for _ in range(8)]:
        canceller.join(DEADLINE_SECONDS)
    owner.kill()
    thread.join(DEADLINE_SECONDS)
    assert results in ([False], [True])
