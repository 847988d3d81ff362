"""Triggers in any of their forms to fields: names with options, APScheduler's objects, mappings.

Knows no store, no Flask and no entry points: triggers are found by class or by name, never by plugin.
What a trigger takes from "now" is null in the fields, to be pinned once for the cluster.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger

from .errors import JobDefinitionError
from .fields import CALENDAR_STEPS, UNITS, Fields, fail, jitter_of, number, seconds_of, whole
from .moments import parse_day, parse_moment
from .trigger_objects import CalendarIntervalTrigger, ObjectReader
from .zones import zone_from, zone_name

__all__ = ["CRON_FIELDS", "TRIGGER_OPTIONS", "Parsed", "parse_trigger"]

CRON_FIELDS = ("year", "month", "day", "week", "day_of_week", "hour", "minute", "second")
_COMMON = ("start_date", "end_date", "timezone", "jitter")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "cron": (*CRON_FIELDS, *_COMMON),
    "interval": (*UNITS, *_COMMON),
    "date": ("run_date", "timezone"),
    "calendarinterval": (*CALENDAR_STEPS, "hour", "minute", "second", *_COMMON),
    "and": ("triggers", "jitter"),
    "or": ("triggers", "jitter"),
}
if CalendarIntervalTrigger is None:
    del _OPTIONS["calendarinterval"]

#: Every keyword option that belongs to some trigger.
TRIGGER_OPTIONS = frozenset(name for names in _OPTIONS.values() for name in names)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became of a trigger and its options.

    :param fields: the trigger, JSON-ready, without jitter.
    :param jitter_seconds: the trigger's jitter, or None.
    :param rest: the options that belong to no trigger.
    :param host_zone: the name of a trigger object's zone that was taken for the host's own and so became
        null; worth a warning where the cluster's zone is another.
    """

    fields: Fields
    jitter_seconds: float | None
    rest: dict[str, Any]
    host_zone: str | None = None


def parse_trigger(
    trigger: str | BaseTrigger | Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    made_at: datetime | None = None,
) -> Parsed:
    """Return a trigger in any of its forms as fields.

    What a trigger object took from "now" or from the host is null again: see :mod:`.trigger_objects`.

    :param trigger: ``"cron"``, ``"interval"``, ``"date"``, ``"calendarinterval"``, an APScheduler trigger,
        or a mapping with ``type`` and the options; None means ``"date"``, as for APScheduler.
    :param options: the keyword options of the job, the trigger's among them.
    :param made_at: when the trigger was handed over (aware); default: now.
    :raises JobDefinitionError: if a trigger, option or value cannot be used; the message names it.
    """
    made_at = made_at or datetime.now(timezone.utc)
    given = {name: value for name, value in options.items() if name in TRIGGER_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in TRIGGER_OPTIONS}
    if isinstance(trigger, BaseTrigger):
        if given:
            fail(
                f"{', '.join(given)} cannot be given beside a trigger object: "
                f"give it to {type(trigger).__name__} instead"
            )
        reader = ObjectReader(made_at)
        fields, jitter = reader.read(trigger)
        return Parsed(fields, jitter, rest, reader.host_zone)
    if isinstance(trigger, Mapping):
        own = {name: value for name, value in trigger.items() if name != "type"}
        for name, value in own.items():
            if name in given and given[name] != value:
                fail(f"{name} is given twice: {given[name]!r} beside the trigger and {value!r} in it")
        kind = trigger.get("type", "date")
        given.update(own)
    else:
        kind = "date" if trigger is None else trigger
    if not isinstance(kind, str):
        fail(f"trigger={kind!r} is no trigger: give {_names()}, a trigger object or a dict with 'type'")
    if kind not in _OPTIONS:
        close = difflib.get_close_matches(kind.lower(), _OPTIONS, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        if kind == "calendarinterval":
            guess = " to this APScheduler (3.11 has it)"
        fail(f"trigger={kind!r} is not known{guess}: give {_names()} or a trigger object")
    for name in given:
        if name not in _OPTIONS[kind]:
            close = difflib.get_close_matches(str(name), _OPTIONS[kind], n=1)
            guess = f" (did you mean {close[0]!r}?)" if close else ""
            fail(
                f"{name}={given[name]!r} is no option of the trigger {kind!r}{guess}: "
                f"it takes {', '.join(_OPTIONS[kind])}"
            )
    given = {name: value for name, value in given.items() if value is not None}
    jitter = jitter_of(given.pop("jitter", None))
    if kind in ("and", "or"):
        return _parse_combined(kind, given, jitter, rest, made_at)
    zone = zone_from(given.pop("timezone")) if "timezone" in given else None
    return Parsed(_PARSERS[kind](given, zone), jitter, rest)


def _names() -> str:
    return ", ".join(repr(name) for name in _OPTIONS if name not in ("and", "or"))


def _parse_combined(
    kind: str, given: Mapping[str, Any], jitter: float | None, rest: dict[str, Any], made_at: datetime
) -> Parsed:
    triggers = given.get("triggers")
    if not isinstance(triggers, Sequence) or isinstance(triggers, str) or not triggers:
        fail(f"triggers={triggers!r}: the trigger {kind!r} takes a list of at least one trigger")
    parts = [parse_trigger(part, {}, made_at=made_at) for part in triggers]
    inner = max((part.jitter_seconds or 0 for part in parts), default=0) or None
    host_zone = next((part.host_zone for part in parts if part.host_zone), None)
    fields = {"type": kind, "triggers": [part.fields for part in parts]}
    return Parsed(fields, jitter or inner, rest, host_zone)


# -- by name ------------------------------------------------------------------------------------------


def _parse_cron(given: dict[str, Any], zone: tzinfo | None) -> Fields:
    fields = _envelope("cron", given, zone)
    expressions = {}
    for name in CRON_FIELDS:
        if name not in given:
            continue
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, int | str):
            fail(f"{name}={value!r}: a cron field takes a number or an expression such as '*/5' or '1,15'")
        expressions[name] = value
    try:
        trigger = CronTrigger(**expressions, timezone=timezone.utc)
    except ValueError as error:
        bad = next((name for name in expressions if not _compiles(name, expressions[name])), None)
        shown = f"{bad}={expressions[bad]!r}" if bad else repr(expressions)
        raise JobDefinitionError(f"{shown} is no cron expression: {error}") from error
    for field in trigger.fields:
        if not field.is_default:
            _check_whole(field, str(expressions[field.name]))
    fields["fields"] = {field.name: str(field) for field in trigger.fields if not field.is_default}
    return fields


