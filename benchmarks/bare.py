"""The bare driver doing what the store does: the very statements of a claim and its release, without the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import create_engine

from flask_singlejob.records import ClaimKey, ClaimRequest, new_id
from flask_singlejob.stores import open_store
from flask_singlejob.stores.base import Store
from flask_singlejob.stores.sql_ready import Ready

__all__ = ["BareClaims", "claim_and_release", "connect", "open_bench_store"]

CLUSTER = "bench"


def claim_and_release(store: Store, key: ClaimKey, tick: int, seen: int) -> None:
    """Claim a tick by the store, and release it."""
    request = ClaimRequest(holder=new_id(), lease_ms=30_000, tick=tick, seen_resolved=seen)
    outcome = store.claim(key, request)
    assert outcome.won
    assert outcome.row.holder is not None
    assert store.release(key, outcome.row.holder, outcome.row.token)


def connect(url: str) -> Any:
    """Return a connection of the driver that commits each statement by itself and prepares none."""
    connection = create_engine(url, isolation_level="AUTOCOMMIT").raw_connection()
    driver: Any = connection.driver_connection
    if hasattr(driver, "prepare_threshold"):
        # The store prepares nothing, so that it passes a pooler in transaction mode; nor does the driver.
        driver.prepare_threshold = None
    return connection


class BareClaims:
    """Claims and releases one row by the driver's cursor, again and again.

    :param store: makes the row and shows, once, which statements it sends.
    :param tick: the newest settled tick of the row, UTC milliseconds; the one after it is used up here.
    """

    def __init__(self, store: Store, key: ClaimKey, url: str, tick: int) -> None:
        self.tick = tick + 1
        sent: list[tuple[str, Any]] = []
        parameters_of = Ready.parameters

        def record(ready: Ready, values: Mapping[str, Any]) -> Any:
            parameters = parameters_of(ready, values)
            sent.append((ready.text, parameters))
            return parameters

        Ready.parameters = record  # type: ignore[method-assign, assignment]
        try:
            claim_and_release(store, key, self.tick, tick)
        finally:
            Ready.parameters = parameters_of  # type: ignore[method-assign]
        self.statements = len(sent)
        # What MySQL is asked between the two belongs to the claim.
        self._claiming, self._releasing = sent[:-1], sent[-1:]
        self._recorded = (*_recorded(sent, key), self.tick)
        self._now: dict[Any, Any] = {}
        self._connection = connect(url)
        self._cursor = self._connection.cursor()

    def claim(self, tick: int) -> float:
        """Claim a tick.

        :returns: how many seconds it took.
        """
        holder, _, recorded_tick = self._recorded
        self._now = {holder: new_id(), recorded_tick: tick, recorded_tick - 1: self.tick}
        self.tick = tick
        begun = time.monotonic()
        changed = self._send(self._claiming)
        taken = time.monotonic() - begun
        assert changed >= 1, "the bare driver's claim changed nothing"
        return taken

    def release(self) -> None:
        """Release what was claimed last."""
        assert self._send(self._releasing) == 1, "the bare driver's release changed nothing"

    def _send(self, statements: list[tuple[str, Any]]) -> int:
        changed = 0
        cursor, now = self._cursor, self._now
        for statement, parameters in statements:
            cursor.execute(statement, _replaced(parameters, now))
            if cursor.description:
                names = [column[0] for column in cursor.description]
                row = cursor.fetchone()
                if row is not None and "token" in names:
                    now[self._recorded[1]] = row[names.index("token")]
            changed += max(cursor.rowcount, 0)
        return changed

    def close(self) -> None:
        """Close the connection."""
        self._cursor.close()
        self._connection.close()


def _recorded(sent: list[tuple[str, Any]], key: ClaimKey) -> tuple[str, int]:
    """Return holder and token of the recorded claim: what the release names."""
    claim, release = (set(p.values() if isinstance(p, dict) else p) for p in (sent[0][1], sent[-1][1]))
    row_id = key.digest(CLUSTER)
    (holder,) = (v for v in claim & release if isinstance(v, str) and len(v) == 32 and v != row_id)
    return holder, max(v for v in release - claim if isinstance(v, int))


def _replaced(parameters: Any, now: dict[Any, Any]) -> Any:
    if isinstance(parameters, dict):
        return {name: now.get(value, value) for name, value in parameters.items()}
    return tuple(now.get(value, value) for value in parameters)


def open_bench_store(url: str) -> Store:
    """Return a store of a cluster of the benchmarks' own, its tables made."""
    store = open_store(url, cluster=CLUSTER)
    store.create()
    return store
