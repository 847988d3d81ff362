"""The SQL store when its server is frozen, killed, silent or strict: no hang, no lost and no double claim."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from flask_singlejob.contract.kit import record_of
from flask_singlejob.errors import StoreError
from flask_singlejob.records import ClaimKey, ClaimRequest, RunStatus, new_id
from flask_singlejob.stores import open_store, sql_gateway, sql_target
from flask_singlejob.stores.sql import SqlStore
from tests.services import MariaDBServer, PostgreSQLServer, SilentServer

KEY = ClaimKey("job", "nightly")
DRIVERS = ("psycopg", "psycopg2", "pymysql", "mysqldb")

Server = PostgreSQLServer | MariaDBServer


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], Server]]:
    """Give the private server that a driver speaks to; it is started once for all tests here."""
    started: dict[type[Server], Server] = {}

    def get(driver: str) -> Server:
        kind: type[Server] = PostgreSQLServer if driver.startswith("psycopg") else MariaDBServer
        pytest.importorskip({"mysqldb": "MySQLdb"}.get(driver, driver))
        if kind not in started:
            server = kind()
            started[kind] = server
            server.start()
        return started[kind]

    yield get
    for server in started.values():
        server.remove()


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(servers: Callable[[str], Server], driver: str) -> Server:
    return servers(driver)


def opened(url: str, **more: Any) -> SqlStore:
    more = {"table_prefix": f"t{uuid4().hex[:10]}_", "cluster": "c", **more}
    store = open_store(url, **more)
    assert isinstance(store, SqlStore)
    return store


@pytest.fixture
def store(server: Server, driver: str) -> Iterator[SqlStore]:
    store = opened(server.url(driver))
    store.create()
    yield store
    store._tables.metadata.drop_all(store._gate.engine)
    store.close()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a verb's limit short, so that the tests of it are."""
    monkeypatch.setattr(sql_gateway, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(sql_target, "ANSWER_SECONDS", 2.0)


def take(store: SqlStore, key: ClaimKey = KEY, **more: Any) -> Any:
    return store.claim(key, ClaimRequest(holder=new_id(), lease_ms=60_000, **more))


SESSION = {"PostgreSQLServer": "SELECT pg_backend_pid()", "MariaDBServer": "SELECT CONNECTION_ID()"}


# -- no answer ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_limit")
def test_verb_on_a_frozen_server_fails_in_time_and_works_when_it_thaws(
    server: Server, store: SqlStore
) -> None:
    store.poll()
    server.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(StoreError, match=r"poll: .* (no answer|timed out|timeout|expired)") as caught:
            store.poll()
        assert time.monotonic() - started < 10
        assert "\n" not in str(caught.value)
        # The next one has to connect first.
        started = time.monotonic()
        with pytest.raises(StoreError):
            take(store)
        assert time.monotonic() - started < 10
    finally:
        server.thaw()
    # What the frozen server had in its queue may have been carried out; another row tells it is back.
    assert take(store, ClaimKey("lock", "other")).won


@pytest.mark.usefixtures("short_limit")
def test_server_that_accepts_and_never_speaks_counts_as_away(driver: str) -> None:
    pytest.importorskip({"mysqldb": "MySQLdb"}.get(driver, driver))
    kind = "postgresql" if driver.startswith("psycopg") else "mysql"
    with SilentServer() as silent:
        store = opened(f"{kind}+{driver}://user:s3cret@127.0.0.1:{silent.port}/test")
        started = time.monotonic()
        with pytest.raises(StoreError) as caught:
            store.poll()
        assert time.monotonic() - started < 10
        assert "s3cret" not in str(caught.value)
        store.close()


def test_server_that_is_not_there_is_told_with_its_place_and_reason(driver: str) -> None:
    pytest.importorskip({"mysqldb": "MySQLdb"}.get(driver, driver))
    kind = "postgresql" if driver.startswith("psycopg") else "mysql"
    store = opened(f"{kind}+{driver}://user:s3cret@127.0.0.1:1/test")
    with pytest.raises(
        StoreError, match=rf"poll: the store {kind}://user@127.0.0.1:1/test failed: "
    ) as caught:
        store.poll()
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert type(caught.value.__cause__).__module__.split(".")[0].lower() == driver


# -- others in the way ----------------------------------------------------------------------------


def test_claim_of_a_row_that_another_transaction_locks_fails_and_is_not_told_as_held(
    server: Server, driver: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_gateway, "ANSWER_SECONDS", 3.0)
    monkeypatch.setattr(
        sql_gateway, "_MYSQL_WAITS", "SET SESSION innodb_lock_wait_timeout = 1, SESSION lock_wait_timeout = 1"
    )
    fresh = opened(server.url(driver), table_prefix=store.table_prefix)
    fresh.ensure([KEY])
    other = server.connect("test")
    cursor = other.cursor()
    cursor.execute("BEGIN")
    cursor.execute(f"SELECT * FROM {store._tables.claims.name} FOR UPDATE")
    try:
        with pytest.raises(StoreError, match="claim: "):
            take(fresh)
    finally:
        other.close()
    # PostgreSQL may carry out what was given up early here; another row tells that nothing is in the way.
    assert take(fresh, ClaimKey("lock", "other")).won
    fresh.close()


# -- broken connections ---------------------------------------------------------------------------


def end_all_sessions(server: Server) -> None:
    """End every session but ours, as an administrator or an idle limit does."""
    connection = server.connect()
    if isinstance(server, PostgreSQLServer):
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'test'")
    else:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = 'test' AND id <> CONNECTION_ID()"
        )
        for (number,) in cursor.fetchall():
            with suppress(Exception):
                cursor.execute(f"KILL {number}")
    connection.close()


