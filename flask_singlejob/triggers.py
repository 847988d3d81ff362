"""Triggers to and from JSON-ready fields: what a job's code asks for, in a form that every host reads alike.

Knows no store, no Flask and no entry points: triggers are found by class or by name, never by plugin.
Which ticks the fields stand for is in ``schedules.py``.

What a trigger takes from "now" is null here, to be pinned once for the cluster. A trigger *object* has
taken it already, so it is recognised: see :func:`parse_trigger`.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NoReturn

from apscheduler.triggers.base import BaseTrigger  # type: ignore[import-untyped]
from apscheduler.triggers.combining import AndTrigger, OrTrigger  # type: ignore[import-untyped]
from apscheduler.triggers.cron import CronTrigger  # type: ignore[import-untyped]
from apscheduler.triggers.date import DateTrigger  # type: ignore[import-untyped]
from apscheduler.triggers.interval import IntervalTrigger  # type: ignore[import-untyped]

from .errors import JobDefinitionError
from .moments import parse_day, parse_moment
from .records import from_ms, to_ms
from .zones import zone_from, zone_name

try:
    from apscheduler.triggers.calendarinterval import (  # type: ignore[import-untyped]
        CalendarIntervalTrigger,
    )
except ImportError:  # APScheduler 3.10 has none
    CalendarIntervalTrigger = None

__all__ = [
    "CRON_FIELDS",
    "TRIGGER_OPTIONS",
    "Fields",
    "Parsed",
    "check_storable",
    "fingerprint",
    "needs_pin",
    "parse_trigger",
    "pin",
]

Fields = dict[str, Any]

CRON_FIELDS = ("year", "month", "day", "week", "day_of_week", "hour", "minute", "second")
_UNITS = ("weeks", "days", "hours", "minutes", "seconds")
_CALENDAR_STEPS = ("years", "months", "weeks", "days")
_COMMON = ("start_date", "end_date", "timezone", "jitter")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "cron": (*CRON_FIELDS, *_COMMON),
    "interval": (*_UNITS, *_COMMON),
    "date": ("run_date", "timezone"),
    "calendarinterval": (*_CALENDAR_STEPS, "hour", "minute", "second", *_COMMON),
    "and": ("triggers", "jitter"),
    "or": ("triggers", "jitter"),
}
if CalendarIntervalTrigger is None:
    del _OPTIONS["calendarinterval"]

#: Every keyword option that belongs to some trigger.
TRIGGER_OPTIONS = frozenset(name for names in _OPTIONS.values() for name in names)

# The field of each type that is null while it means "from now".
_PINNABLE = {"interval": "start", "date": "at", "calendarinterval": "start_date"}
# How long before its registration a trigger object may have been made.
_MADE_WITHIN = timedelta(hours=1)
_SECOND = timedelta(seconds=1)


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


def _fail(message: str) -> NoReturn:
    raise JobDefinitionError(message)


def parse_trigger(
    trigger: str | BaseTrigger | Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    made_at: datetime | None = None,
) -> Parsed:
    """Return a trigger in any of its forms as fields.

    Trigger objects have filled in, when they were made, what was not given to them. It becomes null again:

    * a start (or run date) with a fraction of a second, which is the interval after (or is) a moment
      within the hour before ``made_at``: nobody writes microseconds by hand;
    * a calendar interval's start date that was today in that hour, by this host's calendar;
    * a zone that is the host's own as tzlocal gives it. A zone object of another kind (``timezone.utc``
      on a host set to UTC) was given by hand and stays. Naming the host's own zone cannot be told from
      naming none: ``host_zone`` reports it.

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
            _fail(
                f"{', '.join(given)} cannot be given beside a trigger object: "
                f"give it to {type(trigger).__name__} instead"
            )
        reader = _ObjectReader(made_at)
        fields, jitter = reader.read(trigger)
        return Parsed(fields, jitter, rest, reader.host_zone)
    if isinstance(trigger, Mapping):
        own = {name: value for name, value in trigger.items() if name != "type"}
        for name, value in own.items():
            if name in given and given[name] != value:
                _fail(f"{name} is given twice: {given[name]!r} beside the trigger and {value!r} in it")
        kind = trigger.get("type", "date")
        given.update(own)
    else:
        kind = "date" if trigger is None else trigger
    if not isinstance(kind, str):
        _fail(f"trigger={kind!r} is no trigger: give {_names()}, a trigger object or a dict with 'type'")
    if kind not in _OPTIONS:
        close = difflib.get_close_matches(kind.lower(), _OPTIONS, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        _fail(f"trigger={kind!r} is not known{guess}: give {_names()} or a trigger object")
    for name in given:
        if name not in _OPTIONS[kind]:
            close = difflib.get_close_matches(str(name), _OPTIONS[kind], n=1)
            guess = f" (did you mean {close[0]!r}?)" if close else ""
            _fail(
                f"{name}={given[name]!r} is no option of the trigger {kind!r}{guess}: "
                f"it takes {', '.join(_OPTIONS[kind])}"
            )
    given = {name: value for name, value in given.items() if value is not None}
    jitter = _jitter(given.pop("jitter", None))
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
        _fail(f"triggers={triggers!r}: the trigger {kind!r} takes a list of at least one trigger")
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
            _fail(f"{name}={value!r}: a cron field takes a number or an expression such as '*/5' or '1,15'")
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
            _fail(
                f"{field.name}={text!r} is no cron expression: APScheduler would read {part!r} as '{field}'; "
                "list the values instead, separated by commas"
            )


def _parse_interval(given: dict[str, Any], zone: tzinfo | None) -> Fields:
    fields = _envelope("interval", given, zone)
    amounts = {unit: _number(unit, given[unit]) for unit in _UNITS if unit in given}
    try:
        length = timedelta(**amounts)
    except OverflowError:
        _fail(f"an interval of {_shown(amounts)} is too long")
    fields["seconds"] = _seconds(length, _shown(amounts))
    return fields


def _shown(amounts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in amounts.items()) or "no length"


def _seconds(length: timedelta, shown: str) -> int | float:
    """Return the length of an interval in seconds: a whole number, or to the millisecond."""
    milliseconds = round(length / timedelta(milliseconds=1))
    if milliseconds < 1:
        _fail(f"an interval of {shown} never ends: give a length above 0 in {', '.join(_UNITS)}")
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def _parse_date(given: dict[str, Any], zone: tzinfo | None) -> Fields:
    at = parse_moment("run_date", given.get("run_date"), zone)
    return {"type": "date", "at": at, "zone": _name(zone)}


def _parse_calendar(given: dict[str, Any], zone: tzinfo | None) -> Fields:
    fields: Fields = {"type": "calendarinterval"}
    for name in _CALENDAR_STEPS:
        fields[name] = _whole(name, given.get(name, 0), 9999 if name == "years" else 120_000)
    if not any(fields[name] for name in _CALENDAR_STEPS):
        _fail(f"a calendar interval of no length: give {', '.join(_CALENDAR_STEPS)}, at least one day in all")
    for name, most in (("hour", 23), ("minute", 59), ("second", 59)):
        fields[name] = _whole(name, given.get(name, 0), most)
    fields["start_date"] = parse_day("start_date", given.get("start_date"))
    fields["end_date"] = parse_day("end_date", given.get("end_date"))
    fields["zone"] = _name(zone)
    first, last = fields["start_date"], fields["end_date"]
    if first is not None and last is not None and last < first:
        _fail(f"end_date={last} lies before start_date={first}")
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
        _fail(f"end_date={given['end_date']!r} lies before start_date={given['start_date']!r}")
    return {"type": kind, "start": start, "end": end, "zone": _name(zone)}


def _order(moment: Any) -> Any:
    return datetime.fromisoformat(moment["local"]) if isinstance(moment, dict) else moment


def _name(zone: tzinfo | None) -> str | None:
    return None if zone is None else zone_name(zone)


def _number(name: str, value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _fail(f"{name}={value!r} is no number: give an int or a float")
    return value


def _whole(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        _fail(f"{name}={value!r}: give a whole number from 0 to {most}")
    return value


def _jitter(value: object) -> float | None:
    if value is None:
        return None
    seconds = _number("jitter", value)
    if seconds < 0:
        _fail(f"jitter={value!r} is negative: give seconds, 0 or more")
    return float(seconds) or None


# -- from trigger objects -----------------------------------------------------------------------------


class _ObjectReader:
    """Reads trigger objects that were made shortly before a given moment."""

    def __init__(self, made_at: datetime) -> None:
        self.made_at = made_at
        self.host_zone: str | None = None

    def read(self, trigger: BaseTrigger) -> tuple[Fields, float | None]:
        """Return fields and jitter; a subclass that computes its own times is a custom trigger."""
        jitter = _jitter(getattr(trigger, "jitter", None))
        for known, reader in (
            (CronTrigger, self._cron),
            (IntervalTrigger, self._interval),
            (DateTrigger, self._date),
            (CalendarIntervalTrigger, self._calendar),
        ):
            if known is not None and _computes_as(trigger, known):
                return reader(trigger), jitter
        for known, kind in ((AndTrigger, "and"), (OrTrigger, "or")):
            if _computes_as(trigger, known):
                parts = [self.read(part) for part in trigger.triggers]
                if not parts:
                    _fail(f"{type(trigger).__name__} takes a list of at least one trigger")
                inner = max((part[1] or 0 for part in parts), default=0) or None
                return {"type": kind, "triggers": [part[0] for part in parts]}, jitter or inner
        cls = type(trigger)
        bare = copy.copy(trigger)
        if jitter is not None:
            bare.jitter = None
        # An address in a default repr differs in each process.
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(bare))
        return {"type": "custom", "ref": f"{cls.__module__}:{cls.__qualname__}", "repr": text}, jitter

    def _zone(self, zone: tzinfo) -> str | None:
        if _is_host_zone(zone):
            self.host_zone = self.host_zone or _nameable(zone)
            return None
        return zone_name(zone)

    def _cron(self, trigger: Any) -> Fields:
        return {
            "type": "cron",
            "start": None if trigger.start_date is None else to_ms(trigger.start_date),
            "end": None if trigger.end_date is None else to_ms(trigger.end_date),
            "zone": self._zone(trigger.timezone),
            "fields": {field.name: str(field) for field in trigger.fields if not field.is_default},
        }

    def _interval(self, trigger: Any) -> Fields:
        start = trigger.start_date
        from_now = self._just_now(start - trigger.interval, start)
        # The zone of an interval changes no tick: one without a name is left out.
        zone = None if _is_host_zone(trigger.timezone) else _nameable(trigger.timezone)
        return {
            "type": "interval",
            "start": None if from_now else to_ms(start),
            "end": None if trigger.end_date is None else to_ms(trigger.end_date),
            "zone": zone,
            "seconds": _seconds(trigger.interval, repr(trigger.interval)),
        }

    def _date(self, trigger: Any) -> Fields:
        at = trigger.run_date
        return {"type": "date", "at": None if self._just_now(at, at) else to_ms(at), "zone": None}

    def _calendar(self, trigger: Any) -> Fields:
        day = parse_day("start_date", trigger.start_date)
        local = self.made_at.astimezone()
        todays = {moment.date().isoformat() for moment in (local, local - _MADE_WITHIN)}
        time = trigger._time
        return {
            "type": "calendarinterval",
            **{name: getattr(trigger, name) for name in _CALENDAR_STEPS},
            **{name: getattr(time, name) for name in ("hour", "minute", "second")},
            "start_date": None if day in todays else day,
            "end_date": parse_day("end_date", trigger.end_date),
            "zone": self._zone(trigger.timezone),
        }

    def _just_now(self, moment: datetime, written: datetime) -> bool:
        return written.microsecond != 0 and -_MADE_WITHIN <= moment - self.made_at <= _SECOND


def _computes_as(trigger: BaseTrigger, known: Any) -> bool:
    return isinstance(trigger, known) and type(trigger).get_next_fire_time is known.get_next_fire_time


def _is_host_zone(zone: tzinfo) -> bool:
    """Tell whether a trigger object's zone is what tzlocal gives here, of the same kind and name."""
    try:
        import tzlocal

        host = tzlocal.get_localzone()
    except Exception:  # then no trigger object can have got its zone from it
        return False
    if zone is host:
        return True
    key = getattr(host, "key", None)
    return type(zone) is type(host) and key is not None and getattr(zone, "key", None) == key


def _nameable(zone: tzinfo) -> str | None:
    try:
        return zone_name(zone)
    except JobDefinitionError:
        return None


# -- what is done with fields -------------------------------------------------------------------------


def check_storable(fields: Fields) -> None:
    """Check that fields say all there is to say of the trigger, so that it can be stored.

    :raises JobDefinitionError: for a trigger class of somebody else's making.
    """
    if fields["type"] == "custom":
        _fail(
            f"a job with the trigger {fields['ref']} cannot be stored: only APScheduler's own triggers can; "
            "define the job in code instead"
        )
    for part in fields.get("triggers", ()):
        check_storable(part)


def needs_pin(fields: Fields) -> bool:
    """Tell whether any part of the trigger still means "from now"."""
    name = _PINNABLE.get(fields["type"])
    if name is not None and fields.get(name) is None:
        return True
    return any(needs_pin(part) for part in fields.get("triggers", ()))


def pin(fields: Fields, *, now_ms: int, zone: tzinfo) -> Fields:
    """Return the fields with everything that means "from now" filled in, and marked ``pinned``.

    An interval starts one length from now, a date is now, a calendar interval starts today.

    :param now_ms: the store's clock, UTC milliseconds.
    :param zone: the cluster's zone, for triggers that name none.
    """
    pinned = dict(fields)
    if "triggers" in pinned:
        pinned["triggers"] = [pin(part, now_ms=now_ms, zone=zone) for part in pinned["triggers"]]
    name = _PINNABLE.get(pinned["type"])
    if name is None or pinned.get(name) is not None:
        return pinned
    if name == "start":
        pinned["start"] = now_ms + round(pinned["seconds"] * 1000)
    elif name == "at":
        pinned["at"] = now_ms
    else:
        own = zone if pinned["zone"] is None else zone_from(pinned["zone"])
        pinned["start_date"] = from_ms(now_ms).astimezone(own).date().isoformat()
    pinned["pinned"] = name
    return pinned


def fingerprint(job_id: str, fields: Fields, jitter: float | None = None) -> str:
    """Return 32 hex digits for a definition, the same in every process, release of Python and host.

    Pinned values count as null; a trigger without zone has the same fingerprint in any cluster.
    """
    jitter = None if not jitter else float(jitter)
    text = json.dumps([job_id, _unpinned(fields), jitter], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _unpinned(fields: Fields) -> Fields:
    plain = {name: value for name, value in fields.items() if name != "pinned"}
    if "pinned" in fields:
        plain[fields["pinned"]] = None
    if "triggers" in plain:
        plain["triggers"] = [_unpinned(part) for part in plain["triggers"]]
    return plain
