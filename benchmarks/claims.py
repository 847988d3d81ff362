"""Claim and release per second, beside the bare driver that sends the very same statements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

from sqlalchemy import create_engine

from flask_singlejob.records import ClaimKey, ClaimRequest, new_id
from flask_singlejob.stores import open_store
from flask_singlejob.stores.sql_ready import Ready

from .report import Row

Sent = list[tuple[str, Any]]


def measure(name: str, url: str, blocks: int = 6, size: int = 200) -> Row:
    """Measure in turns, block by block."""
    store = open_store(url, cluster="bench")
    store.create()
    key = ClaimKey("job", "bench")
    first = store.ensure([key])[key].resolved
    while store.poll().now < first + 2 * blocks * size + 10:
        time.sleep(0.05)  # so many ticks, a millisecond apart, have to be due
    tick = first

    def by_store() -> None:
        nonlocal tick
        tick += 1
        request = ClaimRequest(holder=new_id(), lease_ms=30_000, tick=tick, seen_resolved=tick - 1)
        outcome = store.claim(key, request)
        assert outcome.won
        assert outcome.row.holder is not None
        assert store.release(key, outcome.row.holder, outcome.row.token)

    by_store()
    sent: Sent = []

    parameters_of = Ready.parameters

    def record(ready: Ready, values: Mapping[str, Any]) -> Any:
        parameters = parameters_of(ready, values)
        sent.append((ready.text, parameters))
        return parameters

    with patch.object(Ready, "parameters", record):
        by_store()
    holder, token = _recorded(sent)
    recorded_tick = tick
    connection = create_engine(url, isolation_level="AUTOCOMMIT").raw_connection()
    driver: Any = connection.driver_connection
    if hasattr(driver, "prepare_threshold"):
        # The store prepares nothing, so that it passes a pooler in transaction mode; nor does the driver.
        driver.prepare_threshold = None
    cursor = connection.cursor()

    def by_driver() -> None:
        nonlocal tick
        tick += 1
        now: dict[Any, Any] = {holder: new_id(), recorded_tick: tick, recorded_tick - 1: tick - 1}
        changed = 0
        for statement, parameters in sent:
            cursor.execute(statement, _replaced(parameters, now))
            if cursor.description:
                names = [column[0] for column in cursor.description]
                row = cursor.fetchone()
                if row is not None and "token" in names:
                    now[token] = row[names.index("token")]
            changed += max(cursor.rowcount, 0)
        assert changed >= 2, "the bare driver's statements changed nothing"

    ratios = []
    mine = other = 0.0
    for _ in range(blocks):
        ours, bare = _timed(by_store, size), _timed(by_driver, size)
        ratios.append(bare / ours)
        mine, other = max(mine, size / ours), max(other, size / bare)
    cursor.close()
    connection.close()
    store.close()
    ratio = statistics.median(ratios)
    return Row(
        f"(c) claim + release, {name}",
        f"{ratio:.2f} of the bare driver's",
        ">= 0.7",
        ratio >= 0.7,
        f"{mine:.0f} per second against {other:.0f}; {len(sent)} statements",
    )


def _timed(call: Callable[[], None], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - begun


def _recorded(sent: Sent) -> tuple[str, int]:
    """Return holder and token of the recorded claim: what the release names."""
    claim, release = (set(p.values() if isinstance(p, dict) else p) for p in (sent[0][1], sent[-1][1]))
    row_id = ClaimKey("job", "bench").digest("bench")
    (holder,) = (v for v in claim & release if isinstance(v, str) and len(v) == 32 and v != row_id)
    return holder, max(v for v in release - claim if isinstance(v, int))


def _replaced(parameters: Any, now: dict[Any, Any]) -> Any:
    if isinstance(parameters, dict):
        return {name: now.get(value, value) for name, value in parameters.items()}
    return tuple(now.get(value, value) for value in parameters)
