"""A run's thread is started a moment before its tick: it claims at the tick, and only what still holds then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob import current_run
from flask_singlejob.clock import StoreClock, steady_seconds
from flask_singlejob.records import to_ms
from tests.unit.rig import Host, TroubledStore, hosts_on, wait_until


@pytest.fixture
def store() -> Iterator[TroubledStore]:
    made = TroubledStore(cluster="rig")
    yield made
    made.close()


def _claims(store: TroubledStore) -> list[tuple[int, int, bool]]:
    """Return a list that will hold each claim's tick, the store's clock when it was asked, and whether it was won."""
    seen: list[tuple[int, int, bool]] = []

    def recorded(claim: Any, key: Any, request: Any) -> Any:
        outcome = claim(key, request)
        if request.tick is not None:
            seen.append((request.tick, outcome.now, outcome.won))
        return outcome

    store.around["claim"] = recorded
    return seen


def test_a_tick_is_claimed_when_the_store_has_reached_it(store: TroubledStore, tmp_path: Path) -> None:
    seen = _claims(store)
    ran: list[float] = []
    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("often", lambda: ran.append(time.time()), trigger="interval", seconds=1)
        one.start()
        wait_until(lambda: len(ran) >= 3, "three runs")
    assert all(now >= tick - 1 for tick, now, _ in seen), seen
    # The estimate may be wrong by a part of a millisecond, which costs another try, not one claim after the other.
    assert len(seen) <= 2 * len({tick for tick, _, _ in seen}) + 2, seen


@pytest.mark.parametrize("change", ["pause_job", "remove_job"])
def test_what_changes_in_the_last_moment_before_a_tick_counts(
    store: TroubledStore, tmp_path: Path, change: str
) -> None:
    seen = _claims(store)
    ran: list[int] = []
    known: list[tuple[int, int]] = []
    changed = threading.Event()
    with hosts_on(store, tmp_path) as host:
        one: Host = host("one")
        one.jobs.add_job("often", lambda: ran.append(1), trigger="interval", seconds=1)
        one.start()
        clock = one.engine.clock
        seconds_until = clock.seconds_until

        def changed_meanwhile(store_ms: int) -> float:
            # Asked on the run's own thread: it is the last moment before the claim.
            if threading.current_thread().name == "singlejob-default" and not changed.is_set():
                term = one.engine.term
                assert term is not None
                (job,) = [plan.job for plan in term.planner.plans()]
                getattr(one.jobs, change)("often")
                wait_until(
                    lambda: not term.planner.plans() or term.planner.plans()[0].job is not job,
                    "the owner knows of it",
                )
                known.append((len(ran), len(seen)))
                changed.set()
            return seconds_until(store_ms)

        clock.seconds_until = changed_meanwhile  # type: ignore[method-assign]
        wait_until(changed.is_set, "a run's thread was started")
        before = time.monotonic()
        wait_until(lambda: time.monotonic() > before + 1.5, "another tick passed")
    assert known == [(len(ran), len(seen))]


def _on_the_runs_thread(host: Host, hook: Any) -> None:
    """Have a hook called, once, on the thread of a run that waits for its tick."""
    clock = host.engine.clock
    seconds_until = clock.seconds_until
    done: list[bool] = []

    def hooked(store_ms: int) -> float:
        if threading.current_thread().name == "singlejob-default" and not done:
            done.append(True)
            hook()
        return seconds_until(store_ms)

    clock.seconds_until = hooked  # type: ignore[method-assign]


def test_a_store_clock_that_goes_back_for_a_moment_stops_no_job(store: TroubledStore, tmp_path: Path) -> None:
    ran: list[int] = []
    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("often", lambda: ran.append(1), trigger="interval", seconds=1)
        one.start()
        clock = one.engine.clock
        back = threading.Event()

        def set_back() -> None:
            # What an answer of the store told another thread, between the decision and the wait.
            assert clock._base is not None
            clock._base -= 3_600_000
            back.set()

        _on_the_runs_thread(one, set_back)
        wait_until(back.is_set, "the clock went back")
        # The next poll shows the true time again.
        wait_until(lambda: len(ran) >= 2, "the job runs again", seconds=10)


def test_a_process_that_was_frozen_before_a_tick_does_not_run_it_beyond_its_grace_time(
    store: TroubledStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So early that the thread is there before the tick however busy the machine is.
    for module in ("planner", "attempts"):
        monkeypatch.setattr(f"flask_singlejob.{module}.AHEAD_MS", 400)
    ran: list[int] = []
    with hosts_on(store, tmp_path) as host:
        one = host("one")
        frozen: list[float] = []

        def freeze() -> None:
            began = time.monotonic()
            wait_until(lambda: time.monotonic() > began + 1.6, "the thread stood still")
            frozen.append(time.time())

        one.jobs.add_job(
            "often",
            lambda: ran.append(round((time.time() - current_run.scheduled_at.timestamp()) * 1000)),
            trigger="interval",
            seconds=30,
            start_date=datetime.now(timezone.utc) + timedelta(seconds=4),
            misfire_grace_time=1,
        )
        one.start()
        _on_the_runs_thread(one, freeze)
        missed = wait_until(lambda: store.runs("often"), "the tick is recorded")
    assert [(run.status, run.reason) for run in missed] == [("missed", "late")]
    assert ran == []
    assert frozen


def test_a_change_in_the_last_moment_counts_beside_a_run_that_goes_on(
    store: TroubledStore, tmp_path: Path
) -> None:
    ran: list[int] = []
    release = threading.Event()

    def work() -> None:
        ran.append(to_ms(current_run.scheduled_at))
        release.wait(15)

    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("often", work, trigger="interval", seconds=1, max_instances=3)
        one.start()
        wait_until(lambda: ran, "a run goes on")
        changed: list[int] = []

        def alter() -> None:
            term = one.engine.term
            assert term is not None
            (plan,) = term.planner.plans()
            job = plan.job
            one.jobs.pause_job("often")
            wait_until(lambda: term.planner.plans()[0].job is not job, "the owner knows of it")
            changed.append(len(ran))

        _on_the_runs_thread(one, alter)
        wait_until(lambda: changed, "a change in the last moment")
        before = time.monotonic()
        wait_until(lambda: time.monotonic() > before + 1.5, "another tick passed")
        release.set()
    assert len(ran) == changed[0]


def test_the_clock_tells_how_far_an_instant_is_off() -> None:
    clock = StoreClock()
    with pytest.raises(RuntimeError):
        clock.seconds_until(0)
    now = steady_seconds()
    clock.sync(1_000_000, now, now)
    assert clock.seconds_until(1_000_000 + 60_000) == pytest.approx(60, abs=5)
    assert clock.seconds_until(999_000) == 0.0
