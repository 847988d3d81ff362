"""A trigger's fields in words, for pages, logs and the command line.

Guesses nothing: what has no short form keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .records import from_ms
from .zones import zone_from

__all__ = ["describe", "error_line"]

_DEFAULTS = {"month": "1", "day": "1", "hour": "0", "minute": "0", "second": "0"}
_ORDER = ("year", "month", "day", "week", "day_of_week", "hour", "minute", "second")


def describe(fields: Mapping[str, Any], zone: str) -> str:
    """Return what a trigger means, in words.

    :param fields: the trigger's fields, pinned or not.
    :param zone: the name of the zone it is read in where it names none.
    """
    zone = fields.get("zone") or zone
    kind = fields["type"]
    if kind in ("and", "or"):
        return f" {kind} ".join(f"({describe(part, zone)})" for part in fields["triggers"])
    if kind == "custom":
        return str(fields["repr"])
    if kind == "date":
        return f"once, at {_moment(fields['at'], zone)}"
    if kind == "interval":
        return f"every {_length(fields['seconds'])}"
    if kind == "calendarinterval":
        steps = [
            f"{fields[name]} {name if fields[name] > 1 else name[:-1]}"
            for name in ("years", "months", "weeks", "days")
            if fields[name]
        ]
        every = steps[0].removeprefix("1 ") if len(steps) == 1 else " and ".join(steps)
        return f"at {_clock(fields['hour'], fields['minute'], fields['second'])} every {every} ({zone})"
    return f"{_cron(fields['fields'])} ({zone})"


def error_line(error: str) -> str:
    """Return the line of a traceback that names the exception and begins its message."""
    lines = error.strip().splitlines() or [""]
    frames = [place for place, line in enumerate(lines) if line.lstrip(" |").startswith("File ")]
    told = [line for line in lines[frames[-1] + 1 if frames else 0 :] if line[:1].strip()]
    return told[0] if told else lines[-1].strip()


def _moment(at: Any, zone: str) -> str:
    if at is None:
        return "the time of its definition"
    if isinstance(at, dict):
        return f"{at['local'].replace('T', ' ')} ({zone})"
    return f"{from_ms(at).astimezone(zone_from(zone)):%Y-%m-%d %H:%M:%S} ({zone})"


def _length(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    parts = []
    for name, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        number, milliseconds = divmod(milliseconds, size)
        if name == "second" and milliseconds:
            parts.append(f"{number + milliseconds / 1000:g} seconds")
        elif number:
            parts.append(f"{number} {name}{'s' if number > 1 else ''}")
    text = " ".join(parts)
    return text[2:] if len(parts) == 1 and text.startswith("1 ") else text


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


def _cron(given: Mapping[str, str]) -> str:
    # What stands before the last given field is "*", what follows it is the lowest value.
    last = max((_ORDER.index(name) for name in given), default=len(_ORDER))
    fields = {
        name: given.get(name, "*" if place < last else _DEFAULTS.get(name, "*"))
        for place, name in enumerate(_ORDER)
    }
    hour, minute, second = fields["hour"], fields["minute"], fields["second"]
    days = _days(fields)
    if days is None or not second.isdigit():
        return "cron " + ", ".join(f"{name}={given[name]}" for name in _ORDER if name in given)
    if hour.isdigit() and minute.isdigit():
        return f"at {_clock(int(hour), int(minute), int(second))} {days}"
    if hour == "*" and second == "0" and days == "every day":
        if minute.isdigit():
            return "every hour" if minute == "0" else f"every hour at :{int(minute):02}"
        if minute == "*":
            return "every minute"
        if minute.startswith("*/") and 60 % int(minute[2:]) == 0:
            return f"every {minute[2:]} minutes"
    return "cron " + ", ".join(f"{name}={given[name]}" for name in _ORDER if name in given)


def _days(fields: Mapping[str, str]) -> str | None:
    year, month, day, week, weekday = (
        fields[name] for name in ("year", "month", "day", "week", "day_of_week")
    )
    if (year, week) != ("*", "*"):
        return None
    if (month, day, weekday) == ("*", "*", "*"):
        return "every day"
    if (month, day) == ("*", "*"):
        return f"on {weekday}" if not weekday[0].isdigit() else None
    if (month, weekday) == ("*", "*"):
        return f"on day {day} of every month"
    return None
