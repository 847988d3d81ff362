"""Ticks that nobody could run in time: run late, each in order or as one, or recorded as missed with their reason."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob import current_run
from flask_singlejob.clock import steady_seconds
from flask_singlejob.records import ClaimKey, Run, RunStatus
from flask_singlejob.stores.memory import MemoryStore
from tests.unit.rig import Host, SteppedClock, TroubledStore, claim_as_stranger, hosts_on, wait_until

KEY = ClaimKey("job", "job")


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore(clock=SteppedClock())


@pytest.fixture
def clock(store: TroubledStore) -> SteppedClock:
    assert isinstance(store.clock, SteppedClock)
    return store.clock


def ms(run: Run) -> tuple[int, int]:
    """Return first and last tick of a record, UTC milliseconds."""
    last = run.last_scheduled_at or run.scheduled_at
    return round(run.scheduled_at.timestamp() * 1000), round(last.timestamp() * 1000)


def tick_now() -> int:
    return round(current_run.scheduled_at.timestamp() * 1000)


def settled_before(host: Host, store: MemoryStore, milliseconds: int) -> int:
    """Pin the host's jobs as if they had last run so long ago; return the store's clock."""
    now = store.poll().now
    store.settle(KEY, store.ensure([KEY])[KEY].resolved, now - milliseconds)
    # A definition that was pinned then too.
    host.jobs.init_app(host.app)
    definition = host.engine.catalog.defined["job"]
    fields = {**definition.fields, "start": now - 2 * milliseconds}
    since = now - 2 * milliseconds
    body = {"job_id": "job", "fields": fields, "first": None, "since": since, "retired": None, "by": "one"}
    assert store.put("definition", definition.fingerprint, body, expect=0)
    return now


def test_late_ticks_run_each_in_its_order_without_coalesce(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    ticks: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", minutes=1, id="job", coalesce=False, misfire_grace_time=3600)
        def job() -> None:
            ticks.append(tick_now())
            # Long enough for nothing, so that none of them falls due while another one runs.

        host.start()
        wait_until(lambda: store.ensure([KEY]), "it is scheduled")
        clock.ahead_ms += 5 * 60_000
        wait_until(lambda: len(ticks) >= 5, "all five ran")
        host.stop()
    assert [later - earlier for earlier, later in pairwise(ticks)] == [60_000] * (len(ticks) - 1)
    assert {run.status for run in store.runs("job")} == {RunStatus.SUCCEEDED}


def test_what_falls_due_while_late_ticks_are_run_in_order_waits_for_its_turn(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    ticks: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", minutes=1, id="job", coalesce=False, misfire_grace_time=3600)
        def job() -> None:
            ticks.append(tick_now())
            if len(ticks) == 1:
                clock.ahead_ms += 60_000

        host.start()
        clock.ahead_ms += 3 * 60_000
        wait_until(lambda: len(ticks) >= 4, "the three late ones ran, and the one that fell due meanwhile")
        host.stop()
    assert [later - earlier for earlier, later in pairwise(ticks)] == [60_000] * (len(ticks) - 1)
    assert store.runs("job", status=[RunStatus.SKIPPED, RunStatus.MISSED]) == []


def test_late_ticks_within_the_grace_time_run_as_one_and_those_beyond_it_are_one_missed_record(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    stood: list[tuple[int, int]] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", minutes=1, id="job", misfire_grace_time=120)
        def job() -> None:
            stood.append((tick_now(), current_run.stood_for))

        host.start()
        anchor = store.ensure([KEY])[KEY].resolved
        clock.ahead_ms += 10 * 60_000 + 30_000
        wait_until(lambda: stood, "the job ran")
        (missed,) = store.runs("job", status=[RunStatus.MISSED])
        host.stop()
    first, last = ms(missed)
    tick, count = stood[0]
    assert missed.count + count == 10
    assert (missed.count, count) == (8, 2)
    assert last == first + 7 * 60_000
    assert tick == last + 2 * 60_000
    assert 0 < first - anchor <= 60_000 + 5_000
    # Nobody was away and nobody was missing: the ticks were late.
    assert missed.reason == "late"


@pytest.mark.parametrize("when", ["while it ran", "at its start"])
def test_ticks_that_an_outage_took_are_recorded_as_missed_for_that_reason(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path, when: str
) -> None:
    ran: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.5, id="job", misfire_grace_time=1)
        def job() -> None:
            ran.append(tick_now())

        if when == "at its start":
            settled_before(host, store, 500)
            store.away = True
            host.jobs.start(force=True)
            wait_until(lambda: host.engine.outages.away_seconds, "the store is missed")
        else:
            host.start()
            wait_until(lambda: ran, "the job runs")
            store.away = True
        threading.Event().wait(3.0)
        seen = len(ran)
        store.away = False
        wait_until(lambda: len(ran) > seen, "the job runs again")
        missed = store.runs("job", status=[RunStatus.MISSED])
        host.stop()
    assert [run.reason for run in missed][-1] == "store_away"
    assert sum(run.count for run in missed) >= 2
    assert max(Counter(ran).values()) == 1


def test_ticks_without_any_owner_are_recorded_as_missed_for_that_reason(
    store: TroubledStore, tmp_path: Path
) -> None:
    ran: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", minutes=1, id="job", misfire_grace_time=90)
        def job() -> None:
            ran.append(tick_now())

        settled_before(host, store, 20 * 60_000)
        host.start()
        wait_until(lambda: ran, "the job ran late")
        (missed,) = store.runs("job", status=[RunStatus.MISSED])
        host.stop()
    assert missed.reason == "no_owner"
    assert 18 <= missed.count <= 20


def test_ticks_that_a_held_job_could_not_run_for_longer_than_its_grace_time_are_skipped(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    ran: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", minutes=1, id="job", misfire_grace_time=60)
        def job() -> None:
            ran.append(tick_now())

        host.start()
        held = claim_as_stranger(store, KEY, tick=None, lease_ms=3_600_000, cause="manual")
        assert held.won
        wait_until(lambda: host.engine.term.planner.plans()[0].held_from, "it is seen to be held")  # type: ignore[union-attr]
        clock.ahead_ms += 10 * 60_000
        assert store.release(KEY, held.row.holder or "", held.row.token)
        wait_until(lambda: ran, "the last tick ran late")
        (skipped,) = store.runs("job", status=[RunStatus.SKIPPED])
        host.stop()
    assert skipped.reason == "held"
    assert skipped.count >= 8
    assert store.runs("job", status=[RunStatus.MISSED]) == []


def test_many_jobs_that_owe_a_run_after_weeks_run_once_each_and_not_all_at_once(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    began: dict[str, list[float]] = {}
    with hosts_on(store, tmp_path) as make:
        host = make("one")
        for number in range(6):

            @host.jobs.task("interval", hours=1, id=f"job{number}", catch_up=True)
            def job() -> None:
                began.setdefault(current_run.job_id, []).append(steady_seconds())
                assert current_run.stood_for >= 500

        host.start()
        clock.ahead_ms += 21 * 86_400_000
        wait_until(lambda: len(began) == 6, "each ran")
        host.stop()
    assert {len(times) for times in began.values()} == {1}
    order = sorted(times[0] for times in began.values())
    assert order[-1] - order[0] > 0.3
    assert store.runs(status=[RunStatus.MISSED]) == []


def test_a_tick_that_waited_for_a_busy_pool_runs_late_and_once(store: TroubledStore, tmp_path: Path) -> None:
    go_on = threading.Event()
    ran: Counter[str] = Counter()
    with hosts_on(store, tmp_path) as make:
        host = make("one", SCHEDULER_EXECUTORS={"default": {"type": "threadpool", "max_workers": 1}})

        @host.jobs.task("date", id="long")
        def long() -> None:
            go_on.wait(20)

        host.start()
        wait_until(lambda: store.ensure([ClaimKey("job", "long")])[ClaimKey("job", "long")].holder, "it runs")

        @host.jobs.task("date", id="short")
        def short() -> None:
            ran["short"] += 1

        threading.Event().wait(0.7)
        # No claim is made before there is a thread: another host could run it.
        assert store.ensure([ClaimKey("job", "short")])[ClaimKey("job", "short")].token == 0
        go_on.set()
        wait_until(lambda: store.runs("short"), "it ran late")
    assert ran == {"short": 1}


def test_two_hundred_jobs_due_at_once_run_once_each_on_two_hosts_of_ten_threads(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    ran: Counter[str] = Counter()
    by: Counter[Any] = Counter()
    lock = threading.Lock()
    with hosts_on(store, tmp_path) as make:
        hosts = [make(name) for name in ("one", "two")]
        for host in hosts:
            for number in range(200):

                @host.jobs.task("interval", hours=1, id=f"job{number}")
                def job() -> None:
                    with lock:
                        ran[current_run.job_id] += 1
                        by[current_run.host] += 1
                    threading.Event().wait(0.01)

        for host in hosts:
            host.start()
        clock.ahead_ms += 3_600_000
        wait_until(lambda: len(store.runs(limit=1000)) >= 200, "all have run", seconds=60)
        for host in hosts:
            host.stop()
    assert len(ran) == 200
    assert set(ran.values()) == {1}
    assert set(by) == {"one", "two"}
    assert {run.status for run in store.runs(limit=1000)} == {RunStatus.SUCCEEDED}


def test_a_store_whose_clock_steps_by_an_hour_runs_the_next_tick_when_it_is_due(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    """No wait that was planned by the old clock keeps a tick back; none that ran runs again."""
    ran: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", minutes=20, id="job")
        def job() -> None:
            ran.append(tick_now())

        host.start()
        threading.Event().wait(0.3)
        assert ran == []
        clock.ahead_ms += 3_600_000
        wait_until(lambda: ran, "the job runs within a poll")
        clock.ahead_ms -= 3_600_000
        # A server to which the store failed over is behind: what ran stays settled.
        threading.Event().wait(0.5)
        assert len(ran) == 1
        clock.ahead_ms += 3_600_000 + 20 * 60_000
        wait_until(lambda: len(ran) == 2, "the job goes on")
        host.stop()
    assert ran[1] > ran[0]


def test_a_host_that_is_ahead_never_claims_a_tick_of_the_future(
    store: TroubledStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.5, id="job")
        def job() -> None:
            early.append(store.poll().now - tick_now())

        host.start()
        wait_until(lambda: early, "it runs")
        # As a timer that fires early, or a clock that was estimated wrongly.
        base = host.engine.clock._base
        assert base is not None
        host.engine.clock._base = base + 300
        seen = len(early)
        wait_until(lambda: len(early) >= seen + 3, "it goes on")
        host.stop()
    assert min(early) >= 0
    assert store.runs("job", status=[RunStatus.MISSED, RunStatus.LOST]) == []
