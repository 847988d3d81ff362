"""Hosts with different code, zones and clocks: each tick once, both sides named, and nothing undone by the old release."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import tzlocal
from apscheduler.triggers.cron import CronTrigger

from flask_singlejob import current_run
from flask_singlejob.records import ClaimKey
from tests.unit.rig import Host, SteppedClock, TroubledStore, hosts_on, wait_until

KEY = ClaimKey("job", "job")


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore(clock=SteppedClock())


@pytest.fixture
def clock(store: TroubledStore) -> SteppedClock:
    assert isinstance(store.clock, SteppedClock)
    return store.clock


def with_job(host: Host, ticks: list[tuple[str, int]], id: str = "job", **trigger: Any) -> Host:
    """Give a host a job that notes the release and the tick."""

    def job() -> None:
        ticks.append((str(current_run.host), round(current_run.scheduled_at.timestamp() * 1000)))

    host.jobs.add_job(id, job, trigger="interval", **trigger)
    return host


def pins(store: TroubledStore, job_id: str = "job") -> list[dict[str, Any]]:
    return [dict(doc.body) for doc in store.docs("definition") if doc.body["job_id"] == job_id]


def beat_now(*hosts: Host) -> None:
    """Have each host tell of itself, and read of the others, at its next poll."""
    for host in hosts:
        beats = host.engine.hosts._beats
        host.engine.hosts._next_beat = 0.0
        host.engine.poke()
        wait_until(
            lambda host=host, beats=beats: host.engine.hosts._beats > beats,  # type: ignore[misc]
            f"{host.name} tells of itself",
        )


def test_two_releases_with_other_triggers_run_no_tick_twice_and_are_both_named(
    store: TroubledStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[tuple[str, int]] = []
    with hosts_on(store, tmp_path) as make:
        old = with_job(make("old"), ticks, seconds=0.6).start()
        new = with_job(make("new"), ticks, seconds=0.4).start()
        wait_until(lambda: {host for host, _ in ticks} == {"old", "new"}, "both run ticks")
        beat_now(old, new)
        found = [text for host in (old, new) for text in host.engine.hosts.warnings]
        assert any("'job'" in text and "'old'" in text and "'new'" in text for text in found)
        before = pins(store)
        old.stop()
        new.stop()
    assert max(Counter(tick for _, tick in ticks).values()) == 1
    assert [tick for _, tick in ticks] == sorted(tick for _, tick in ticks)
    assert len(before) == 2
    said = [r for r in caplog.records if "has another trigger in the code of host 'new'" in r.getMessage()]
    assert len([r for r in said if r.levelno == logging.WARNING]) == 1


def test_after_the_old_release_stopped_only_the_new_set_of_jobs_remains(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    ticks: list[tuple[str, int]] = []
    with hosts_on(store, tmp_path) as make:
        old = with_job(make("old"), ticks, id="removed", seconds=0.5)
        with_job(old, ticks, seconds=0.6).start()
        new = with_job(make("new"), ticks, id="added", seconds=0.5)
        with_job(new, ticks, seconds=0.4).start()
        beat_now(old, new)
        assert any("only one has" in text for text in new.engine.hosts.warnings)
        # What the new release wrote is as it was after a new term of the old one.
        written = {doc.id: doc.revision for doc in store.docs("definition")}
        old.jobs.shutdown()
        old.jobs.start(force=True)
        wait_until(lambda: old.engine.term is not None and old.engine.term.loaded, "old schedules again")
        assert {doc.id: doc.revision for doc in store.docs("definition")} == written
        old.stop()
        clock.ahead_ms += 2 * 3_600_000
        beat_now(new, new)
        wait_until(lambda: pins(store, "removed")[0]["retired"], "what nobody has is retired")
        assert [pin["retired"] for pin in pins(store, "added")] == [None]
        assert sorted(bool(pin["retired"]) for pin in pins(store)) == [False, True]
        seen = len(ticks)
        wait_until(lambda: len(ticks) >= seen + 6, "the new jobs run")
        new.stop()
    grid = {tick % 400 for host, tick in ticks[seen:] if host == "new"}
    assert all(host == "new" for host, _ in ticks[seen:])
    assert grid


def test_a_host_that_restarts_keeps_its_jobs_although_no_other_host_has_them(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    """What falls due while it is away is late, not void: another host must not take it for abandoned."""
    ticks: list[tuple[str, int]] = []
    with hosts_on(store, tmp_path) as make:
        other = with_job(make("other"), ticks, id="elsewhere", hours=1).start()
        alone = with_job(make("alone"), ticks, minutes=1).start()
        alone.stop()
        resolved = store.ensure([KEY])[KEY].resolved
        clock.ahead_ms += 75_000
        beat_now(other, other, other)
        threading.Event().wait(0.3)
        assert [pin["retired"] for pin in pins(store)] == [None]
        with_job(make("alone"), ticks, minutes=1).start()
        wait_until(lambda: ticks, "the tick of the time between runs late")
        assert ticks[0][1] - resolved < 75_000


def test_a_definition_that_is_new_is_never_taken_for_abandoned_by_an_older_look_at_the_hosts(
    store: TroubledStore, tmp_path: Path
) -> None:
    ticks: list[tuple[str, int]] = []
    with hosts_on(store, tmp_path) as make:
        old = with_job(make("old"), ticks, id="elsewhere", hours=1).start()
        beat_now(old, old, old)
        # From now on the old one does not look at the hosts for seconds, but at the definitions at each poll.
        old.engine.hosts._next_beat = float("inf")
        with_job(make("new"), ticks, hours=1).start()
        polls = store.calls.count("poll")
        wait_until(lambda: store.calls.count("poll") > polls + 12, "the old one polls")
        assert [pin["retired"] for pin in pins(store)] == [None]


def test_a_job_that_the_code_lost_for_a_while_starts_anew_when_it_returns(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    ticks: list[tuple[str, int]] = []
    with hosts_on(store, tmp_path) as make:
        with_job(make("one"), ticks, hours=1, catch_up=True).start().stop()
        anchor = pins(store)[0]["fields"]["start"]
        without = with_job(make("one"), ticks, id="other", hours=1).start()
        beat_now(without, without, without)
        wait_until(lambda: pins(store)[0]["retired"], "it is retired")
        without.stop()
        clock.ahead_ms += 7 * 86_400_000
        again = with_job(make("one"), ticks, hours=1, catch_up=True).start()
        threading.Event().wait(0.5)
        # A week of ticks is owed by nobody, and the grid is the one it always had.
        assert ticks == []
        assert [(pin["retired"], pin["fields"]["start"]) for pin in pins(store)] == [(None, anchor)]
        clock.ahead_ms += 3_600_000
        wait_until(lambda: ticks, "its next tick runs")
        again.stop()
    assert (ticks[0][1] - anchor) % 3_600_000 == 0


# -- zones ----------------------------------------------------------------------------------------------


def test_a_host_in_another_zone_warns_once_and_goes_by_the_clusters(
    store: TroubledStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zones = {"one": ZoneInfo("Europe/Berlin"), "two": ZoneInfo("America/New_York")}
    with hosts_on(store, tmp_path) as make:
        hosts = [make(name) for name in zones]
        for host in hosts:

            @host.jobs.task("cron", hour=3, id="job")
            def job() -> None: ...

            host.jobs.init_app(host.app)
            host.engine._zone = (zones[host.name], str(zones[host.name]))
            host.jobs.start(force=True)
            wait_until(lambda host=host: host.engine.term and host.engine.term.loaded, "it schedules")  # type: ignore[misc]
        beat_now(hosts[1], hosts[1])
        plans = [host.engine.term.planner.plans()[0] for host in hosts]  # type: ignore[union-attr]
        following = {plan.job.next_tick(store.poll().now) for plan in plans}
        assert len(following) == 1
        assert hosts[0].engine.hosts.warnings == []
    said = [r.getMessage() for r in caplog.records if "America/New_York" in r.getMessage()]
    assert len(said) == 1
    assert "'two'" in said[0]
    assert "Europe/Berlin" in said[0]
    assert "SCHEDULER_TIMEZONE" in said[0]


def test_a_configured_zone_is_used_whatever_the_cluster_has_and_nobody_is_warned(
    store: TroubledStore, tmp_path: Path
) -> None:
    with hosts_on(store, tmp_path) as make:
        assert store.put("cluster", "zone", {"zone": "Asia/Tokyo", "by": "gone"}, expect=0)
        host = make("one", SCHEDULER_TIMEZONE="Europe/Berlin")

        @host.jobs.task("cron", hour=3, id="job")
        def job() -> None: ...

        host.start()
        (plan,) = host.engine.term.planner.plans()  # type: ignore[union-attr]
        assert str(plan.job.schedule.zone) == "Europe/Berlin"  # type: ignore[union-attr]
        assert host.engine.hosts.warnings == []


def test_a_trigger_object_that_took_its_zone_from_the_host_is_named_when_it_is_read_in_another(
    store: TroubledStore, tmp_path: Path
) -> None:
    with hosts_on(store, tmp_path) as make:
        assert store.put("cluster", "zone", {"zone": "Asia/Tokyo", "by": "gone"}, expect=0)
        host = make("one")

        @host.jobs.task(CronTrigger(hour=3, timezone=tzlocal.get_localzone()), id="job")
        def job() -> None: ...

        host.start()
        wait_until(lambda: host.engine.hosts.warnings, "it is warned of")
        assert any(
            "trigger object of job 'job'" in text and "Asia/Tokyo" in text
            for text in host.engine.hosts.warnings
        )


# -- clocks ------------------------------------------------------------------------------------------------


def test_a_clock_that_is_off_is_shown_and_warned_of_once(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock.ahead_ms = -90_000
    ticks: list[tuple[str, int]] = []
    with hosts_on(store, tmp_path) as make:
        host = with_job(make("one"), ticks, seconds=0.2).start()
        beat_now(host, host)
        (shown,) = [entry for entry in host.jobs.status()["hosts"] if entry["host"] == "one"]
        wait_until(lambda: len(ticks) >= 3, "its ticks run")
    assert abs(shown["clock_offset"] - 90) < 5
    said = [r.getMessage() for r in caplog.records if "the clock of host 'one' is" in r.getMessage()]
    assert len(said) == 1
    assert "ahead of the store's" in said[0]


def test_ticks_are_instants_whatever_zone_they_are_shown_in(store: TroubledStore, tmp_path: Path) -> None:
    seen: list[Any] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one", SCHEDULER_TIMEZONE="Asia/Kolkata")

        @host.jobs.task("date", id="job")
        def job() -> None:
            seen.append(current_run.scheduled_at)

        host.start()
        wait_until(lambda: seen, "it ran")
    assert seen[0].tzinfo is not None
    assert seen[0].utcoffset() == timedelta(0)
    assert seen[0].astimezone(timezone.utc) == seen[0]
