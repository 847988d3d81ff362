"""Schedules: the same ticks from anywhere, in any way of asking, and those of APScheduler's own triggers."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flask_singlejob.errors import JobDefinitionError
from flask_singlejob.records import from_ms, to_ms
from flask_singlejob.ticks import Schedule, build, needs_pin, parse_trigger, pin, zone_from

from .schedule_kit import DAY, HAS_CALENDAR, HOUR, MINUTE, UTC, at, schedule, text, walk

NOW = at("2025-01-01T00:00:00")
ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe", "Asia/Beirut", "UTC+05:30")

needs_calendar = pytest.mark.skipif(not HAS_CALENDAR, reason="needs APScheduler 3.11")
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def expressions(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    single = numbers.map(str)
    ranges = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, high - low).map(lambda step: f"*/{step}")
    lists = st.lists(single, min_size=2, max_size=4, unique=True).map(",".join)
    return st.one_of(single, ranges, steps, lists, st.just("*"))


crons = st.fixed_dictionaries(
    {},
    optional={
        "month": expressions(1, 12),
        "day": st.one_of(expressions(1, 31), st.sampled_from(["last", "2nd fri", "last mon"])),
        "week": expressions(1, 53),
        "day_of_week": st.one_of(expressions(0, 6), st.sampled_from(["mon-fri", "sat,sun"])),
        "hour": expressions(0, 23),
        "minute": expressions(0, 59),
        "second": expressions(0, 59),
    },
).map(lambda options: {"type": "cron", **options})
intervals = st.integers(1, 10 * DAY).map(lambda ms: {"type": "interval", "seconds": ms / 1000})
calendars = (
    st.fixed_dictionaries(
        {"hour": st.integers(0, 23), "minute": st.integers(0, 59)},
        optional={
            "years": st.integers(0, 2),
            "months": st.integers(0, 14),
            "weeks": st.integers(0, 3),
            "days": st.integers(0, 40),
        },
    )
    .filter(lambda options: any(options.get(name) for name in ("years", "months", "weeks", "days")))
    .map(lambda options: {"type": "calendarinterval", **options})
)
if not HAS_CALENDAR:
    calendars = intervals
simple = st.one_of(crons, intervals, calendars, st.just({"type": "date"}))
combined = st.tuples(st.sampled_from(["or", "and"]), st.lists(simple, min_size=1, max_size=3)).map(
    lambda pair: {"type": pair[0], "triggers": pair[1]}
)
triggers = st.one_of(simple, combined)
instants = st.integers(at("2024-01-01T00:00:00"), at("2030-12-31T00:00:00"))


def built(trigger: dict[str, Any], zone: str) -> Schedule:
    fields = pin(parse_trigger(trigger, {}).fields, now_ms=NOW + 123, zone=zone_from(zone))
    return build(fields, zone=zone_from(zone))


def ticks_of(given_: Schedule, after: int, number: int) -> list[int]:
    return given_.ticks(after, at("2060-01-01T00:00:00"), number)


# -- one truth, whatever the way ------------------------------------------------------------------------


@quick
@given(triggers, st.sampled_from(ZONES), instants, st.integers(1, 60 * DAY))
def test_every_way_of_asking_gives_the_same_ticks(
    trigger: dict[str, Any], zone: str, after: int, length: int
) -> None:
    one = built(trigger, zone)
    listed = one.ticks(after, after + length, 300)
    upto = listed[-1] if len(listed) == 300 else after + length
    assert listed == walk(built(trigger, zone), after, upto)
    assert listed == sorted(set(listed))
    assert all(after < tick <= upto for tick in listed)
    assert one.last(after, upto) == (listed[-1] if listed else None)
    span = one.span(after, upto)
    if not listed:
        assert span is None
    else:
        assert span is not None
        assert (span.first, span.last, span.count, span.exact) == (listed[0], listed[-1], len(listed), True)


@quick
@given(triggers, st.sampled_from(ZONES), instants, st.lists(st.integers(0, 40 * DAY), max_size=10))
def test_jumping_equals_walking(trigger: dict[str, Any], zone: str, after: int, jumps: list[int]) -> None:
    one = built(trigger, zone)
    listed = one.ticks(after, after + 40 * DAY, 300)
    known = listed[-1] if len(listed) == 300 else after + 40 * DAY
    for jump in jumps:
        start = after + jump
        if start >= known:
            continue
        expected = next((tick for tick in listed if tick > start), None)
        found = one.next_after(start)
        assert found == expected or (expected is None and (found is None or found > known))
        assert one.last(after, start) == max((tick for tick in listed if tick <= start), default=None)


@settings(quick, max_examples=25)
@given(triggers, st.sampled_from(ZONES))
def test_json_keeps_the_next_thousand_ticks(trigger: dict[str, Any], zone: str) -> None:
    one = built(trigger, zone)
    again = build(json.loads(json.dumps(one.fields)), zone=zone_from(zone))
    assert ticks_of(again, NOW, 1000) == ticks_of(one, NOW, 1000)


@quick
@given(st.one_of(crons, intervals, calendars), st.sampled_from(("UTC", "UTC+05:30")))
def test_ticks_are_those_of_apschedulers_trigger_where_no_clock_changes(
    trigger: dict[str, Any], zone: str
) -> None:
    one = built(trigger, zone)
    theirs = one.trigger
    previous: datetime | None = None
    now = from_ms(NOW)
    for tick in ticks_of(one, NOW - 1, 40):
        try:
            expected = theirs.get_next_fire_time(previous, now)
            while expected is not None and expected < from_ms(NOW):
                previous = expected
                expected = theirs.get_next_fire_time(previous, now)
        except (OverflowError, ValueError):
            return
        assert expected is not None
        assert abs(to_ms(expected) - tick) <= 1  # APScheduler counts intervals in floats
        previous, now = expected, from_ms(tick)


@quick
@given(crons, st.sampled_from(("Europe/Berlin", "America/Los_Angeles")))
def test_cron_is_apschedulers_between_the_changes_of_the_clock(trigger: dict[str, Any], zone: str) -> None:
    one = built(trigger, zone)
    start, end = at("2025-05-01T00:00:00"), at("2025-09-30T00:00:00")
    now = from_ms(start)
    for tick in one.ticks(start - 1, end, 30):
        expected = one.trigger.get_next_fire_time(None, now)
        assert to_ms(expected) == tick
        now = expected + timedelta(seconds=1)


@pytest.mark.parametrize("options", [{"day": 31, "month": 2}, {"year": 2020}, {"week": 53, "month": 6}])
def test_expression_that_names_no_day_has_no_tick(options: dict[str, Any]) -> None:
    never = schedule("cron", **options)
    assert never.next_after(NOW) is None
    assert never.span(NOW, NOW + 3650 * DAY) is None


def test_rare_cron_is_found_across_centuries() -> None:
    leap = schedule("cron", "Europe/Berlin", month=2, day=29, hour=12, day_of_week="mon")
    assert text(leap.next_after(NOW), "Europe/Berlin") == "2044-02-29 12:00:00"
    assert text(leap.last_upto(NOW), "Europe/Berlin") == "2016-02-29 12:00:00"


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("hour", [0, 12, 23])
def test_each_tick_is_the_last_one_up_to_itself(zone: str, hour: int) -> None:
    kind = {"type": "calendarinterval", "days": 3} if HAS_CALENDAR else {"type": "cron", "day": "*/3"}
    for trigger in ({**kind, "hour": hour}, {"type": "cron", "day": "last", "hour": hour}):
        one = built(trigger, zone)
        ticks = one.ticks(NOW, NOW + 400 * DAY, 200)
        for earlier, later in pairwise(ticks):
            assert one.last_upto(later) == later
            assert one.last_upto(later - 1) == earlier


# -- intervals ------------------------------------------------------------------------------------------


def test_interval_ticks_are_the_anchor_plus_whole_intervals() -> None:
    every = schedule("interval", seconds=0.25, start_date="2025-01-01T00:00:00.100")
    assert every.ticks(NOW, NOW + 700, 10) == [NOW + 100, NOW + 350, NOW + 600]
    assert every.next_after(NOW + 351) == NOW + 600
    assert every.next_after(NOW - DAY) == NOW + 100
    assert every.last_upto(NOW) is None


def test_interval_starts_one_length_after_its_definition() -> None:
    assert schedule("interval", minutes=5).next_after(0) == NOW + 5 * MINUTE


@pytest.mark.parametrize("trigger", ["cron", "interval"])
def test_end_is_the_last_possible_tick(trigger: str) -> None:
    step = {"second": "*/10"} if trigger == "cron" else {"seconds": 10}
    limits = {"start_date": "2025-01-01 00:00:10", "end_date": "2025-01-01 00:00:30"}
    some = schedule(trigger, **step, **limits)
    assert some.ticks(NOW - DAY, NOW + DAY, 100) == [NOW + 10_000, NOW + 20_000, NOW + 30_000]
    assert some.next_after(NOW + 30_000) is None
    assert some.span(NOW + 30_000, NOW + DAY) is None
    assert some.count(NOW, NOW + DAY) == (3, True)


# -- combinations ---------------------------------------------------------------------------------------


def test_or_keeps_the_anchor_of_each_part() -> None:
    both = schedule(OrTrigger([CronTrigger(hour="*", timezone="UTC"), _interval(minutes=25)]))
    found = [text(tick) for tick in walk(both, NOW, NOW + 2 * HOUR)]
    assert [moment[11:16] for moment in found if moment] == [
        "00:10", "00:35", "01:00", "01:25", "01:50", "02:00",
    ]  # fmt: skip


def _interval(**length: Any) -> IntervalTrigger:
    return IntervalTrigger(**length, start_date=datetime(2025, 1, 1, 0, 10, tzinfo=UTC), timezone="UTC")


def test_and_gives_the_ticks_that_all_parts_share() -> None:
    both = schedule(
        AndTrigger([CronTrigger(hour=3, timezone="UTC"), CronTrigger(day="last", timezone="UTC", hour="*")])
    )
    assert [text(tick) for tick in walk(both, NOW, NOW + 60 * DAY)] == [
        "2025-01-31 03:00:00",
        "2025-02-28 03:00:00",
    ]


@quick
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 100), st.integers(0, 100))
def test_and_of_intervals_is_exact(one: int, other: int, begin: int, start: int) -> None:
    parts = [
        {"type": "interval", "seconds": step, "start_date": from_ms(NOW + 1000 * offset)}
        for step, offset in ((one, begin), (other, start))
    ]
    both = built({"type": "and", "triggers": parts}, "UTC")
    seconds = set(range(begin, 4000, one)) & set(range(start, 4000, other))
    assert both.ticks(NOW - 1, NOW + 3_999_999, 10_000) == [NOW + 1000 * second for second in sorted(seconds)]


def test_and_of_a_time_of_day_and_an_interval_meets_in_winter_and_in_summer() -> None:
    parts = [
        {"type": "cron", "hour": 3},
        {"type": "interval", "hours": 1, "start_date": "2025-01-01 00:00:00"},
    ]
    both = built({"type": "and", "triggers": parts}, "Europe/Berlin")
    assert both.count(NOW, at("2025-12-31T12:00:00")) == (365, True)
    assert text(both.next_after(at("2025-07-01T00:00:00"))) == "2025-07-01 01:00:00"


def test_and_of_intervals_ends_with_the_first_of_them() -> None:
    start, end = "2025-01-01 00:00:00", "2025-01-01 00:01:00"
    parts = [
        {"type": "interval", "seconds": 2, "start_date": start, "end_date": end},
        {"type": "interval", "seconds": 3, "start_date": start, "end_date": end.replace("01:00", "00:12")},
        {"type": "interval", "seconds": 1, "start_date": start},
    ]
    for order in (parts, parts[::-1]):
        both = built({"type": "and", "triggers": order}, "UTC")
        assert both.ticks(NOW, NOW + DAY, 100) == [NOW + 6000, NOW + 12_000]


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "interval", "seconds": 60, "start_date": "2025-01-01 00:00:00"},
         {"type": "interval", "seconds": 60, "start_date": "2025-01-01 00:00:01"}],
        [{"type": "cron", "second": "*"},
         {"type": "interval", "seconds": 1, "start_date": "2025-01-01 00:00:00.5"}],
        [{"type": "cron", "hour": 3}, {"type": "cron", "hour": 4}],
        [{"type": "cron", "hour": 3}, {"type": "interval", "hours": 3, "start_date": "2025-01-01 00:00:01"}],
    ],
)  # fmt: skip
def test_and_of_parts_that_never_meet_ends(parts: list[dict[str, Any]]) -> None:
    never = built({"type": "and", "triggers": parts}, "Europe/Berlin")
    assert never.next_after(NOW) is None
    assert never.last_upto(NOW + 3650 * DAY) is None
    assert never.span(NOW, NOW + 3650 * DAY) is None


# -- bounded work ---------------------------------------------------------------------------------------

HEAVY: list[dict[str, Any]] = [
    {"type": "interval", "seconds": 0.001},
    {"type": "cron", "second": "*"},
    {"type": "cron", "hour": "1-23", "second": "*/2"},
    {"type": "cron", "day_of_week": "mon-fri", "minute": "*/5"},
    {"type": "calendarinterval", "days": 1, "hour": 3}
    if HAS_CALENDAR
    else {"type": "cron", "hour": 3, "minute": 30},
    {"type": "or", "triggers": [{"type": "cron", "second": "*"}, {"type": "interval", "seconds": 1.5}]},
    {"type": "and", "triggers": [{"type": "cron", "second": "*"}, {"type": "interval", "seconds": 7}]},
    {"type": "and", "triggers": [{"type": "cron", "second": "*"}, {"type": "cron", "minute": "*/5"}]},
    {"type": "and", "triggers": [{"type": "cron", "hour": 3}, {"type": "cron", "hour": 4}]},
]


@pytest.mark.parametrize("trigger", HEAVY, ids=str)
def test_span_of_ten_years_costs_no_enumeration(trigger: dict[str, Any]) -> None:
    one = built(trigger, "Europe/Berlin")
    after, upto = NOW + DAY, NOW + 3660 * DAY
    began = time.process_time()
    span = one.span(after, upto)
    spent = time.process_time() - began
    assert spent < 1.0  # 315 million ticks one by one take minutes
    if span is not None:
        assert span.count > 3000
        assert span.last == one.last(after, upto)
        assert span.exact is (trigger["type"] not in ("or", "and"))


def test_count_of_a_union_is_exact_up_to_its_limit_and_an_estimate_beyond() -> None:
    both = built(HEAVY[5], "UTC")
    hour = both.span(NOW + DAY, NOW + DAY + HOUR)
    assert hour is not None
    assert (hour.count, hour.exact) == (len(walk(both, NOW + DAY, NOW + DAY + HOUR)), True)
    day = both.span(NOW + DAY, NOW + 2 * DAY)
    assert day is not None
    assert not day.exact


# -- custom triggers ------------------------------------------------------------------------------------


class Squares(BaseTrigger):  # type: ignore[misc]
    """Ticks at the squares of whole numbers, in seconds since 1970."""

    def __init__(self, jitter: int | None = None) -> None:
        self.jitter = jitter

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        number = int(max(0.0, now.timestamp()) ** 0.5)
        while number**2 < now.timestamp():
            number += 1
        tick: datetime = self._apply_jitter(datetime.fromtimestamp(number**2, UTC), self.jitter, now)
        return tick


def test_custom_trigger_gives_its_own_ticks_without_jitter() -> None:
    parsed = parse_trigger(Squares(jitter=30), {})
    assert parsed.jitter_seconds == 30
    one = build(parsed.fields, zone=UTC, custom=Squares(jitter=30))
    assert one.ticks(0, 120_000, 100) == [n * n * 1000 for n in range(1, 11)]
    assert one.next_after(16_000) == 25_000
    assert one.last_upto(24_999) == 16_000
    assert one.span(4_000, 100_000) is not None
    assert isinstance(one.trigger, Squares)


def test_custom_trigger_as_a_part_keeps_its_object() -> None:
    whole = OrTrigger([Squares(), CronTrigger(hour=3, timezone="UTC")])
    assert schedule(whole).next_after(16_000) == 25_000


def test_custom_trigger_without_its_object_is_an_error() -> None:
    with pytest.raises(JobDefinitionError, match="Squares"):
        build(parse_trigger(Squares(), {}).fields, zone=UTC)


class Broken(BaseTrigger):  # type: ignore[misc]
    """A trigger that answers with what it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [ZeroDivisionError("x"), datetime(2030, 1, 1), 17])
