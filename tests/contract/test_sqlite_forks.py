"""A process that forks while its threads use an SQLite file: the child's locks on it are real, and free."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flask_singlejob.records import ClaimKey, ClaimRequest, new_id
from flask_singlejob.stores import open_store, sql_forks
from flask_singlejob.stores.sql import SqlStore
from flask_singlejob.stores.sql_gateway import Session

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

KEY = ClaimKey("lock", "a")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    store.create()
    store.ensure([KEY])
    yield store
    store.close()


def take_and_free(store: SqlStore) -> None:
    outcome = store.claim(KEY, ClaimRequest(holder=new_id(), lease_ms=60_000))
    assert outcome.won
    assert outcome.row.holder is not None
    assert store.release(KEY, outcome.row.holder, outcome.row.token)


def forked(body: Callable[[], None]) -> int:
    """Do something in a forked child, which is given 20 seconds; returns the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(20)
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def inside(store: SqlStore, verb: str, middle: Callable[[Session], None]) -> Iterator[threading.Event]:
    """Have another thread in the middle of a verb; gives what is set when the verb has ended."""
    begun, ended = threading.Event(), threading.Event()

    def work(session: Session) -> None:
        begun.set()
        middle(session)

    def call() -> None:
        store._gate.call(verb, work)
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(10)
    yield ended
    thread.join()


def writing(store: SqlStore, seconds: float) -> Callable[[Session], None]:
    def middle(session: Session) -> None:
        with session.transaction():
            session.connection.exec_driver_sql(f"UPDATE {store._tables.claims.name} SET token = token")
            time.sleep(seconds)

    return middle


def reading(store: SqlStore, seconds: float) -> Callable[[Session], None]:
    def middle(session: Session) -> None:
        driver = session.connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.create_function("pause", 0, lambda: time.sleep(seconds))
        session.connection.exec_driver_sql(f"SELECT pause() FROM {store._tables.claims.name}").all()

    return middle


def test_child_that_is_forked_in_the_middle_of_a_write_claims_and_releases(store: SqlStore) -> None:
    for _ in range(3):
        with inside(store, "put", writing(store, 0.3)):
            time.sleep(0.1)  # inside the transaction; the verb has begun already
            assert end_of(forked(lambda: take_and_free(store))) == 0
    take_and_free(store)


def test_fork_waits_for_reads_too(store: SqlStore) -> None:
    with inside(store, "poll", reading(store, 0.3)) as ended:
        assert end_of(forked(lambda: take_and_free(store) if ended.is_set() else os._exit(3))) == 0


def test_fork_waits_for_every_store_of_the_process(store: SqlStore, tmp_path: Path) -> None:
    other = open_store(f"sqlite:///{tmp_path / 'other.db'}")
    assert isinstance(other, SqlStore)
    other.create()
    other.ensure([KEY])
    with inside(store, "put", writing(store, 0.3)) as one, inside(other, "put", writing(other, 0.4)) as two:

        def body() -> None:
            assert one.is_set()
            assert two.is_set()
            take_and_free(store)
            take_and_free(other)

        assert end_of(forked(body)) == 0
    other.close()


def test_fork_does_not_wait_for_ever(store: SqlStore) -> None:
    with inside(store, "put", writing(store, 4.0)) as ended:
        assert end_of(forked(lambda: None)) == 0
        assert not ended.is_set()
        # Nor does who comes after it; the write is still under way.
        store.poll()
    take_and_free(store)


def test_fork_in_the_middle_of_ones_own_verb_does_not_wait_for_itself(store: SqlStore) -> None:
    def work(session: Session) -> int:
        started = time.monotonic()
        pid = forked(lambda: None)
        assert time.monotonic() - started < sql_forks.WAIT_SECONDS
        session.connection.exec_driver_sql(f"UPDATE {store._tables.claims.name} SET token = token")
        return pid

    assert end_of(store._gate.call("put", work)) == 0
    take_and_free(store)
    assert end_of(forked(lambda: take_and_free(store))) == 0


def test_threads_that_write_and_forks_do_not_hinder_each_other(store: SqlStore) -> None:
    stop = threading.Event()
    errors: list[Exception] = []

    def write(number: int) -> None:
        key = ClaimKey("lock", f"of thread {number}")
        while not stop.is_set():
            try:
                outcome = store.claim(key, ClaimRequest(holder=new_id(), lease_ms=60_000))
                assert outcome.won
                assert outcome.row.holder is not None
                assert store.release(key, outcome.row.holder, outcome.row.token)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    codes: list[int] = []
    forking = [
        threading.Thread(
            target=lambda: codes.extend(
                end_of(forked(lambda: store.ensure([KEY]).clear())) for _ in range(10)
            )
        )
        for _ in range(2)
    ]
    for thread in forking:
        thread.start()
    for thread in forking:
        thread.join()
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 20
    assert errors == []


def test_childs_claim_is_seen_by_others_after_its_parent_closed_the_file(store: SqlStore, url: str) -> None:
    """SQLite would take a child's locks for its parent's, and delete the log that the child writes to."""
    store.poll()
    to_child, to_parent = os.pipe(), os.pipe()

    def body() -> None:
        store.poll()
        os.write(to_parent[1], b"x")
        os.read(to_child[0], 1)
        assert store.claim(KEY, ClaimRequest(holder="of the child", lease_ms=60_000)).won
        os.write(to_parent[1], b"x")
        os.read(to_child[0], 1)

    pid = forked(body)
    os.read(to_parent[0], 1)
    store.close()
    os.write(to_child[1], b"x")
    os.read(to_parent[0], 1)
    program = f"""
from flask_singlejob.stores import open_store
print([row.holder for row in open_store({url!r}).poll().held])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    os.write(to_child[1], b"x")
    assert end_of(pid) == 0
    assert done.stdout.strip() == "['of the child']", done.stderr
    for fd in (*to_child, *to_parent):
        os.close(fd)


def test_program_that_is_started_leaves_the_connections_open(store: SqlStore) -> None:
    store.poll()
    before = list(store._gate._open)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert list(store._gate._open) == before != []