def _compiles(name: str, expression: object) -> bool:
    try:
        CronTrigger(**{name: expression}, timezone=timezone.utc)
    except ValueError:
        return False
    return True


def _check_whole(field: Any, text: str) -> None:
    """Refuse what APScheduler would leave out in silence: it reads ``mon-fri/2`` as ``mon-fri``."""
    for part in re.split(" *, *", text.strip()):
        if not any(compiler.value_re.fullmatch(part) for compiler in field.COMPILERS):
            fail(
                f"{field.name}={text!r} is no cron expression: APScheduler would read {part!r} as '{field}'; "
                "list the values instead, separated by commas"
            )


def _parse_interval(given: dict[str, Any], zone: tzinfo | None) -> Fields:
    fields = _envelope("interval", given, zone)
    amounts = {unit: number(unit, given[unit]) for unit in UNITS if unit in given}
    try:
        length = timedelta(**amounts)
    except OverflowError:
        fail(f"an interval of {_shown(amounts)} is too long")
    fields["seconds"] = seconds_of(length, _shown(amounts))
    return fields


def _shown(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in amounts.items()) or "no length"


def _parse_date(given: dict[str, Any], zone: tzinfo | None) -> Fields:
    at = parse_moment("run_date", given.get("run_date"), zone)
    return {"type": "date", "at": at, "zone": _name(zone)}


def _parse_calendar(given: dict[str, Any], zone: tzinfo | None) -> Fields:
    fields: Fields = {"type": "calendarinterval"}
    for name in CALENDAR_STEPS:
        fields[name] = whole(name, given.get(name, 0), 9999 if name == "years" else 120_000)
    if not any(fields[name] for name in CALENDAR_STEPS):
        fail(f"a calendar interval of no length: give {', '.join(CALENDAR_STEPS)}, at least one day in all")
    for name, most in (("hour", 23), ("minute", 59), ("second", 59)):
        fields[name] = whole(name, given.get(name, 0), most)
    fields["start_date"] = parse_day("start_date", given.get("start_date"))
    fields["end_date"] = parse_day("end_date", given.get("end_date"))
    fields["zone"] = _name(zone)
    first, last = fields["start_date"], fields["end_date"]
    if first is not None and last is not None and last < first:
        fail(f"end_date={last} lies before start_date={first}")
    return fields


_PARSERS: dict[str, Callable[[dict[str, Any], tzinfo | None], Fields]] = {
    "cron": _parse_cron,
    "interval": _parse_interval,
    "date": _parse_date,
    "calendarinterval": _parse_calendar,
}


def _envelope(kind: str, given: Mapping[str, Any], zone: tzinfo | None) -> Fields:
    start = parse_moment("start_date", given.get("start_date"), zone)
    end = parse_moment("end_date", given.get("end_date"), zone)
    same = (isinstance(start, int) and isinstance(end, int)) or (
        isinstance(start, dict) and isinstance(end, dict)
    )
    if same and _order(end) < _order(start):
        fail(f"end_date={given['end_date']!r} lies before start_date={given['start_date']!r}")
    return {"type": kind, "start": start, "end": end, "zone": _name(zone)}


def _order(moment: Any) -> Any:
    return datetime.fromisoformat(moment["local"]) if isinstance(moment, dict) else moment


def _name(zone: tzinfo | None) -> str | None:
    return None if zone is None else zone_name(zone)
