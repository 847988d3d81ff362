"""Real servers that go away in many ways under a running schedule: requests go on, no tick is lost, none runs twice."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from flask_singlejob import SingleJob, current_run
from flask_singlejob.engine_access import engine_of
from flask_singlejob.records import Run, RunStatus
from tests.integration.proxy import Proxy
from tests.integration.waiting import wait_until
from tests.services import MariaDBServer, PostgreSQLServer

long = pytest.mark.skipif(
    not os.environ.get("SINGLEJOB_TEST_LONG"), reason="takes long: set SINGLEJOB_TEST_LONG=1"
)
STEP_MS = 500
Server = PostgreSQLServer | MariaDBServer


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], Server]]:
    """Give a private server of a kind, started once for all tests here."""
    started: dict[str, Server] = {}

    def get(kind: str) -> Server:
        if kind not in started:
            server: Server = PostgreSQLServer() if kind == "postgresql" else MariaDBServer()
            started[kind] = server
            server.start()
        return started[kind]

    yield get
    for server in started.values():
        server.remove()


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    return servers(str(request.param))


class Watched:
    """An app with one job every half second, whose requests are timed all the while."""

    def __init__(self, url: str, directory: Path) -> None:
        self.app = Flask("watched")
        self.app.config.update(
            SINGLEJOB_STORE=url,
            SINGLEJOB_CLUSTER=directory.name,
            SINGLEJOB_TABLE_PREFIX=f"t{abs(hash(str(directory))) % 10**9}_",
            SINGLEJOB_HOST_ID="here",
            SINGLEJOB_LOCK_FILE=str(directory / "owner.lock"),
            SINGLEJOB_POLL_INTERVAL=0.2,
        )
        self.ticks: list[tuple[int, int]] = []
        self.answers: list[float] = []
        self.jobs = SingleJob()
        self._over = threading.Event()

        @self.jobs.task("interval", seconds=STEP_MS / 1000, id="job")
        def job() -> None:
            self.ticks.append((round(current_run.scheduled_at.timestamp() * 1000), current_run.stood_for))

        @self.app.get("/")
        def page() -> str:
            return "hello"

        self.jobs.init_app(self.app)
        self._visitor = threading.Thread(target=self._visit, daemon=True)

    def start(self) -> Watched:
        self.jobs.start(force=True)
        self._visitor.start()
        return self

    def _visit(self) -> None:
        client = self.app.test_client()
        while not self._over.wait(0.02):
            began = time.monotonic()
            assert client.get("/").text == "hello"
            self.answers.append(time.monotonic() - began)

    def goes_on(self, runs: int = 2) -> None:
        """Wait until the job ran so many times more."""
        seen = len(self.ticks)
        wait_until(lambda: len(self.ticks) >= seen + runs, 60, "the job runs")

    def wait_away(self) -> None:
        """Wait until the engine knows that its store is away."""
        engine = engine_of(self.app)
        assert engine is not None
        wait_until(lambda: engine.outages.away_seconds is not None, 30, "the store is missed")

    def stop(self) -> None:
        self._over.set()
        self.jobs.shutdown()

    def unwell(self) -> list[Run]:
        found: list[Run] = self.jobs.runs("job", status=[RunStatus.MISSED, RunStatus.LOST, RunStatus.FAILED])
        return found

    def judge(self) -> None:
        """Each tick from the first to the last ran once, by itself or stood for by a later one."""
        ticks = [tick for tick, _ in self.ticks]
        assert max(Counter(ticks).values()) == 1
        assert ticks == sorted(ticks)
        skipped = sum(run.count for run in self.jobs.runs("job", status=[RunStatus.SKIPPED]))
        accounted = sum(stood_for for _, stood_for in self.ticks[1:]) + 1 + skipped
        assert accounted == (ticks[-1] - ticks[0]) // STEP_MS + 1
        # Requests never waited for the scheduler: on a busy machine single ones are slow, not many.
        assert sorted(self.answers)[len(self.answers) * 9 // 10] < 0.5


@contextmanager
def watched(url: str, directory: Path) -> Iterator[Watched]:
    one = Watched(url, directory)
    try:
        yield one
    finally:
        one.stop()


def through(server: Server, proxy: Proxy) -> str:
    return server.url().replace(f":{server.port}/", f":{proxy.port}/")


def execute(server: Server, statement: str) -> list[Any]:
    connection = server.connect() if isinstance(server, PostgreSQLServer) else server.connect("test")
    try:
        cursor = connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


# -- one test per trouble ----------------------------------------------------------------------------


def test_ticks_wait_for_a_server_that_was_killed_and_started_again(server: Server, tmp_path: Path) -> None:
    with watched(server.url(), tmp_path) as one:
        one.start().goes_on()
        server.kill()
        one.wait_away()
        threading.Event().wait(1.0)
        server.start()
        one.goes_on(3)
        assert one.unwell() == []
        one.judge()


def test_ticks_wait_for_a_server_that_is_away_at_start_up(server: Server, tmp_path: Path) -> None:
    server.kill()
    try:
        with watched(server.url(), tmp_path) as one:
            one.start().wait_away()
            threading.Event().wait(0.5)
            server.start()
            one.goes_on(3)
            assert one.unwell() == []
            one.judge()
    finally:
        if server._process is None:
            server.start()


def test_connections_that_are_reset_in_mid_statement_cost_no_tick(server: Server, tmp_path: Path) -> None:
    proxy = Proxy(server.port)
    with watched(through(server, proxy), tmp_path) as one:
        one.start().goes_on()
        for _ in range(15):
            proxy.cut()
            threading.Event().wait(0.13)
        one.goes_on(2)
        assert one.unwell() == []
        one.judge()
    proxy.close()


def test_answers_that_are_lost_after_the_server_did_its_work_cost_no_tick(
    server: Server, tmp_path: Path
) -> None:
    proxy = Proxy(server.port)
    with watched(through(server, proxy), tmp_path) as one:
        one.start().goes_on()
        for _ in range(15):
            proxy.swallow(1)
            threading.Event().wait(0.17)
        proxy.swallow(0)
        one.goes_on(2)
        assert proxy.swallowed >= 8
        assert one.unwell() == []
        one.judge()
    proxy.close()


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_terminated_backends_cost_no_tick(server: Server, tmp_path: Path) -> None:
    with watched(server.url(), tmp_path) as one:
        one.start().goes_on()
        ended = 0
        for _ in range(8):
            found = execute(
                server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'test'"
            )
            ended += len(found)
            threading.Event().wait(0.2)
        one.goes_on(2)
        assert ended >= 8
        assert one.unwell() == []
        one.judge()


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_ticks_wait_for_a_database_that_is_read_only_for_a_while(server: Server, tmp_path: Path) -> None:
    terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'test'"
    with watched(server.url(), tmp_path) as one:
        one.start().goes_on()
        execute(server, "ALTER DATABASE test SET default_transaction_read_only = on")
        execute(server, terminate)
        try:
            one.wait_away()
            threading.Event().wait(1.0)
        finally:
            execute(server, "ALTER DATABASE test RESET default_transaction_read_only")
            execute(server, terminate)
        one.goes_on(3)
        assert one.unwell() == []
        one.judge()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_server_that_drops_idle_connections_costs_no_tick(server: Server, tmp_path: Path) -> None:
    execute(server, "SET GLOBAL wait_timeout = 1")
    try:
        with watched(server.url(), tmp_path) as one:
            one.app.config["SINGLEJOB_POLL_INTERVAL"] = 0.2
            one.start().goes_on()
            engine = engine_of(one.app)
            assert engine is not None
            # Connections that nobody used for longer than the server keeps them.
            one.jobs.shutdown()
            threading.Event().wait(2.5)
            one.jobs.start(force=True)
            one.goes_on(3)
            assert one.unwell() == []
            one.judge()
    finally:
        execute(server, "SET GLOBAL wait_timeout = 28800")


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_database_session_in_another_zone_changes_no_tick(server: Server, tmp_path: Path) -> None:
    execute(server, "ALTER DATABASE test SET timezone = 'Asia/Kathmandu'")
    try:
        with watched(server.url(), tmp_path) as one:
            one.start().goes_on(3)
            assert abs(one.ticks[-1][0] / 1000 - time.time()) < 60
            assert one.unwell() == []
            one.judge()
    finally:
        execute(server, "ALTER DATABASE test RESET timezone")


@long
def test_ticks_wait_for_a_server_that_says_nothing(server: Server, tmp_path: Path) -> None:
    with watched(server.url(), tmp_path) as one:
        one.start().goes_on()
        began = time.monotonic()
        server.freeze()
        try:
            one.wait_away()
            # Silence is cut by a watch of its own: it counts as away within ten seconds.
            assert time.monotonic() - began < 15
            threading.Event().wait(1.0)
        finally:
            server.thaw()
        one.goes_on(3)
        assert one.unwell() == []
        one.judge()


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=long)])
def test_ticks_wait_for_a_sqlite_file_that_another_program_locks(tmp_path: Path, seconds: int) -> None:
    path = tmp_path / "store.sqlite3"
    with watched(f"sqlite:///{path}", tmp_path) as one:
        one.start().goes_on()
        other = sqlite3.connect(path, isolation_level=None, timeout=30)
        other.execute("BEGIN EXCLUSIVE")
        seen = len(one.ticks)
        threading.Event().wait(seconds)
        assert len(one.ticks) <= seen + 1
        other.execute("ROLLBACK")
        other.close()
        one.goes_on(3)
        assert one.unwell() == []
        one.judge()