def test_ended_session_is_not_noticed_by_any_verb(server: Server, store: SqlStore) -> None:
    outcome = take(store)
    for verb in (
        store.poll,
        lambda: store.ensure([ClaimKey("lock", "new")]),
        lambda: take(store, ClaimKey("lock", new_id())),
        lambda: store.renew(KEY, outcome.row.holder, outcome.row.token, 1_000),
        lambda: store.put("k", "a", {}),
        lambda: store.docs("k"),
        lambda: store.runs(),
        lambda: store.release(KEY, outcome.row.holder, outcome.row.token),
        lambda: store.delete("k", "a"),
    ):
        end_all_sessions(server)
        assert verb() not in (None, False)  # type: ignore[no-untyped-call]


def test_restarted_server_is_found_again(server: Server, store: SqlStore) -> None:
    outcome = take(store)
    assert outcome.won
    server.restart()
    assert store.poll().held == (outcome.row,)


class AnswerCutter:
    """Carries requests to a server and, when told to, cuts the connection instead of an answer."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._answers_left: int | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cutting(self, number: int, verb: Callable[[], Any]) -> Any:
        """Call a verb; the answer after ``number`` others is lost, though its request was carried out."""
        self._answers_left = number
        try:
            return verb()
        finally:
            self._answers_left = None

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for pair in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and self._answers_left is not None:
                    if self._answers_left == 0:
                        self._answers_left = None
                        self.cuts += 1
                        break
                    self._answers_left -= 1
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.mark.parametrize("number", range(5))
def test_write_whose_answer_was_lost_is_looked_up_not_repeated(
    server: Server, driver: str, store: SqlStore, number: int
) -> None:
    relay = AnswerCutter(server.port)
    url = server.url(driver).replace(f":{server.port}/", f":{relay.port}/")
    far = opened(url, table_prefix=store.table_prefix)
    try:
        far.poll()
        claimed = relay.cutting(number, lambda: take(far))
        assert claimed.won
        key, holder, token = KEY, claimed.row.holder, claimed.row.token
        assert relay.cutting(number, lambda: far.renew(key, holder, token, 90_000)) is not None
        run = record_of("nightly", claimed.now, id=holder)
        assert relay.cutting(number, lambda: far.release(key, holder, token, run=run))
        assert store.runs() == [run]
        seen = store.rows([key])[0].resolved
        missed = record_of("nightly", claimed.now, RunStatus.MISSED)
        assert relay.cutting(number, lambda: far.settle(key, seen, seen + 1, missed))
        held = take(store)
        lost = record_of("nightly", held.now, RunStatus.LOST, id=held.row.holder)
        assert relay.cutting(
            number, lambda: far.expire(key, held.row.holder, held.row.token, lost=lost, forced=True)
        )
        first = relay.cutting(number, lambda: far.put("k", "a", {"n": 1}, expect=0))
        assert first is not None
        second = relay.cutting(number, lambda: far.put("k", "a", {"n": 2}, expect=first.revision))
        assert second == store.doc("k", "a")
        assert relay.cutting(number, lambda: far.delete("k", "a"))
        store.ensure([KEY.with_slot(1)])
        slot = relay.cutting(number, lambda: take(far, slot=1))
        assert slot.won
        assert relay.cutting(
            number, lambda: far.release(slot.row.key, slot.row.holder, slot.row.token, run=run)
        )
        assert len(store.runs()) == 3
        assert relay.cuts >= 5
    finally:
        far.close()
        relay.close()


# -- forks ----------------------------------------------------------------------------------------


def in_child(body: Callable[[], None], *, hard: bool) -> int:
    """Do something in a forked child; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            if hard:
                os._exit(code)
        raise SystemExit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("told", [True, False], ids=["told of the fork", "not told"])
def test_forked_children_leave_the_parents_connection_alone(
    server: Server, driver: str, store: SqlStore, told: bool
) -> None:
    def session() -> Any:
        statement = (
            "SELECT pg_backend_pid()" if isinstance(server, PostgreSQLServer) else "SELECT CONNECTION_ID()"
        )
        return store._gate.call(
            "test", lambda session: session.connection.exec_driver_sql(statement).scalar()
        )

    before = session()

    def body() -> None:
        if told:
            store.after_fork()
        assert session() != before
        for turn in range(30):
            assert take(store, ClaimKey("lock", f"{os.getpid()} {turn}")).won

    for _ in range(3):
        assert in_child(body, hard=True) == 0
        assert session() == before


def test_child_that_ends_like_a_program_does_not_say_goodbye_for_its_parent(
    server: Server, driver: str
) -> None:
    program = f"""
import os, sys
from flask_singlejob.stores import open_store
store = open_store({server.url(driver)!r}, table_prefix="t{uuid4().hex[:10]}_")
store.create()
before = store._gate.call("test", lambda s: s.connection.exec_driver_sql({SESSION[type(server).__name__]!r}).scalar())
if os.fork() == 0:
    store.poll()
    sys.exit(0)
assert os.wait()[1] == 0
after = store._gate.call("test", lambda s: s.connection.exec_driver_sql({SESSION[type(server).__name__]!r}).scalar())
store._tables.metadata.drop_all(store._gate.engine)
sys.exit(0 if before == after else 3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
