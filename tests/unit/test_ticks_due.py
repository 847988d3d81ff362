"""Which ticks are due, which are missed, and how late a tick may run."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_singlejob.ticks import Due, Grace, Schedule, Span, due, grace_ms

from .schedule_kit import DAY, HOUR, MINUTE, at, schedule, walk

NOW = at("2026-03-01T12:00:00")
LEASE = 30_000


def decide(
    given_: Schedule, resolved: int, now: int = NOW, *, grace: Grace = "default", coalesce: bool = True
) -> Due:
    return due(given_, resolved=resolved, now=now, grace=grace, coalesce=coalesce, lease_ms=LEASE)


@pytest.mark.parametrize(
    ("trigger", "lease_ms", "expected"),
    [
        ({"type": "interval", "seconds": 1}, 10_000, MINUTE),
        ({"type": "interval", "seconds": 1}, 40_000, 80_000),
        ({"type": "interval", "minutes": 10}, 30_000, 5 * MINUTE),
        ({"type": "interval", "days": 1}, 30_000, HOUR),
        ({"type": "interval", "days": 1}, 3 * HOUR, 6 * HOUR),
        ({"type": "date"}, 30_000, HOUR),
    ],
)
def test_default_grace_is_half_the_gap_within_its_limits(
    trigger: dict[str, Any], lease_ms: int, expected: int
) -> None:
    assert grace_ms("default", schedule(trigger), NOW, lease_ms) == expected


def test_grace_as_given_is_in_seconds_and_none_is_no_limit() -> None:
    every = schedule("interval", seconds=1)
    assert grace_ms(90, every, NOW, LEASE) == 90_000
    assert grace_ms(0.5, every, NOW, LEASE) == 500
    assert grace_ms(None, every, NOW, LEASE) is None


def test_default_grace_follows_the_gap_after_its_own_tick() -> None:
    office = schedule("cron", hour="9,10", minute=0)
    assert grace_ms("default", office, at("2026-03-01T09:00:00"), LEASE) == 30 * MINUTE
    assert grace_ms("default", office, at("2026-03-01T10:00:00"), LEASE) == HOUR


def test_nothing_due_waits_for_the_next_tick() -> None:
    hourly = schedule("cron", minute=30)
    assert decide(hourly, NOW - 20 * MINUTE) == Due(None, None, 0, NOW + 30 * MINUTE)


def test_tick_settled_ahead_of_the_clock_is_not_waited_for_again() -> None:
    hourly = schedule("cron", minute=0)
    assert decide(hourly, NOW + HOUR) == Due(None, None, 0, NOW + 2 * HOUR)


def test_tick_at_this_very_moment_is_due() -> None:
    hourly = schedule("cron", minute=0)
    assert decide(hourly, NOW - HOUR) == Due(None, NOW, 1, None)
    assert decide(hourly, NOW - HOUR, NOW - 1).tick is None


def test_ended_trigger_has_nothing_to_wait_for() -> None:
    assert decide(schedule("date", run_date="2026-01-01T00:00:00Z"), NOW - DAY) == Due(None, None, 0, None)


def test_late_ticks_in_their_grace_time_run_as_one() -> None:
    every = schedule("interval", seconds=10)
    decision = decide(every, NOW - 35_000)
    assert decision == Due(None, NOW, 4, None)


def test_late_ticks_run_one_by_one_without_coalescing() -> None:
    every = schedule("interval", seconds=10)
    assert decide(every, NOW - 35_000, coalesce=False) == Due(None, NOW - 30_000, 1, None)
    assert decide(every, NOW - 30_000, coalesce=False) == Due(None, NOW - 20_000, 1, None)


def test_ticks_beyond_their_grace_time_are_missed_and_come_first() -> None:
    every = schedule("interval", seconds=10)
    decision = decide(every, NOW - 100_000)
    assert decision.missed == Span(NOW - 90_000, NOW - 70_000, 3, True)
    assert (decision.tick, decision.stood_for) == (NOW, 7)
    single = decide(every, NOW - 100_000, coalesce=False)
    assert single.missed == decision.missed
    assert (single.tick, single.stood_for) == (NOW - 60_000, 1)


@pytest.mark.parametrize(("late", "runs"), [(60_000, True), (60_001, False)])
def test_grace_time_ends_exactly(late: int, runs: bool) -> None:
    daily = schedule("cron", hour=12)
    decision = decide(daily, NOW - HOUR, NOW + late, grace=60)
    assert (decision.tick == NOW) is runs
    assert (decision.missed is None) is runs
    if not runs:
        assert decision.missed == Span(NOW, NOW, 1, True)
        assert decision.wait_until == NOW + DAY


@pytest.mark.parametrize(("late", "runs"), [(HOUR, True), (HOUR + 1, False)])
def test_last_tick_of_a_rare_job_has_an_hour_by_default(late: int, runs: bool) -> None:
    daily = schedule("cron", hour=12)
    decision = decide(daily, NOW - 3 * DAY - HOUR, NOW + late)
    assert (decision.tick == NOW) is runs
    assert decision.missed is not None
    assert decision.missed.count == (3 if runs else 4)


def test_without_limit_every_tick_stays_due() -> None:
    daily = schedule("cron", hour=12)
    assert decide(daily, NOW - 30 * DAY, grace=None) == Due(None, NOW, 30, None)
    assert decide(daily, NOW - 30 * DAY, grace=None, coalesce=False) == Due(None, NOW - 29 * DAY, 1, None)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [
            {"type": "interval", "seconds": 7},
            {"type": "interval", "minutes": 11},
            {"type": "cron", "minute": "*/15", "hour": "9-11"},
            {"type": "cron", "hour": "1,2,13"},
            {"type": "cron", "minute": "0,1", "hour": "*/4"},
            {"type": "date", "run_date": "2026-02-28T23:00:00Z"},
        ]
    ),
    st.integers(0, 3 * HOUR),
    st.integers(0, DAY),
    st.sampled_from([None, "default", 1, 60, 600, 7200]),
    st.booleans(),
    st.sampled_from([1_000, 30_000, 120_000]),
)
def test_decision_is_that_of_looking_at_each_tick(
    trigger: dict[str, Any], back: int, forth: int, grace: Grace, coalesce: bool, lease_ms: int
) -> None:
    one = schedule(trigger, now="2026-02-01T00:00:00")
    resolved, now = NOW - 12 * HOUR - back, NOW - 12 * HOUR + forth
    ticks = walk(one, resolved, now)
    in_grace = [
        tick
        for tick in ticks
        if (limit := grace_ms(grace, one, tick, lease_ms)) is None or now - tick <= limit
    ]
    decision = due(one, resolved=resolved, now=now, grace=grace, coalesce=coalesce, lease_ms=lease_ms)

    if not in_grace:
        assert (decision.tick, decision.stood_for) == (None, 0)
        assert decision.wait_until == one.next_after(now)
        late = ticks
    else:
        assert decision.tick == (ticks[-1] if coalesce else in_grace[0])
        assert decision.stood_for == (len([t for t in ticks if t >= in_grace[0]]) if coalesce else 1)
        assert decision.wait_until is None
        late = [tick for tick in ticks if tick < in_grace[0]]
    if late:
        assert decision.missed == Span(late[0], late[-1], len(late), True)
    else:
        assert decision.missed is None


@pytest.mark.parametrize(
    "trigger",
    [
        {"type": "interval", "seconds": 1},
        {"type": "interval", "seconds": 0.001},
        {"type": "cron", "second": "*"},
        {"type": "or", "triggers": [{"type": "cron", "second": "*"}, {"type": "interval", "seconds": 0.001}]},
        {"type": "and", "triggers": [{"type": "cron", "second": "*"}, {"type": "interval", "seconds": 3}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("grace", ["default", None, 10 * 366 * 86_400])
@pytest.mark.parametrize("coalesce", [True, False])
def test_clock_that_jumps_ten_years_costs_no_enumeration(
    trigger: dict[str, Any], grace: Grace, coalesce: bool
) -> None:
    one = schedule(trigger, "Europe/Berlin", now="2026-02-01T00:00:00")
    later = NOW + 3653 * DAY
    began = time.process_time()
    decision = decide(one, NOW, later, grace=grace, coalesce=coalesce)
    assert time.process_time() - began < 1.0
    assert decision.tick is not None
    assert NOW < decision.tick <= later
    if coalesce:
        assert later - decision.tick < 3_000
    # And back again: nothing is due until the clock has caught up with what was settled.
    back = decide(one, decision.tick, NOW, grace=grace, coalesce=coalesce)
    assert (back.missed, back.tick) == (None, None)
    assert back.wait_until is not None
    assert back.wait_until > decision.tick