def test_custom_trigger_that_fails_is_named(answer: Any) -> None:
    with pytest.raises(JobDefinitionError, match="Broken"):
        schedule(Broken(answer)).next_after(NOW)


def test_custom_trigger_that_is_stuck_in_the_past_has_ended() -> None:
    assert schedule(Broken(datetime(2020, 1, 1, tzinfo=UTC))).next_after(NOW) is None


# -- what else is asked of a schedule ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        ({"type": "interval", "minutes": 5}, "every 5 minutes"),
        ({"type": "interval", "hours": 1}, "every hour"),
        ({"type": "interval", "hours": 25, "seconds": 0.5}, "every 1 day 1 hour 0.5 seconds"),
        ({"type": "cron", "hour": 3}, "at 03:00 every day (Europe/Berlin)"),
        ({"type": "cron", "hour": 3, "timezone": "UTC"}, "at 03:00 every day (UTC)"),
        ({"type": "cron", "day_of_week": "mon-fri", "hour": 4, "minute": 5},
         "at 04:05 on mon-fri (Europe/Berlin)"),
        ({"type": "cron", "day": "last"}, "at 00:00 on day last of every month (Europe/Berlin)"),
        ({"type": "cron", "minute": "*/5"}, "every 5 minutes (Europe/Berlin)"),
        ({"type": "cron", "minute": "*"}, "every minute (Europe/Berlin)"),
        ({"type": "cron", "minute": 7}, "every hour at :07 (Europe/Berlin)"),
        ({"type": "cron", "week": 3, "hour": "1,2"}, "cron week=3, hour=1,2 (Europe/Berlin)"),
        ({"type": "date", "run_date": "2026-01-01 03:00:00"}, "once, at 2026-01-01 03:00:00 (Europe/Berlin)"),
        pytest.param(
            {"type": "calendarinterval", "months": 1, "hour": 3},
            "at 03:00 every month (Europe/Berlin)",
            marks=needs_calendar,
        ),
    ],
)  # fmt: skip
def test_describe_puts_a_schedule_into_words(trigger: dict[str, Any], words: str) -> None:
    assert built(trigger, "Europe/Berlin").describe() == words


