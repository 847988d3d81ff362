"""Any order of claim, renew, release, expire, settle and unlock, compared with a model of a few lines.

In memory the clock is moved by the test, so leases end; on the servers they are either very long or over at
once. The model keeps what the contract says of one row; whatever a stale holder tries must leave it as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from flask_singlejob.claims import end_dead_claim
from flask_singlejob.records import ClaimKey, ClaimRequest, ClaimRow, RunStatus, from_ms, new_id
from flask_singlejob.stores import open_store
from flask_singlejob.stores.base import Store
from flask_singlejob.testing import FrozenClock
from tests.services import shared_mariadb, shared_postgresql, shared_redis

KEY = ClaimKey("job", "model")
LONG_MS = 3_600_000


class StoreModel(RuleBasedStateMachine):
    """One row of a store and what it should hold.

    :cvar opened: gives a store; set by each test.
    """

    opened: Callable[[], tuple[Store, FrozenClock | None]]

    def __init__(self) -> None:
        super().__init__()
        self.store, self.clock = type(self).opened()
        #: Every claim there ever was, as (holder, token).
        self.claims: list[tuple[str, int]] = []
        self.holder: tuple[str, int] | None = None
        self.tick: int | None = None
        self.expires = 0
        self.token = 0
        self.rerun: int | None = None
        self.ended: set[str] = set()
        self.lost: set[str] = set()

    @initialize()
    def make(self) -> None:
        self.resolved = self.store.ensure([KEY])[KEY].resolved

    # -- shorthand --------------------------------------------------------------------------------

    def now(self) -> int:
        return self.store.poll().now

    def row(self) -> ClaimRow:
        return self.store.ensure([KEY])[KEY]

    def alive(self) -> bool:
        return self.holder is not None and self.expires > self.now()

    def pick(self, data: Any) -> tuple[str, int]:
        """Return the present claim, a former one, or one that never was."""
        known = [*self.claims[-4:], (new_id(), self.token)]
        if self.holder is not None:
            known += [self.holder] * 3 + [(self.holder[0], self.holder[1] - 1), (new_id(), self.holder[1])]
        found: tuple[str, int] = data.draw(st.sampled_from(known))
        return found

    def free(self) -> None:
        self.holder, self.tick = None, None

    # -- rules ------------------------------------------------------------------------------------

    @rule(
        lease=st.sampled_from([1, LONG_MS]),
        ahead=st.sampled_from([-1, 0, 1, 2, 10_000_000]),
        stale=st.booleans(),
    )
    def claim_tick(self, lease: int, ahead: int, stale: bool) -> None:
        if self.clock is None and ahead in (1, 2):
            self.wait_for(self.resolved + ahead)
        tick, seen = self.resolved + ahead, self.resolved - (1 if stale else 0)
        request = ClaimRequest(
            holder=new_id(),
            lease_ms=lease,
            tick=tick,
            seen_resolved=seen,
            info={"rerun_lost": True, "max_attempts": 3, "cause": "schedule"},
        )
        outcome = self.store.claim(KEY, request)
        may = (
            self.holder is None
            and not stale
            and self.rerun is None
            and self.resolved < tick
            and tick <= outcome.now
        )
        assert outcome.won == may
        if may:
            self.resolved = tick
            self.take(outcome.row, request, tick, lease)

    @rule(lease=st.sampled_from([1, LONG_MS]))
    def claim_by_hand(self, lease: int) -> None:
        request = ClaimRequest(holder=new_id(), lease_ms=lease, info={"cause": "manual"})
        outcome = self.store.claim(KEY, request)
        assert outcome.won == (self.holder is None)
        if outcome.won:
            self.take(outcome.row, request, outcome.row.held_tick or 0, lease)

    @rule(lease=st.sampled_from([1, LONG_MS]), wrong=st.booleans())
    def claim_rerun(self, lease: int, wrong: bool) -> None:
        if self.rerun is None:
            return
        tick = self.rerun + (1 if wrong else 0)
        request = ClaimRequest(
            holder=new_id(),
            lease_ms=lease,
            tick=tick,
            rerun=True,
            info={"rerun_lost": True, "max_attempts": 3, "attempt": 2, "cause": "rerun"},
        )
        outcome = self.store.claim(KEY, request)
        assert outcome.won == (self.holder is None and not wrong)
        if outcome.won:
            self.rerun = None
            self.take(outcome.row, request, tick, lease)

    def take(self, row: ClaimRow, request: ClaimRequest, tick: int, lease: int) -> None:
        assert row.holder == request.holder
        assert row.held_tick == tick
        assert row.token > self.token
        assert row.expires is not None
        self.holder, self.tick, self.token, self.expires = (
            (request.holder, row.token),
            tick,
            row.token,
            row.expires,
        )
        self.claims.append(self.holder)
        if lease == 1:
            self.wait_for(row.expires)

    def wait_for(self, moment: int) -> None:
        if self.clock is not None:
            self.clock.move_to(from_ms(max(moment, self.now())))
        while self.now() < moment:
            pass

    @rule(data=st.data(), lease=st.sampled_from([1, LONG_MS, 2 * LONG_MS]))
    def renew(self, data: Any, lease: int) -> None:
        who = self.pick(data)
        left = self.store.renew(KEY, *who, lease)
        assert (left is not None) == (who == self.holder and self.alive())
        if left is not None:
            assert left >= lease or left > 1
            expires = self.row().expires
            assert expires is not None
            assert expires >= self.expires
            self.expires = expires

    @rule(data=st.data(), further=st.sampled_from([None, 1, 5]))
    def release(self, data: Any, further: int | None) -> None:
        who = self.pick(data)
        may = who == self.holder and self.alive()
        resolved = None if further is None else self.resolved + further
        assert self.store.release(KEY, *who, resolved=resolved, seen_resolved=self.resolved) == may
        if may:
            self.ended.add(who[0])
            self.free()
            self.resolved = self.resolved if resolved is None else resolved

    @rule(data=st.data())
    def expire(self, data: Any) -> None:
        who = self.pick(data)
        may = who == self.holder and not self.alive()
        assert self.store.expire(KEY, *who) == may
        if may:
            self.took_away(who)

    @rule(reason=st.sampled_from(["lease_ended", "process_died", "unlocked"]))
    def end_dead(self, reason: str) -> None:
        row = self.row()
        if row.holder is None:
            return
        forced = reason != "lease_ended"
        may = forced or not self.alive()
        lost = end_dead_claim(self.store, row, now=self.now(), reason=reason, forced=forced)
        assert (lost is not None) == may
        if lost is None:
            return
        assert (lost.id, lost.token, lost.status) == (row.holder, row.token, RunStatus.LOST)
        self.lost.add(lost.id)
        again = reason != "unlocked" and row.info.get("cause") != "manual"
        if again and int(row.info.get("attempt", 1)) < 3:
            self.rerun = row.held_tick
        self.took_away((row.holder, row.token))

    def took_away(self, who: tuple[str, int]) -> None:
        self.ended.add(who[0])
        self.free()
        token = self.row().token
        assert token > self.token
        self.token = token

    @rule(back=st.booleans(), further=st.sampled_from([1, 3]))
    def settle(self, back: bool, further: int) -> None:
        may = self.holder is None
        goal = self.resolved - 1 if back else self.resolved + further
        assert not self.store.settle(KEY, self.resolved + 7, goal)
        assert self.store.settle(KEY, self.resolved, goal) == may
        if may:
            self.resolved = goal

    @rule(milliseconds=st.sampled_from([1, 1_000, LONG_MS, 2 * LONG_MS]))
    def pass_time(self, milliseconds: int) -> None:
        if self.clock is not None:
            self.clock.move_to(from_ms(self.now() + milliseconds))

    # -- what must always hold -------------------------------------------------------------------------

    @invariant()
    def the_row_is_as_the_model_says(self) -> None:
        row = self.row()
        held = None if row.holder is None else (row.holder, row.token)
        assert held == self.holder
        assert row.token == self.token
        assert row.resolved == getattr(self, "resolved", row.resolved)
        assert row.held_tick == self.tick
        assert row.rerun_tick == self.rerun
        assert row.expires == (self.expires if self.holder else None)

    @invariant()
    def tokens_grow(self) -> None:
        tokens = [token for _, token in self.claims]
        assert tokens == sorted(set(tokens))

    @invariant()
    def each_lost_run_is_in_the_history_once(self) -> None:
        found = [run.id for run in self.store.runs("model", limit=1000)]
        assert sorted(found) == sorted(self.lost)

    def teardown(self) -> None:
        self.store.close()


def play(opened: Callable[[], tuple[Store, FrozenClock | None]], *, examples: int, steps: int = 25) -> None:
    """Try many orders of the rules on stores of one kind."""
    machine = type("Played", (StoreModel,), {"opened": staticmethod(opened)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
        ),
    )


def shared(url: str) -> Callable[[], tuple[Store, None]]:
    """Open each time the same place, as another cluster of it."""
    prefix = f"m{uuid4().hex[:8]}_"

    def opened() -> tuple[Store, None]:
        store = open_store(url, cluster=uuid4().hex, table_prefix=prefix)
        store.create()
        return store, None

    return opened


def drop(url: str, opened: Callable[[], tuple[Store, Any]]) -> None:
    store, _ = opened()
    tables = getattr(store, "_tables", None)
    if tables is not None:
        tables.metadata.drop_all(store._gate.engine)  # type: ignore[attr-defined]
    store.close()


def test_any_order_of_verbs_on_the_store_in_memory_goes_by_the_model() -> None:
    def opened() -> tuple[Store, FrozenClock]:
        clock = FrozenClock()
        return open_store("memory://", options={"clock": clock}), clock

    play(opened, examples=100, steps=40)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"])
def test_any_order_of_verbs_on_a_store_of_its_own_clock_goes_by_the_model(engine: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        urls: dict[str, Callable[[], str]] = {
            "sqlite": lambda: f"sqlite:///{Path(directory) / 'store.sqlite3'}",
            "postgresql": lambda: f"postgresql+psycopg://{shared_postgresql()}",
            "mariadb": lambda: f"mysql+pymysql://{shared_mariadb()}",
            "redis": shared_redis,
        }
        url = urls[engine]()
        opened = shared(url)
        try:
            play(opened, examples=8)
        finally:
            drop(url, opened)
