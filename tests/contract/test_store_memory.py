"""The store in memory: the contract, by its own clock and by one that stands still."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from flask_singlejob.records import ClaimKey, from_ms, new_id
from flask_singlejob.stores import open_store
from flask_singlejob.stores.base import Store
from flask_singlejob.stores.memory import MemoryStore
from flask_singlejob.testing import FrozenClock, StoreContract


class TestMemoryStore(StoreContract):
    shared_by_processes = False

    def make_store(self, cluster: str) -> Store:
        return open_store("memory://contract", cluster=cluster)


class TestMemoryStoreWithFrozenClock(StoreContract):
    shared_by_processes = False

    @pytest.fixture(autouse=True)
    def clock(self) -> FrozenClock:
        self._clock = FrozenClock()
        return self._clock

    def make_store(self, cluster: str) -> Store:
        return MemoryStore(cluster=cluster, name="frozen", clock=self._clock)

    def pass_time(self, store: Store, until_ms: int) -> None:
        self._clock.move_to(from_ms(max(until_ms, self._clock())))


def test_stores_in_memory_share_by_name_only() -> None:
    name, key = new_id(), ClaimKey("lock", "a")
    one, same = open_store(f"memory://{name}"), open_store(f"memory://{name}")
    others = [open_store("memory://"), open_store("memory://"), open_store(f"memory://{name}", cluster="b")]
    one.ensure([key])
    assert [row.key for row in same.rows()] == [key]
    assert one.identity == same.identity
    assert [other.rows() for other in others] == [[], [], []]
    assert others[0].identity != others[1].identity


def test_traces_are_swept_a_day_after_the_deletion() -> None:
    clock = FrozenClock(datetime(2024, 1, 1, tzinfo=timezone.utc))
    store = MemoryStore(clock=clock)
    store.put("k", "a", {})
    store.delete("k", "a")
    clock.advance(timedelta(hours=23))
    store.put("k", "b", {})
    assert [doc.id for doc in store.docs("k", since=1)] == ["a", "b"]
    clock.advance(2 * 3600)
    store.put("k", "b", {})
    assert [doc.id for doc in store.docs("k", since=1)] == ["b"]


def test_frozen_clock_moves_only_when_told() -> None:
    clock = FrozenClock(datetime(2024, 1, 1, tzinfo=timezone.utc))
    assert clock() == clock() == 1_704_067_200_000
    clock.advance(1.5)
    assert clock.now == datetime(2024, 1, 1, 0, 0, 1, 500_000, tzinfo=timezone.utc)
    clock.move_to(datetime(2030, 1, 1, tzinfo=timezone.utc))
    assert clock.now.year == 2030
    with pytest.raises(ValueError, match="time zone"):
        FrozenClock(datetime(2024, 1, 1))
