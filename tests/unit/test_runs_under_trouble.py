"""What becomes of runs when leases end, holders die and the store goes away, on hosts in one process."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob import LeaseLostError, LockHeldError, current_run, lease_lost, run_lost
from flask_singlejob.records import ClaimKey, RunStatus
from tests.unit.rig import SteppedClock, TroubledStore, claim_as_stranger, hosts_on, wait_until


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore(clock=SteppedClock())


def test_a_job_longer_than_its_lease_is_renewed_and_runs_on_one_host_only(
    store: TroubledStore, tmp_path: Path
) -> None:
    begun: list[str] = []
    with hosts_on(store, tmp_path) as make:
        hosts = [make("one", SINGLEJOB_LEASE=1), make("two", SINGLEJOB_LEASE=1)]
        ended = threading.Event()
        for host in hosts:

            @host.jobs.task("date", id="long")
            def long() -> None:
                begun.append(current_run.host or "")
                # Three leases: without a renewal the other host would have taken it over by then.
                ended.wait(3.0)
                current_run.check()

        for host in hosts:
            host.start()
        wait_until(lambda: store.runs("long"), "the job has run")
        ended.set()
    assert len(begun) == 1
    assert [str(run.status) for run in store.runs("long")] == ["succeeded"]
    assert store.calls.count("renew") >= 3


def test_a_run_whose_lease_cannot_be_renewed_is_told_and_recorded_as_lost(
    store: TroubledStore, tmp_path: Path
) -> None:
    told: list[str] = []
    heard: list[str] = []

    def on_lease_lost(app: Any, *, run: Any, **extra: Any) -> None:
        heard.append(run.id)

    with hosts_on(store, tmp_path) as make, lease_lost.connected_to(on_lease_lost):
        host = make("one", SINGLEJOB_LEASE=1)

        @host.jobs.task("date", id="job")
        def job() -> None:
            store.failing |= {"renew"}
            try:
                wait_until(lambda: heard, "the lease is lost")
                current_run.check()
            except LeaseLostError as error:
                told.append(str(error))
            finally:
                store.failing.clear()

        host.start()
        wait_until(lambda: told, "the job was told")
        runs = wait_until(lambda: store.runs("job"), "the run is recorded")
    assert len(told) == 1
    assert "'job'" in told[0]
    assert [(str(run.status), run.reason) for run in runs] == [("lost", "lease_ended")]
    assert heard == [runs[0].id]


def test_a_dead_holder_is_recorded_as_lost_once_by_whoever_sees_it_first(
    store: TroubledStore, tmp_path: Path
) -> None:
    heard: list[str] = []

    def on_lost(app: Any, *, run: Any, **extra: Any) -> None:
        heard.append(run.id)

    key = ClaimKey("job", "job")
    with hosts_on(store, tmp_path) as make, run_lost.connected_to(on_lost):
        hosts = [make("one"), make("two")]
        ran: list[str] = []
        for host in hosts:

            @host.jobs.task("interval", hours=1, id="job")
            def job() -> None:
                ran.append(current_run.id)

        for host in hosts:
            host.start()
        now = store.poll().now
        store.settle(key, store.ensure([key])[key].resolved, now - 10_000)
        taken = claim_as_stranger(store, key, tick=now - 5_000, lease_ms=300, cause="schedule")
        assert taken.won
        runs = wait_until(lambda: store.runs("job"), "the lost run is recorded")
    assert [(str(run.status), run.id, run.host) for run in runs] == [("lost", taken.row.holder, "elsewhere")]
    assert heard == [taken.row.holder]
    assert ran == []
    after = store.ensure([key])[key]
    assert after.token > taken.row.token


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_lost_run_is_run_again_for_its_tick_before_any_later_one(
    store: TroubledStore, tmp_path: Path, attempts: int
) -> None:
    key = ClaimKey("job", "job")
    seen: list[tuple[int, int, str]] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=1, id="job", rerun_lost=True, max_attempts=2)
        def job() -> None:
            seen.append(
                (int(current_run.scheduled_at.timestamp() * 1000), current_run.attempt, current_run.cause)
            )

        host.jobs.init_app(host.app)
        # A tick long beyond its grace time, held by a process that is gone.
        now = store.poll().now
        tick = now - 3_600_000
        store.settle(key, store.ensure([key])[key].resolved, tick - 1)
        taken = claim_as_stranger(
            store,
            key,
            tick=tick,
            lease_ms=1,
            cause="schedule",
            rerun_lost=True,
            max_attempts=2,
            attempt=attempts,
        )
        assert taken.won
        host.start()
        wait_until(lambda: len(seen) >= 2, "the job has run twice")
    reruns = [entry for entry in seen if entry[0] == tick]
    if attempts < 2:
        assert seen[0] == (tick, attempts + 1, "rerun")
        assert len(reruns) == 1
    else:
        assert reruns == []
    assert seen[-1][2] == "schedule"


def test_ticks_wait_for_a_store_that_is_away_and_none_runs_twice(
    store: TroubledStore, tmp_path: Path
) -> None:
    ticks: Counter[int] = Counter()
    stood_for = 0
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.2, id="job")
        def job() -> None:
            nonlocal stood_for
            ticks[int(current_run.scheduled_at.timestamp() * 1000)] += 1
            stood_for += current_run.stood_for

        host.start()
        wait_until(lambda: ticks, "the job runs")
        store.away = True
        before = len(ticks)
        threading.Event().wait(1.5)
        assert len(ticks) <= before + 1
        store.away = False
        wait_until(lambda: len(ticks) >= before + 4, "the job runs again")
        host.stop()
    assert set(ticks.values()) == {1}
    first, last = min(ticks), max(ticks)
    # Every tick is accounted for: run by itself, or stood for by the one that ran late.
    assert stood_for == (last - first) // 200 + 1
    assert [run for run in store.runs("job") if run.status in ("missed", "lost")] == []


def test_a_tick_whose_end_cannot_be_written_yet_is_written_when_the_store_is_back(
    store: TroubledStore, tmp_path: Path
) -> None:
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("date", id="job")
        def job() -> None:
            store.failing |= {"release"}

        host.start()
        wait_until(lambda: store.calls.count("release") >= 2, "the release is tried again")
        assert store.runs("job") == []
        store.failing.clear()
        runs = wait_until(lambda: store.runs("job"), "the run is recorded")
    assert [str(run.status) for run in runs] == ["succeeded"]


def test_what_falls_due_while_the_job_runs_is_one_skipped_record(
    store: TroubledStore, tmp_path: Path
) -> None:
    go_on = threading.Event()
    begun: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.2, id="job")
        def job() -> None:
            begun.append(int(current_run.scheduled_at.timestamp() * 1000))
            if len(begun) == 1:
                go_on.wait(20)

        host.start()
        wait_until(lambda: begun, "the job runs")
        clock = host.engine.clock
        wait_until(lambda: clock.now_ms() > begun[0] + 1_100, "five more ticks fell due")
        go_on.set()
        skipped = wait_until(lambda: store.runs("job", status=[RunStatus.SKIPPED]), "the skipped record")
        wait_until(lambda: len(begun) >= 2, "the job runs again")
        host.stop()
    assert len(skipped) == 1
    assert skipped[0].reason == "held"
    assert skipped[0].count >= 5
    assert int(skipped[0].scheduled_at.timestamp() * 1000) == begun[0] + 200
    assert begun[1] == begun[0] + 200 * (skipped[0].count + 1)


def test_a_run_by_hand_and_a_scheduled_one_never_overlap_and_the_tick_is_not_lost(
    store: TroubledStore, tmp_path: Path
) -> None:
    inside = 0
    most = 0
    causes: list[str] = []
    go_on = threading.Event()
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.3, id="job")
        def job() -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            causes.append(current_run.cause)
            if current_run.cause == "manual":
                go_on.wait(20)
            inside -= 1

        host.start()
        by_hand = threading.Thread(target=lambda: _until_free(host.jobs), daemon=True)
        by_hand.start()
        wait_until(lambda: "manual" in causes, "the run by hand")
        with pytest.raises(LockHeldError, match=r"held by host 'one', pid \d+, since 20"):
            host.jobs.run_job("job")
        seen = len(causes)
        threading.Event().wait(0.8)
        assert len(causes) == seen
        go_on.set()
        wait_until(lambda: len(causes) > seen, "the schedule goes on")
        by_hand.join(5)
        host.stop()
    assert most == 1
    # What fell due during a run by hand is late, not skipped.
    late = [run for run in store.runs("job") if run.stood_for > 1]
    assert late
    assert store.runs("job", status=[RunStatus.SKIPPED]) == []


def _until_free(jobs: Any) -> None:
    while True:
        try:
            jobs.run_job("job")
        except LockHeldError:
            continue
        return


def test_a_stores_clock_that_jumps_ten_years_and_back_keeps_the_job_alive(
    store: TroubledStore, tmp_path: Path
) -> None:
    clock = store.clock
    assert isinstance(clock, SteppedClock)
    runs: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.2, id="job")
        def job() -> None:
            runs.append(int(current_run.scheduled_at.timestamp() * 1000))

        host.start()
        wait_until(lambda: runs, "the job runs")
        year = 365 * 86_400_000
        clock.ahead_ms = 10 * year
        wait_until(lambda: runs[-1] > runs[0] + 9 * year, "the job runs ten years ahead")
        clock.ahead_ms = 0
        wait_until(lambda: runs[-1] < runs[0] + year, "the job runs today again")
        host.stop()
    assert max(Counter(runs).values()) == 1


def test_a_hosts_own_wall_clock_moves_no_tick(
    store: TroubledStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.2, id="job")
        def job() -> None:
            runs.append(int(current_run.scheduled_at.timestamp() * 1000))

        host.start()
        wait_until(lambda: runs, "the job runs")
        real = __import__("time").time
        monkeypatch.setattr("flask_singlejob.clock.time.time", lambda: real() + 90)
        seen = len(runs)
        wait_until(lambda: len(runs) >= seen + 5, "the job goes on")
        wait_until(lambda: (host.engine.clock.offset_seconds or 0) > 80, "the offset is shown")
        host.stop()
    assert [later - earlier for earlier, later in pairwise(runs)] == [200] * (len(runs) - 1)


def test_an_sqlite_file_that_is_replaced_under_its_owner_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    begun: list[str] = []
    with hosts_on(f"sqlite:///{path}", tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.2, id="job")
        def job() -> None:
            begun.append(current_run.id)

        host.start()
        wait_until(lambda: begun, "the job runs")
        for file in tmp_path.glob("store.sqlite3*"):
            file.unlink()
        seen = len(begun)
        wait_until(lambda: len(begun) >= seen + 3, "the job runs on the new file")
    assert path.exists()
