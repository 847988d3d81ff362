"""Cron jobs across changes of the clock: no day is skipped, and each matching instant is a tick."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flask_singlejob.records import from_ms

from .schedule_kit import CHANGING_ZONES, DAY, HAS_CALENDAR, HOUR, MINUTE, at, days, schedule, text, walk

DAILY = ("00:00", "00:30", "01:30", "02:00", "02:30", "03:00", "12:00", "23:30")


@pytest.mark.parametrize("zone", CHANGING_ZONES)
@pytest.mark.parametrize("clock", DAILY)
def test_daily_job_runs_on_every_day_at_its_own_time(zone: str, clock: str) -> None:
    hour, minute = (int(part) for part in clock.split(":"))
    daily = schedule("cron", zone, hour=hour, minute=minute)
    ticks = walk(daily, at("2023-12-31T00:00:00"), at("2031-01-02T00:00:00"))
    for earlier, later in pairwise(ticks):
        if later - earlier != DAY:
            assert daily.last_upto(later - 1) == earlier
    locals_ = [from_ms(tick).astimezone(ZoneInfo(zone)) for tick in ticks]

    by_day: dict[date, list[str]] = {}
    for local in locals_:
        by_day.setdefault(local.date(), []).append(local.strftime("%H:%M"))
    for day in days(date(2024, 1, 1), date(2030, 12, 31)):
        assert day in by_day, f"{day} is skipped"
    for day, shown in by_day.items():
        exists, twice, moved = _expected(day, clock, zone)
        assert shown == ([clock] * (2 if twice else 1) if exists else [moved]), day


def _expected(day: date, clock: str, zone: str) -> tuple[bool, bool, str]:
    """Look at every minute of the day's clock: is the time shown, how often, and where is it moved to?"""
    tz = ZoneInfo(zone)
    start = at(f"{day.isoformat()}T00:00:00+14:00")
    shown = []
    # A change within the day shows in its edges' offsets; without one, the day is plain.
    edges = [from_ms(start + hours * HOUR).astimezone(tz).utcoffset() for hours in (0, 50)]
    if edges[0] == edges[1]:
        return True, False, clock
    for minutes in range(0, 50 * 60):
        local = from_ms(start + minutes * MINUTE).astimezone(tz)
        if local.date() == day:
            shown.append(local.strftime("%H:%M"))
    if clock in shown:
        return True, shown.count(clock) == 2, clock
    before = from_ms(start).astimezone(tz).utcoffset()
    after = from_ms(start + 50 * HOUR).astimezone(tz).utcoffset()
    assert before is not None
    assert after is not None
    hour, minute = (int(part) for part in clock.split(":"))
    moved = timedelta(hours=hour, minutes=minute) + (after - before)
    return False, False, f"{moved.seconds // 3600:02}:{moved.seconds // 60 % 60:02}"


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2025-03-30"),
        ("Europe/Berlin", "2025-10-26"),
        ("America/Los_Angeles", "2025-03-09"),
        ("America/Los_Angeles", "2025-11-02"),
        ("Australia/Lord_Howe", "2025-04-06"),
        ("Australia/Lord_Howe", "2025-10-05"),
        ("Asia/Beirut", "2025-03-30"),
        ("Asia/Beirut", "2025-10-26"),
        ("Africa/Cairo", "2025-04-25"),
        ("Africa/Cairo", "2025-10-31"),
    ],
)
@pytest.mark.parametrize(
    "expression",
    [{"minute": 0}, {"minute": 5}, {"minute": "*/10"}, {"minute": "*/7"}, {"second": "*/20"}, {"second": 7}],
)
def test_job_of_every_hour_runs_at_each_instant_whose_clock_matches(
    zone: str, day: str, expression: dict[str, Any]
) -> None:
    tz = ZoneInfo(zone)
    given = schedule("cron", zone, **expression)
    start, end = at(f"{day}T00:00:00") - 10 * HOUR, at(f"{day}T00:00:00") + 12 * HOUR
    [(unit, value)] = expression.items()
    every = int(value[2:]) if isinstance(value, str) else None

    def matches(ms: int) -> bool:
        local = from_ms(ms).astimezone(tz)
        number = local.minute if unit == "minute" else local.second
        return (number % every == 0 if every else number == value) and (unit == "second" or local.second == 0)

    step = MINUTE if unit == "minute" else 1000
    expected = [ms for ms in range(start + step, end + 1, step) if matches(ms)]
    assert given.ticks(start, end, 1_000_000) == expected
    assert given.count(start, end) == (len(expected), True)