@pytest.mark.parametrize("trigger", HEAVY[1:6], ids=str)
def test_trigger_of_a_schedule_reads_as_the_same_schedule(trigger: dict[str, Any]) -> None:
    one = built(trigger, "Europe/Berlin")
    again = parse_trigger(one.trigger, {}, made_at=from_ms(NOW + 300 * DAY)).fields
    assert not needs_pin(again)
    after = NOW + 400 * DAY
    assert ticks_of(build(again, zone=zone_from("Europe/Berlin")), after, 200) == ticks_of(one, after, 200)
    assert str(one) == str(one.trigger)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "interval", "seconds": 5, "start": None, "end": None, "zone": None},
        {"type": "interval", "seconds": 0, "start": 1, "end": None, "zone": None},
        {"type": "interval", "seconds": "5", "start": 1, "end": None, "zone": None},
        {"type": "interval"},
        {"type": "cron", "fields": {"hour": "25"}, "start": None, "end": None, "zone": None},
        {"type": "cron", "fields": {"hours": "2"}, "start": None, "end": None, "zone": None},
        {"type": "cron", "fields": {}, "start": None, "end": None, "zone": "Mars/Base"},
        {"type": "lunar", "zone": None},
        {},
    ],
)
def test_fields_that_cannot_be_read_are_an_error_of_ours(fields: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError):
        build(fields, zone=UTC)
