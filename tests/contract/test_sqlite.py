"""What is SQLite's own: one writer at a time, a file that others may hold, move or delete."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob.errors import StoreError
from flask_singlejob.records import ClaimKey, ClaimRequest, RunStatus, new_id
from flask_singlejob.stores import open_store
from flask_singlejob.stores.sql import SqlStore
from flask_singlejob.stores.sql_gateway import Session
from flask_singlejob.stores.sql_ready import Ready

KEY = ClaimKey("lock", "a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    store = open_store(f"sqlite:///{path}", options={"connect_args": {"timeout": 0.2}})
    assert isinstance(store, SqlStore)
    store.create()
    yield store
    store.close()


def take(store: SqlStore) -> Any:
    return store.claim(KEY, ClaimRequest(holder=new_id(), lease_ms=60_000))


def pragma(store: SqlStore, name: str) -> Any:
    return store._gate.call(
        "test", lambda session: session.connection.exec_driver_sql(f"PRAGMA {name}").scalar()
    )


def test_file_is_safe_against_power_failures_and_lets_readers_through(store: SqlStore) -> None:
    assert pragma(store, "journal_mode") == "wal"
    assert pragma(store, "synchronous") == 2


def test_locked_file_lets_no_claim_through_and_fails_other_writes(store: SqlStore, path: Path) -> None:
    store.ensure([KEY])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    outcome = take(store)
    assert not outcome.won
    assert outcome.row.holder is None
    assert store.poll().held == ()
    with pytest.raises(StoreError, match="database is locked"):
        store.put("k", "a", {})
    other.execute("ROLLBACK")
    other.close()
    assert take(store).won
    assert store.put("k", "a", {}) is not None


def test_write_waits_for_another_that_ends_soon(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    store.create()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.5, lambda: other.execute("ROLLBACK"))
    timer.start()
    assert store.put("k", "a", {}) is not None
    timer.join()
    other.close()
    store.close()


def test_replaced_file_is_noticed(store: SqlStore, path: Path) -> None:
    assert take(store).won
    for one in path.parent.glob("jobs.db*"):
        one.unlink()
    with pytest.raises(StoreError, match="init-db"):
        store.poll()
    store.create()
    assert store.poll().held == ()
    assert take(store).won


def test_closed_store_leaves_one_file(store: SqlStore, path: Path) -> None:
    take(store)
    store.close()
    assert [one.name for one in path.parent.iterdir()] == ["jobs.db"]


def test_old_traces_are_swept(store: SqlStore) -> None:
    store.put("k", "a", {})
    store.delete("k", "a")
    assert [doc.deleted for doc in store.docs("k", since=1)] == [True]
    table = store._tables.documents.name
    store._gate.call(
        "test",
        lambda session: session.connection.exec_driver_sql(
            f"UPDATE {table} SET updated_ms = updated_ms - 90000000"
        ),
    )
    fresh = open_store(f"sqlite:///{store._target.path}")
    fresh.put("k", "b", {})
    assert [doc.id for doc in fresh.docs("k", since=1)] == ["b"]
    fresh.close()


def test_a_dead_slots_token_is_not_above_its_jobs_own_though_the_clock_moves_on_between_the_two(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next claim's token is taken from the job's own row: it has to be greater than the dead one's."""
    execute = Session.execute

    def slowly(session: Session, *given: Any) -> Any:
        result = execute(session, *given)
        time.sleep(0.005)
        return result

    store.ensure([KEY])
    held = store.claim(KEY, ClaimRequest(holder=new_id(), lease_ms=30_000, slot=1)).row
    assert held.holder is not None
    monkeypatch.setattr(Session, "execute", slowly)
    assert store.expire(held.key, held.holder, held.token, forced=True)
    tokens = {row.key.slot: row.token for row in store.rows([KEY, held.key])}
    assert held.token < tokens[1] <= tokens[0]


def test_no_question_walks_through_a_whole_table(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy import event

    seen: list[tuple[str, Any]] = []
    event.listen(
        store._gate.engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, parameters, context, many: seen.append((statement, parameters)),
    )
    parameters_of = Ready.parameters

    def recorded(ready: Ready, values: Any) -> Any:
        seen.append((ready.text, parameters_of(ready, values)))
        return seen[-1][1]

    monkeypatch.setattr(Ready, "parameters", recorded)
    store.poll()
    store.rows(kind="job")
    store.ensure([KEY])
    store.runs(limit=10)
    store.runs("a", before=(5, "x"))
    store.runs("a", status=[RunStatus.LOST])
    store.runs(status=[RunStatus.LOST, RunStatus.FAILED], since=3)
    store.prune(before=10, keep=5)
    store.docs("k")
    store.docs("k", since=3)
    store.docs_of(["k", "l"])
    store.docs_of(["k", "l"], since=3)
    connection = sqlite3.connect(str(store._target.path))
    checked = 0
    for statement, parameters in seen:
        if statement.startswith("SELECT"):
            plan = list(connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))
            walks = [line for *_, line in plan if line.startswith("SCAN") and "singlejob_" in line]
            assert not walks, (statement, plan)
            # What is sorted is a page that was found already, never the answers of an index.
            pages = {parent for _, parent, _, line in plan if line.startswith("SCAN")}
            sorts = {parent for _, parent, _, line in plan if "TEMP B-TREE FOR ORDER BY" in line}
            assert sorts <= pages, (statement, plan)
            used = " ".join(line for *_, line in plan)
            for condition, index in (
                ("holder > ", "claims_held"),
                ("claims.kind =", "claims_kind"),
                ("job_key =", "runs_job"),
                ("runs.status =", "runs_status"),
                ("documents.kind IN", "documents_kind"),
            ):
                assert condition not in statement or index in used, (statement, plan)
            checked += 1
    connection.close()
    assert checked >= 12
