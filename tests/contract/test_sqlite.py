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
from flask_singlejob.stores import open_store, sql_gateway
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


def take(store: SqlStore, key: ClaimKey = KEY, **more: Any) -> Any:
    return store.claim(key, ClaimRequest(holder=new_id(), lease_ms=60_000, **more))


def pragma(store: SqlStore, name: str) -> Any:
    return store._gate.call(
        "test", lambda session: session.connection.exec_driver_sql(f"PRAGMA {name}").scalar()
    )


def test_file_is_safe_against_power_failures_and_lets_readers_through(store: SqlStore) -> None:
    assert pragma(store, "journal_mode") == "wal"
    assert pragma(store, "synchronous") == 2


def locked(path: Path) -> sqlite3.Connection:
    """Lock a file against writes, from a connection that is not the store's."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    return other


def test_locked_file_fails_writes_and_lets_readers_through(store: SqlStore, path: Path) -> None:
    store.ensure([KEY])
    other = locked(path)
    assert store.poll().held == ()
    with pytest.raises(StoreError, match="database is locked"):
        store.put("k", "a", {})
    other.execute("ROLLBACK")
    other.close()
    assert take(store).won
    assert store.put("k", "a", {}) is not None


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("made", [True, False], ids=["a row", "no row"])
def test_claim_of_a_row_that_nobody_took_fails_when_the_file_is_locked(
    store: SqlStore, path: Path, made: bool, slot: int
) -> None:
    """Not won would mean that somebody else has it."""
    if made:
        store.ensure([KEY, KEY.with_slot(slot)])
    other = locked(path)
    with pytest.raises(StoreError, match=r"claim: .*database is locked"):
        take(store, slot=slot)
    other.execute("ROLLBACK")
    other.close()
    assert take(store, slot=slot).won


@pytest.mark.parametrize("slot", [0, 1])
def test_claim_is_not_won_behind_a_lock_when_somebody_else_took_the_row(
    store: SqlStore, path: Path, slot: int
) -> None:
    held = take(store, slot=slot)
    other = locked(path)
    outcome = take(store, slot=slot)
    assert not outcome.won
    assert slot or outcome.row == held.row
    other.execute("ROLLBACK")
    other.close()


def test_claim_is_not_won_behind_a_lock_when_its_tick_is_settled_early_or_held_back(
    store: SqlStore, path: Path
) -> None:
    now = store.poll().now
    job, kept = ClaimKey("job", "nightly"), ClaimKey("lock", "kept")
    resolved = store.ensure([job])[job].resolved
    first = take(store, kept, hold_ms=60_000)
    assert store.release(kept, first.row.holder, first.row.token)
    other = locked(path)
    assert not take(store, job, tick=resolved, seen_resolved=resolved).won
    assert not take(store, job, tick=now + 3_600_000, seen_resolved=resolved).won
    assert not take(store, job, tick=resolved + 1, seen_resolved=resolved - 1).won
    assert not take(store, job, tick=resolved + 1, rerun=True).won
    assert not take(store, kept).won
    with pytest.raises(StoreError):
        take(store, job, tick=resolved + 1, seen_resolved=resolved)
    other.execute("ROLLBACK")
    other.close()


def test_claim_waits_for_a_lock_that_ends_soon(store: SqlStore, path: Path) -> None:
    store.ensure([KEY])
    other = locked(path)
    # Longer than one try, shorter than a verb tries.
    timer = threading.Timer(1.0, lambda: other.execute("ROLLBACK"))
    timer.start()
    assert take(store).won
    timer.join()
    other.close()


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_every_verb_on_a_locked_file_answers_in_time(
    path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where readers wait for writers, and whatever the threads before it waited for."""
    monkeypatch.setattr(sql_gateway, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(sql_gateway, "_CONFLICT_SECONDS", 1.0)
    monkeypatch.setattr(sql_gateway, "_prepare_sqlite", lambda connection: 30_000)
    store = open_store(f"sqlite:///{path}", options={"connect_args": {"timeout": 30}})
    store.create()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(f"PRAGMA journal_mode = {mode}")
    other.execute("BEGIN EXCLUSIVE")
    times: list[float] = []

    def call(number: int) -> None:
        started = time.monotonic()
        with pytest.raises(StoreError, match="database is locked"):
            store.claim(ClaimKey("lock", "a"), ClaimRequest(holder=new_id(), lease_ms=9, slot=number % 2))
        times.append(time.monotonic() - started)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The limit, and what a busy machine adds to it; a second wait of the driver's would be 28 s more.
    assert len(times) == 4
    assert max(times) < 12
    other.execute("ROLLBACK")
    other.close()
    assert store.put("k", "a", {}) is not None
    store.close()


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
