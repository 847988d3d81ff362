"""What the parts of the store contract share: stores that are closed again, and shorthand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Run, RunStatus, from_ms, new_id
from ..stores.base import Store

__all__ = ["JOB", "LOCK", "ContractKit", "record_of"]

JOB = ClaimKey("job", "nightly")
LOCK = ClaimKey("lock", "import")


def record_of(job_id: str, at_ms: int, status: RunStatus = RunStatus.SUCCEEDED, **more: Any) -> Run:
    """Return a record of a job that ended at an instant, UTC milliseconds."""
    more.setdefault("id", new_id())
    return Run(
        job_id=job_id,
        cause="schedule",
        scheduled_at=from_ms(at_ms),
        finished_at=from_ms(at_ms),
        status=status,
        **more,
    )


class ContractKit:
    """The way from a part of the contract to the store under test."""

    #: False when a store that another process makes is another one (memory).
    shared_by_processes = True
    _made: list[Store]
    _cluster: str

    def make_store(self, cluster: str) -> Store:
        """Return a new store of the kind under test; those of one cluster name share what they keep.

        It is called from threads and from forked processes too, and must not have been created: the
        suite calls ``create()``.
        """
        raise NotImplementedError("a subclass of StoreContract has to say how a store is made")

    def pass_time(self, store: Store, until_ms: int) -> None:
        """Return when the store's clock has reached an instant, UTC milliseconds."""
        deadline = time.monotonic() + 30
        while store.poll().now < until_ms:
            assert time.monotonic() < deadline, "the store's clock does not get there"
            time.sleep(0.002)

    def setup_method(self, method: Callable[..., None]) -> None:
        """Give each test a cluster of its own."""
        self._made = []
        self._cluster = f"contract-{new_id()}"

    def teardown_method(self, method: Callable[..., None]) -> None:
        """Close what a test opened."""
        for store in self._made:
            store.close()

    def store(self, cluster: str = "") -> Store:
        """Return a store that is created, of the test's own cluster or one beside it."""
        store = self.make_store(self._cluster + cluster)
        self._made.append(store)
        store.create()
        return store

    # -- shorthand ----------------------------------------------------------------------------

    def row(self, store: Store, key: ClaimKey = JOB) -> ClaimRow:
        """Return a row, made when it is missing."""
        return store.ensure([key])[key]

    def due_tick(self, store: Store, key: ClaimKey = JOB) -> tuple[int, int]:
        """Return a tick of a row that is due now, and the row's ``resolved``."""
        resolved = self.row(store, key).resolved
        tick = resolved + 1
        self.pass_time(store, tick)
        return tick, resolved

    def take(self, store: Store, key: ClaimKey = JOB, lease_ms: int = 60_000, **more: Any) -> ClaimOutcome:
        """Claim a row by hand, or as ``more`` says."""
        return store.claim(key, ClaimRequest(holder=new_id(), lease_ms=lease_ms, **more))

    def take_tick(
        self, store: Store, key: ClaimKey = JOB, lease_ms: int = 60_000, **more: Any
    ) -> ClaimOutcome:
        """Claim the next due tick of a row."""
        tick, resolved = self.due_tick(store, key)
        outcome = self.take(store, key, lease_ms, tick=tick, seen_resolved=resolved, **more)
        assert outcome.won
        return outcome

    def held(self, outcome: ClaimOutcome) -> tuple[ClaimKey, str, int]:
        """Return what names a claim that was won: key, holder, token."""
        assert outcome.won
        assert outcome.row.holder is not None
        return outcome.row.key, outcome.row.holder, outcome.row.token

    def run_of(self, outcome: ClaimOutcome, status: RunStatus = RunStatus.SUCCEEDED, **more: Any) -> Run:
        """Return the record of a claim that was won."""
        key, holder, token = self.held(outcome)
        return record_of(key.name, outcome.now, status, id=holder, token=token, **more)

    def end(self, store: Store, outcome: ClaimOutcome, **more: Any) -> None:
        """Release a claim that is still held."""
        assert store.release(*self.held(outcome), **more)
