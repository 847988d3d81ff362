"""Triggers in all their forms: what they become, what is told apart, what is refused and how."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from dateutil import tz as dateutil_tz  # type: ignore[import-untyped]

from flask_singlejob.errors import JobDefinitionError
from flask_singlejob.ticks import (
    check_storable,
    fingerprint,
    needs_pin,
    parse_trigger,
    pin,
    zone_from,
    zone_name,
)

from .schedule_kit import HAS_CALENDAR, HOUR, UTC, at

BERLIN = ZoneInfo("Europe/Berlin")
needs_calendar = pytest.mark.skipif(not HAS_CALENDAR, reason="needs APScheduler 3.11")


def calendar_trigger(**options: Any) -> Any:
    """Return a CalendarIntervalTrigger, which older releases of APScheduler do not have."""
    from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger

    return CalendarIntervalTrigger(**options)


@pytest.fixture
def host_in_berlin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tzlocal.get_localzone", lambda: BERLIN)


def fields(trigger: Any, **options: Any) -> dict[str, Any]:
    return parse_trigger(trigger, options).fields


# -- by name ----------------------------------------------------------------------------------------------


def test_interval_by_name() -> None:
    assert fields("interval", minutes=5) == {
        "type": "interval",
        "seconds": 300,
        "start": None,
        "end": None,
        "zone": None,
    }
    assert fields("interval", seconds=0.25)["seconds"] == 0.25
    assert isinstance(fields("interval", seconds=60.0)["seconds"], int)
    assert fields("interval", weeks=1, days=1, hours=1)["seconds"] == 8 * 86400 + 3600


def test_cron_by_name_keeps_only_what_was_given() -> None:
    assert fields("cron", hour="03", minute=" 1, 2", day_of_week="mon-fri", timezone="Europe/Berlin") == {
        "type": "cron",
        "fields": {"day_of_week": "mon-fri", "hour": "3", "minute": "1,2"},
        "start": None,
        "end": None,
        "zone": "Europe/Berlin",
    }


def test_date_by_name_or_by_nothing() -> None:
    assert fields("date") == fields(None) == {"type": "date", "at": None, "zone": None}
    assert fields("date", run_date="2026-01-01T03:00:00Z")["at"] == at("2026-01-01T03:00:00")


@needs_calendar
def test_calendar_interval_by_name() -> None:
    assert fields("calendarinterval", months=1, hour=3, end_date="2027-01-01") == {
        "type": "calendarinterval",
        "years": 0,
        "months": 1,
        "weeks": 0,
        "days": 0,
        "hour": 3,
        "minute": 0,
        "second": 0,
        "start_date": None,
        "end_date": "2027-01-01",
        "zone": None,
    }


def test_mapping_is_a_trigger_of_its_type() -> None:
    assert fields({"type": "cron", "hour": 3}) == fields("cron", hour=3)
    assert fields({"run_date": "2026-01-01 00:00:00+00:00"}) == fields(
        "date", run_date="2026-01-01 00:00:00Z"
    )
    assert fields({"type": "interval"}, seconds=5) == fields("interval", seconds=5)


def test_options_of_no_trigger_are_given_back() -> None:
    parsed = parse_trigger("cron", {"hour": 3, "jitter": 5, "max_instances": 2, "name": "x"})
    assert parsed.rest == {"max_instances": 2, "name": "x"}
    assert parsed.jitter_seconds == 5
    assert "jitter" not in json.dumps(parsed.fields)


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-31 03:00:00",
        "2026-1-31 3:0:0",
        "2026-01-31T03:00",
        "Jan 31 2026, 3am",
        datetime(2026, 1, 31, 3),
    ],
)
def test_time_without_zone_stays_local_until_its_zone_is_known(value: object) -> None:
    assert fields("date", run_date=value)["at"] == {"local": "2026-01-31T03:00:00"}
    assert fields("date", run_date=value, timezone="Europe/Berlin")["at"] == at("2026-01-31T03:00:00+01:00")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (date(2026, 1, 31), {"local": "2026-01-31T00:00:00"}),
        ("2026-01-31", {"local": "2026-01-31T00:00:00"}),
        ("2026-01-31 03:00:00.5", {"local": "2026-01-31T03:00:00.500000"}),
        ("2026-01-31T03:00:00+02:00", at("2026-01-31T01:00:00")),
        (datetime(2026, 1, 31, 3, tzinfo=BERLIN), at("2026-01-31T02:00:00")),
    ],
)
def test_dates_and_times_in_other_forms(value: object, expected: object) -> None:
    assert fields("date", run_date=value)["at"] == expected


# -- from objects -----------------------------------------------------------------------------------------


def test_trigger_object_says_the_same_as_its_name() -> None:
    for named, made in (
        (fields("cron", hour=3, timezone="UTC"), CronTrigger(hour=3, timezone="UTC")),
        (
            fields("cron", minute="5", hour="4", day="*", month="*", day_of_week="mon-fri", timezone="UTC"),
            CronTrigger.from_crontab("5 4 * * mon-fri", timezone="UTC"),
        ),
        (
            fields("interval", minutes=5, start_date="2026-01-01T00:00:00Z", timezone="UTC"),
            IntervalTrigger(minutes=5, start_date="2026-01-01T00:00:00Z", timezone="UTC"),
        ),
        (fields("date", run_date="2026-01-01T00:00:00Z"), DateTrigger("2026-01-01T00:00:00Z")),
    ):
        assert fields(made) == named


def test_combined_objects_nest_and_keep_the_largest_jitter() -> None:
    nested = OrTrigger(
        [
            AndTrigger([CronTrigger(hour=3, timezone="UTC", jitter=7), CronTrigger(day=1, timezone="UTC")]),
            IntervalTrigger(minutes=5, timezone="UTC", jitter=3),
        ]
    )
    parsed = parse_trigger(nested, {})
    assert parsed.jitter_seconds == 7
    assert [part["type"] for part in parsed.fields["triggers"]] == ["and", "interval"]
    assert needs_pin(parsed.fields)
    assert "jitter" not in json.dumps(parsed.fields)


def test_what_an_object_took_from_now_is_from_now_again() -> None:
    later = datetime.now(UTC) + timedelta(minutes=10)
    made = [IntervalTrigger(minutes=5), DateTrigger()]
    if all(moment.microsecond for moment in (made[0].start_date, made[1].run_date)):
        parsed = [parse_trigger(trigger, {}, made_at=later).fields for trigger in made]
        assert parsed[0] == fields("interval", minutes=5)
        assert parsed[1] == fields("date")


@pytest.mark.parametrize(
    "trigger",
    [
        IntervalTrigger(minutes=5, start_date=datetime(2026, 1, 1, 12, 5, tzinfo=UTC)),
        IntervalTrigger(minutes=5, start_date=datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)),
        DateTrigger(datetime(2026, 1, 1, 12, tzinfo=UTC)),
        DateTrigger(datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)),
    ],
    ids=["whole second", "long ago", "whole second date", "ahead"],
)
def test_what_was_given_by_hand_stays(trigger: BaseTrigger) -> None:
    made_at = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert not needs_pin(parse_trigger(trigger, {}, made_at=made_at).fields)


@pytest.mark.usefixtures("host_in_berlin")
def test_zone_that_an_object_got_from_the_host_is_none() -> None:
    parsed = parse_trigger(CronTrigger(hour=3, timezone=BERLIN), {})
    assert parsed.fields["zone"] is None
    assert parsed.host_zone == "Europe/Berlin"
    other = parse_trigger(CronTrigger(hour=3, timezone="Asia/Tokyo"), {})
    assert (other.fields["zone"], other.host_zone) == ("Asia/Tokyo", None)


def test_utc_given_by_hand_on_a_host_in_utc_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tzlocal.get_localzone", lambda: ZoneInfo("Etc/UTC"))
    assert fields(CronTrigger(hour=3, timezone="UTC"))["zone"] == "UTC"
    assert fields(CronTrigger(hour=3, timezone=ZoneInfo("Etc/UTC")))["zone"] is None


def test_objects_of_an_unreadable_host_zone_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("no zone here")

    monkeypatch.setattr("tzlocal.get_localzone", fail)
    assert fields(CronTrigger(hour=3, timezone="Asia/Tokyo"))["zone"] == "Asia/Tokyo"


@needs_calendar
def test_calendar_object_starts_today_where_it_was_given_no_day() -> None:
    made_at = datetime.now(UTC)
    named = fields("calendarinterval", days=2, start_date="2026-01-01", timezone="UTC")
    assert fields(calendar_trigger(days=2, start_date="2026-01-01", timezone="UTC")) == named
    for trigger, start in (
        (calendar_trigger(days=1), None),
        (calendar_trigger(days=1, start_date="2020-01-03"), "2020-01-03"),
    ):
        assert parse_trigger(trigger, {}, made_at=made_at).fields["start_date"] == start


class Custom(BaseTrigger):  # type: ignore[misc]
    """A trigger with the default repr, which shows its address."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        return None


