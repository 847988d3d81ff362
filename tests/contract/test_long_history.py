"""A long history: it is pruned in small steps, and a tick costs no more with it than without."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from uuid import uuid4

import pytest
from sqlalchemy import text

from flask_singlejob.contract.kit import record_of
from flask_singlejob.records import ClaimKey, ClaimRequest, RunStatus, new_id
from flask_singlejob.stores import open_store
from flask_singlejob.stores.sql import SqlStore
from tests.services import shared_postgresql

KEY = ClaimKey("job", "busy")
#: A million with SINGLEJOB_TEST_LONG=1.
ROWS = 1_000_000 if os.environ.get("SINGLEJOB_TEST_LONG") else 40_000


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    if request.param == "postgresql":
        url = f"postgresql+psycopg://{shared_postgresql()}"
    store = open_store(url, table_prefix=f"h{uuid4().hex[:8]}_", cluster="c")
    assert isinstance(store, SqlStore)
    store.create()
    yield store
    store._tables.metadata.drop_all(store._gate.engine)
    store.close()


def fill(store: SqlStore, rows: int) -> None:
    """Multiply one record of the job by the store's own means."""
    store.add_run(record_of(KEY.name, store.poll().now - 1_000_000_000))
    numbers = "SELECT generate_series(1, :rows) AS n"
    name = "md5(n::text)"
    if store._gate.engine.dialect.name == "sqlite":
        numbers = (
            "WITH RECURSIVE count(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count WHERE n < :rows) "
            "SELECT n FROM count"
        )
        name = "printf('%032d', n)"
    table = store._tables.runs.name
    with store._gate.engine.begin() as connection:
        connection.execute(
            text(
                f"INSERT INTO {table} (id, cluster_id, job_key, at_ms, run_id, cluster, job_id, status, record) "
                f"SELECT {name}, cluster_id, job_key, at_ms + n, {name}, cluster, job_id, status, record "
                f"FROM (SELECT * FROM {table} LIMIT 1) AS one, ({numbers}) AS numbers"
            ),
            {"rows": rows},
        )


def tick_seconds(store: SqlStore, count: int = 15) -> float:
    """Return what a poll, a claim and a release with its record take, at the median."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        store.poll()
        row = store.ensure([KEY])[KEY]
        tick = row.resolved + 1
        while store.poll().now < tick:
            pass
        outcome = store.claim(
            KEY, ClaimRequest(holder=new_id(), lease_ms=60_000, tick=tick, seen_resolved=row.resolved)
        )
        assert outcome.won
        run = record_of(KEY.name, outcome.now, RunStatus.SUCCEEDED, id=outcome.row.holder)
        assert store.release(KEY, outcome.row.holder or "", outcome.row.token, run=run)
        taken.append(time.perf_counter() - began)
    return median(taken)


def test_a_long_history_costs_no_claim_more(store: SqlStore) -> None:
    """A question that walks through the history would be slower by far more than a busy machine is."""
    tick_seconds(store, 3)
    short = tick_seconds(store)
    fill(store, ROWS)
    tick_seconds(store, 3)
    with_history = min(tick_seconds(store) for _ in range(3))
    assert with_history < 5 * short + 0.002
    began = time.perf_counter()
    assert len(store.runs(KEY.name, limit=50)) == 50
    assert time.perf_counter() - began < 1.0


def test_pruning_takes_small_steps_and_lets_claims_through(store: SqlStore) -> None:
    fill(store, ROWS)
    steps = 0
    longest = 0.0
    while steps < 20:
        began = time.perf_counter()
        deleted = store.prune(before=store.poll().now - 1_000, keep=10_000, limit=500)
        longest = max(longest, time.perf_counter() - began)
        assert deleted == 500
        assert tick_seconds(store, 1) < 5.0
        steps += 1
    assert longest < 5.0
