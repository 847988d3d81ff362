"""The SQL store under settings of a server that others chose: isolation, zones, binary log, poolers."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from flask_singlejob.contract.races import RaceContract
from flask_singlejob.errors import StoreError
from flask_singlejob.records import ClaimKey, ClaimRequest, new_id
from flask_singlejob.stores import open_store, sql_gateway, sql_statements
from flask_singlejob.stores.base import Store
from flask_singlejob.stores.sql import SqlStore
from flask_singlejob.testing import StoreContract
from tests.integration.waiting import wait_until
from tests.services import MariaDBServer, PostgreSQLServer, free_port, missing


def opened(url: str, **more: Any) -> SqlStore:
    store = open_store(url, **{"table_prefix": f"t{uuid4().hex[:10]}_", **more})
    assert isinstance(store, SqlStore)
    return store


class _OnPrivateServer(RaceContract):
    ticks = 60
    url: str
    prefix: str

    @pytest.fixture(autouse=True)
    def _prefix(self) -> None:
        self.prefix = f"t{uuid4().hex[:10]}_"

    def make_store(self, cluster: str) -> Store:
        return open_store(self.url, cluster=cluster, table_prefix=self.prefix)


class TestSerializablePostgreSQL(_OnPrivateServer):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        server = PostgreSQLServer(
            ["default_transaction_isolation=serializable", "max_connections=200"]
        ).start()
        cls.url = server.url()
        yield
        server.remove()

    def test_doctor_tells_of_the_isolation(self) -> None:
        assert any("serializable" in finding for finding, _ in self.store().checks())

    def test_single_statements_run_under_read_committed(self) -> None:
        store = self.store()
        assert isinstance(store, SqlStore)
        levels = []

        def work(session: Any) -> None:
            levels.append(session.execute(text("SHOW transaction_isolation")).scalar())

        store._gate.call("test", work)
        assert levels == ["read committed"]


class TestSerializableMariaDBWithLogByStatement(_OnPrivateServer):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        options = ["--transaction-isolation=SERIALIZABLE", "--log-bin=binlog", "--binlog-format=STATEMENT"]
        server = MariaDBServer([*options, "--default-time-zone=+08:00"]).start()
        cls.url = server.url()
        yield
        server.remove()

    def test_clock_is_utc_whatever_the_servers_zone(self) -> None:
        assert abs(self.store().poll().now - time.time() * 1000) < 60_000

    def test_doctor_tells_of_the_binary_log(self) -> None:
        assert any("STATEMENT" in cure or "statement" in finding for finding, cure in self.store().checks())


class TestRepeatableReadMariaDB(_OnPrivateServer):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls) -> Iterator[None]:
        server = MariaDBServer(["--character-set-server=latin1", "--sql-mode=ANSI_QUOTES"]).start()
        cls.url = server.url()
        yield
        server.remove()

    def test_session_that_serves_is_at_read_committed(self) -> None:
        store = self.store()
        assert isinstance(store, SqlStore)
        level = store._gate.call(
            "test", lambda session: session.connection.exec_driver_sql("SELECT @@tx_isolation").scalar()
        )
        assert level == "READ-COMMITTED"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Kiritimati"])
def test_postgresql_clock_is_utc_whatever_the_sessions_zone(postgresql: PostgreSQLServer, zone: str) -> None:
    store = opened(postgresql.url(), options={"connect_args": {"options": f"-c timezone={zone}"}})
    store.create()
    assert abs(store.poll().now - time.time() * 1000) < 60_000
    store.close()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQLServer]:
    server = PostgreSQLServer(["max_connections=60"]).start()
    yield server
    server.remove()


class TestThroughPgBouncer(StoreContract):
    """Transaction pooling: each statement may meet another server session."""

    ticks = 60
    port: int
    prefix: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _pooler(cls, postgresql: PostgreSQLServer) -> Iterator[None]:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            missing("pgbouncer is not installed")
        directory = Path(postgresql.directory)
        cls.port = free_port()
        (directory / "users").write_text('"postgres" ""\n')
        (directory / "pgbouncer.ini").write_text(
            f"[databases]\ntest = host=127.0.0.1 port={postgresql.port} dbname=test\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {cls.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {directory}/users\npool_mode = transaction\n"
            "default_pool_size = 3\nmax_client_conn = 200\n"
        )
        for name in ("users", "pgbouncer.ini"):
            os.chmod(directory / name, 0o644)
        with (directory / "pooler.log").open("ab") as log:
            process = subprocess.Popen(
                postgresql._as_user([program, str(directory / "pgbouncer.ini")]), stdout=log, stderr=log
            )
        probe = opened(f"postgresql+psycopg://postgres@127.0.0.1:{cls.port}/test")

        def answers() -> bool:
            try:
                probe.create()
            except StoreError:
                return False
            return True

        wait_until(answers, what="pgbouncer")
        probe.close()
        yield
        process.kill()
        process.wait()

    @pytest.fixture(autouse=True)
    def _prefix(self) -> None:
        self.prefix = f"t{uuid4().hex[:10]}_"

    def make_store(self, cluster: str) -> Store:
        url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/test"
        return open_store(url, cluster=cluster, table_prefix=self.prefix)


def test_claim_that_waited_too_long_for_a_lock_is_not_carried_out(
    postgresql: PostgreSQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_gateway, "ANSWER_SECONDS", 1.5)
    monkeypatch.setattr(
        sql_statements, "_IN_TIME", "clock_timestamp() < statement_timestamp() + INTERVAL '1.5 seconds'"
    )
    store = opened(postgresql.url())
    store.create()
    key = ClaimKey("lock", "a")
    store.ensure([key])
    other = postgresql.connect("test")
    other.execute("BEGIN")
    other.execute(f"UPDATE {store.table_prefix}claims SET token = token")
    with pytest.raises(StoreError):
        store.claim(key, ClaimRequest(holder=new_id(), lease_ms=1_000))
    other.execute("COMMIT")

    def nothing_waits() -> bool:
        found = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'test' AND state = 'active'"
        ).fetchone()
        return bool(found[0] == 1)

    wait_until(nothing_waits)
    assert store.rows([key])[0].holder is None
    other.close()
    store.close()