class Renamed(CronTrigger):  # type: ignore[misc]
    """A subclass that computes nothing of its own."""


class Overridden(CronTrigger):  # type: ignore[misc]
    """A subclass that does."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        return None


def test_class_of_somebody_elses_making_is_for_code_only() -> None:
    first, second = fields(Custom()), fields(Custom())
    assert first == second  # no address
    assert first["type"] == "custom"
    assert first["ref"].endswith(":Custom")
    with pytest.raises(JobDefinitionError, match="Custom"):
        check_storable({"type": "or", "triggers": [fields("cron", hour=3), first]})
    check_storable(fields("cron", hour=3))
    assert fields(Renamed(hour=3, timezone="UTC"))["type"] == "cron"
    assert fields(Overridden(hour=3, timezone="UTC"))["type"] == "custom"


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trigger", "options", "named"),
    [
        ("Cron", {}, "did you mean 'cron'"),
        ("lunar", {}, "'interval'"),
        (17, {}, "trigger=17"),
        ({"type": None}, {}, "trigger=None"),
        ("cron", {"seconds": 5}, "did you mean 'second'"),
        ("interval", {"minute": 5}, "did you mean 'minutes'"),
        ("interval", {"hour": 5}, "hour=5"),
        ("date", {"jitter": 5}, "jitter=5"),
        ({"type": "cron", "max_instances": 2}, {}, "max_instances=2"),
        ({"type": "cron", "hour": 3}, {"hour": 4}, "hour is given twice"),
        (CronTrigger(hour=3, timezone="UTC"), {"hour": 3}, "hour cannot be given"),
        ("interval", {}, "no length"),
        ("interval", {"seconds": 0}, "seconds=0"),
        ("interval", {"seconds": -5}, "seconds=-5"),
        ("interval", {"seconds": 0.0001}, "seconds=0.0001"),
        ("interval", {"seconds": "5"}, "seconds='5'"),
        ("interval", {"seconds": True}, "seconds=True"),
        ("interval", {"seconds": float("nan")}, "seconds=nan"),
        ("interval", {"weeks": 10**12}, "too long"),
        ("interval", {"seconds": 5, "jitter": -1}, "jitter=-1"),
        ("interval", {"seconds": 5, "jitter": "3"}, "jitter='3'"),
        ("interval", {"seconds": 5, "start_date": 1700000000}, "start_date=1700000000"),
        ("interval", {"seconds": 5, "start_date": "tomorrow"}, "start_date='tomorrow'"),
        ("date", {"run_date": "10:30"}, "run_date='10:30'"),
        ("date", {"run_date": "Monday"}, "run_date='Monday'"),
        ("date", {"run_date": "2026-02-30"}, "run_date='2026-02-30'"),
        ("date", {"run_date": ""}, "run_date=''"),
        ("cron", {"hour": 25}, "hour=25"),
        ("cron", {"hour": "x", "minute": 5}, "hour='x'"),
        ("cron", {"minute": "*/0"}, "minute='*/0'"),
        ("cron", {"hour": [1, 2]}, "hour=[1, 2]"),
        ("cron", {"hour": 3.5}, "hour=3.5"),
        ("cron", {"day_of_week": "mon-fri/2"}, "mon-fri/2"),
        ("cron", {"day": "lastday"}, "lastday"),
        ("cron", {"hour": 3, "timezone": "Mars/Base"}, "Mars/Base"),
        ("cron", {"hour": 3, "timezone": "localtime"}, "localtime"),
        ("cron", {"hour": 3, "timezone": "../etc/passwd"}, "timezone="),
        ("cron", {"hour": 3, "timezone": "Europe"}, "Europe"),
        ("cron", {"hour": 3, "timezone": 2}, "timezone=2"),
        ("cron", {"hour": 3, "start_date": "2026-01-02", "end_date": "2026-01-01"}, "end_date='2026-01-01'"),
        (
            "cron",
            {"hour": 3, "start_date": "2026-01-01T02:00:00Z", "end_date": "2026-01-01T02:00:00+01:00"},
            "lies before",
        ),
        ({"type": "and", "triggers": []}, {}, "at least one"),
        ({"type": "or", "triggers": "cron"}, {}, "at least one"),
        (OrTrigger([]), {}, "at least one"),
    ],
)
def test_wrong_input_is_named(trigger: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(JobDefinitionError, match=re.escape(named)):
        parse_trigger(trigger, options)


@needs_calendar
@pytest.mark.parametrize(
    ("trigger", "options", "named"),
    [
        ("calendarinterval", {}, "no length"),
        ("calendarinterval", {"days": -1}, "days=-1"),
        ("calendarinterval", {"days": 1.5}, "days=1.5"),
        ("calendarinterval", {"days": 1, "hour": 24}, "hour=24"),
        ("calendarinterval", {"days": 1, "start_date": "2026-01-01T00:00:00Z"}, "has a zone"),
        (
            "calendarinterval",
            {"days": 1, "start_date": "2026-01-02", "end_date": "2026-01-01"},
            "lies before",
        ),
    ],
)
def test_wrong_calendar_interval_is_named(trigger: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(JobDefinitionError, match=re.escape(named)):
        parse_trigger(trigger, options)


# -- pins and fingerprints --------------------------------------------------------------------------------

NOW = at("2026-03-01T23:30:00")


def test_pin_fills_in_what_means_from_now() -> None:
    interval = pin(fields("interval", hours=1), now_ms=NOW, zone=UTC)
    assert interval["start"] == NOW + HOUR
    assert pin(fields("date"), now_ms=NOW, zone=UTC)["at"] == NOW


@needs_calendar
def test_pin_of_a_calendar_interval_is_today_in_its_zone() -> None:
    daily = fields("calendarinterval", days=1)
    assert pin(daily, now_ms=NOW, zone=UTC)["start_date"] == "2026-03-01"
    assert pin(daily, now_ms=NOW, zone=BERLIN)["start_date"] == "2026-03-02"
    own = fields("calendarinterval", days=1, timezone="UTC")
    assert pin(own, now_ms=NOW, zone=BERLIN)["start_date"] == "2026-03-01"


def test_pin_leaves_alone_what_was_given() -> None:
    for given in (fields("cron", hour=3), fields("interval", hours=1, start_date="2026-01-01 00:00:00")):
        assert not needs_pin(given)
        assert pin(given, now_ms=NOW, zone=UTC) == given


def test_pin_reaches_every_part_and_changes_no_argument() -> None:
    whole = fields(
        {"type": "or", "triggers": [{"type": "interval", "hours": 1}, {"type": "cron", "hour": 3}]}
    )
    before = json.dumps(whole)
    assert needs_pin(whole)
    assert not needs_pin(pin(whole, now_ms=NOW, zone=UTC))
    assert json.dumps(whole) == before


def test_fingerprint_is_the_same_before_and_after_the_pin() -> None:
    for given in (
        fields("interval", hours=1),
        fields("date"),
        fields({"type": "or", "triggers": [{"type": "interval", "hours": 1}, {"type": "date"}]}),
    ):
        assert fingerprint("a", pin(given, now_ms=NOW, zone=UTC)) == fingerprint("a", given)


def test_fingerprint_tells_definitions_apart() -> None:
    prints = [
        fingerprint("a", fields("interval", hours=1)),
        fingerprint("A", fields("interval", hours=1)),
        fingerprint("a", fields("interval", hours=2)),
        fingerprint("a", fields("interval", hours=1), 5),
        fingerprint("a", fields("interval", hours=1, start_date="2026-01-01 00:00:00")),
        fingerprint("a", fields("cron", hour=1)),
        fingerprint("a", fields("cron", hour=1, timezone="UTC")),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint("a", fields("interval", minutes=60.0), 0) == prints[0]


def test_fingerprint_never_changes() -> None:
    # A release that reckons another one starts every job's definition anew: pinned as text.
    assert fingerprint("nightly", fields("cron", hour=3), 10) == "dd159c0375316fb8cd08956382136934"
    assert fingerprint("ünï", fields("interval", seconds=0.5)) == "25087444cd73987e81aa879c63d01c78"


def test_fingerprint_does_not_depend_on_the_process(tmp_path: Path) -> None:
    code = (
        "from flask_singlejob.ticks import fingerprint, parse_trigger;"
        "print(fingerprint('a', parse_trigger('interval', {'hours': 1, 'jitter': 3}).fields))"
    )
    root = str(Path(__file__).resolve().parents[2])
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root, "TZ": zone},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }
    assert found == {fingerprint("a", fields("interval", hours=1))}


# -- zones ------------------------------------------------------------------------------------------------


class PytzLike(timezone.__base__):  # type: ignore[misc,name-defined]
    """A zone object as pytz makes them: with ``zone``, and useless as a tzinfo."""

    zone = "Europe/Berlin"

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return timedelta(minutes=53)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        ("UTC", "UTC"),
        ("Etc/UTC", "UTC"),
        (timezone.utc, "UTC"),
        (ZoneInfo("UTC"), "UTC"),
        ("UTC+02:00", "UTC+02:00"),
        ("+05:30", "UTC+05:30"),
        (timezone(timedelta(hours=-3, minutes=-30)), "UTC-03:30"),
        (timezone(timedelta(hours=2), "EET"), "UTC+02:00"),
        (PytzLike(), "Europe/Berlin"),
        (dateutil_tz.gettz("Europe/Berlin"), "Europe/Berlin"),
        (dateutil_tz.UTC, "UTC"),
        (dateutil_tz.tzoffset("x", 3600), "UTC+01:00"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PytzLike) else repr(value),
)
def test_zone_in_any_form_has_one_name(value: Any, name: str) -> None:
    zone = zone_from(value)
    assert zone_name(zone) == name
    assert zone_from(name) == zone
    assert isinstance(zone, ZoneInfo | timezone)


@pytest.mark.parametrize(
    "value", [dateutil_tz.tzlocal(), "", "UTC+25:00", "UTC+02:75", 3, None, "posixrules"], ids=repr
)
def test_zone_that_no_other_host_could_read_is_refused(value: Any) -> None:
    with pytest.raises(JobDefinitionError, match="timezone="):
        zone_from(value)


HOST = """
import json, warnings
warnings.simplefilter("error")
from flask_singlejob.ticks import local_zone
first, second = local_zone(), local_zone()
assert first[1] == second[1]
print(json.dumps(first[1:]))
"""


@pytest.mark.parametrize(
    ("zone", "name", "warned"),
    [
        ("Asia/Tokyo", "Asia/Tokyo", False),
        ("UTC", "UTC", False),
        ("Etc/UTC", "UTC", False),
        ("Nonsense/Zone", "UTC", True),
        ("EST5EDT4,M3.2.0,M11.1.0", "UTC", True),
        ("\u0001", "UTC", True),
    ],
)
def test_host_zone_is_found_or_is_utc_with_a_warning(
    zone: str, name: str, warned: bool, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOST],
        env={**os.environ, "TZ": zone, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found, warning = json.loads(done.stdout)
    assert found == name
    assert (warning is not None) is warned
    if warned:
        assert "SCHEDULER_TIMEZONE" in warning


@pytest.mark.parametrize(
    "trouble", [OSError("no file"), ValueError("bad data"), LookupError("x"), UserWarning("w")]
)
def test_whatever_tzlocal_raises_is_a_warning_text(
    monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    from flask_singlejob.ticks import local_zone

    def fail() -> None:
        raise trouble

    monkeypatch.setattr("tzlocal.get_localzone", fail)
    zone, name, warning = local_zone()
    assert (zone, name) == (UTC, "UTC")
    assert warning is not None


def test_host_zone_that_contradicts_the_system_clock_is_utc_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flask_singlejob.ticks import local_zone

    far = (
        ZoneInfo("Asia/Tokyo")
        if datetime.now().astimezone().utcoffset() != timedelta(hours=9)
        else ZoneInfo("UTC")
    )
    monkeypatch.setattr("tzlocal.get_localzone", lambda: far)
    zone, name, warning = local_zone()
    assert (zone, name) == (UTC, "UTC")
    assert warning is not None
    assert "offset" in warning


def test_triggers_need_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("entry points were looked up")

    monkeypatch.setattr("importlib.metadata.entry_points", fail)
    assert fields("cron", hour=3)["type"] == "cron"