def test_repeated_hour_runs_twice() -> None:
    daily = schedule("cron", "Europe/Berlin", hour=2, minute=30)
    ticks = walk(daily, at("2025-10-25T12:00:00"), at("2025-10-26T12:00:00"))
    assert [text(tick) for tick in ticks] == ["2025-10-26 00:30:00", "2025-10-26 01:30:00"]


def test_missing_hour_runs_once_moved_on_by_the_gap() -> None:
    daily = schedule("cron", "Europe/Berlin", hour=2, minute=30)
    ticks = walk(daily, at("2025-03-29T12:00:00"), at("2025-03-30T12:00:00"))
    assert [text(tick, "Europe/Berlin") for tick in ticks] == ["2025-03-30 03:30:00"]


def test_time_moved_onto_another_tick_is_one_tick() -> None:
    twice = schedule("cron", "Europe/Berlin", hour="2,3", minute=30)
    start, end = at("2025-03-29T12:00:00"), at("2025-03-30T12:00:00")
    ticks = walk(twice, start, end)
    assert twice.ticks(start, end, 100) == ticks
    assert twice.count(start, end) == (1, True)
    assert [text(tick, "Europe/Berlin") for tick in ticks] == ["2025-03-30 03:30:00"]


def test_midnight_job_runs_on_the_day_after_the_spring_change() -> None:
    daily = schedule("cron", "America/Los_Angeles", hour=0)
    ticks = walk(daily, at("2022-03-12T00:00:00"), at("2022-03-16T00:00:00"))
    assert [text(tick, "America/Los_Angeles") for tick in ticks] == [
        "2022-03-12 00:00:00",
        "2022-03-13 00:00:00",
        "2022-03-14 00:00:00",
        "2022-03-15 00:00:00",
    ]


def test_day_that_a_zone_left_out_has_no_tick_of_its_own() -> None:
    # Apia had no 30 December 2011: the time moved on by a day is the next day's own tick.
    daily = schedule("cron", "Pacific/Apia", hour=3)
    ticks = walk(daily, at("2011-12-28T00:00:00"), at("2012-01-01T00:00:00"))
    assert [text(tick, "Pacific/Apia") for tick in ticks] == [
        "2011-12-28 03:00:00",
        "2011-12-29 03:00:00",
        "2011-12-31 03:00:00",
        "2012-01-01 03:00:00",
    ]


def test_interval_of_a_day_keeps_its_length_in_utc() -> None:
    daily = schedule("interval", "Europe/Berlin", days=1, start_date="2025-03-29 03:00:00")
    ticks = walk(daily, at("2025-03-28T00:00:00"), at("2025-03-31T12:00:00"))
    assert [text(tick, "Europe/Berlin") for tick in ticks] == [
        "2025-03-29 03:00:00",
        "2025-03-30 04:00:00",
        "2025-03-31 04:00:00",
    ]


@pytest.mark.skipif(not HAS_CALENDAR, reason="needs APScheduler 3.11")
def test_calendar_interval_leaves_out_a_day_without_its_time_and_takes_the_earlier_of_two() -> None:
    daily = schedule("calendarinterval", "Europe/Berlin", days=1, hour=2, minute=30, start_date="2025-03-01")
    spring = walk(daily, at("2025-03-29T00:00:00"), at("2025-03-31T12:00:00"))
    assert [text(tick, "Europe/Berlin") for tick in spring] == ["2025-03-29 02:30:00", "2025-03-31 02:30:00"]
    autumn = walk(daily, at("2025-10-25T12:00:00"), at("2025-10-26T12:00:00"))
    assert [text(tick) for tick in autumn] == ["2025-10-26 00:30:00"]
