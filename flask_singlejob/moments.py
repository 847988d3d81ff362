"""Dates and times as people give them: text, dates, datetimes, with or without a zone.

A time without zone stays local text until a zone is known; it is never read in the host's zone.
"""

from __future__ import annotations

import re
import warnings
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, NoReturn

from .errors import JobDefinitionError
from .records import to_ms
from .zones import instant

__all__ = ["moment_ms", "parse_day", "parse_moment"]

Moment = int | dict[str, str] | None

# APScheduler's own form, in which single digits will do.
_PLAIN = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d)?)?"
)


def _fail(option: str, value: object) -> NoReturn:
    raise JobDefinitionError(
        f"{option}={value!r} is no date or time: give a datetime, a date, or text such as "
        "'2026-01-31 03:00:00' or '2026-01-31T03:00:00+01:00'"
    )


def parse_moment(option: str, value: object, zone: tzinfo | None) -> Moment:
    """Return a moment as UTC milliseconds, or as ``{"local": ISO text}`` while its zone is not known.

    :param option: its name, for the error.
    :param value: a datetime, a date (its midnight), text, or None.
    :param zone: the zone of a value that has none, if known.
    :raises JobDefinitionError: if it is none of these.
    """
    if value is None:
        return None
    moment = _datetime(option, value)
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    try:
        if moment.tzinfo is not None:
            return to_ms(moment)
        return {"local": moment.isoformat()} if zone is None else instant(moment, zone)
    except OverflowError:
        _fail(option, value)


def parse_day(option: str, value: object) -> str | None:
    """Return a calendar day as ``YYYY-MM-DD`` text.

    :raises JobDefinitionError: if it is no day, or a time in a zone of its own.
    """
    if value is None:
        return None
    moment = _datetime(option, value)
    if moment.tzinfo is not None:
        raise JobDefinitionError(f"{option}={value!r} has a zone: give a day such as '2026-01-31'")
    return moment.date().isoformat()


def moment_ms(moment: Any, zone: tzinfo) -> int | None:
    """Return UTC milliseconds of what :func:`parse_moment` returned, local text being in ``zone``."""
    if isinstance(moment, dict):
        return instant(datetime.fromisoformat(moment["local"]), zone)
    return None if moment is None else int(moment)


def _datetime(option: str, value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    if not isinstance(value, str):
        _fail(option, value)
    text = value.strip()
    try:
        match = _PLAIN.fullmatch(text)
        if match:
            return _plain(match)
        return datetime.fromisoformat(text)
    except ValueError:
        return _free(option, value, text)


def _plain(match: re.Match[str]) -> datetime:
    *numbers, fraction, offset = match.groups()
    year, month, day, hour, minute, second = (int(number or 0) for number in numbers)
    moment = datetime(year, month, day, hour, minute, second)
    # APScheduler reads ".5" as 5 microseconds; everybody else reads half a second.
    moment += timedelta(microseconds=int((fraction or "0").ljust(6, "0")))
    if offset == "Z":
        return moment.replace(tzinfo=timezone.utc)
    if offset:
        length = timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6]))
        return moment.replace(tzinfo=timezone(-length if offset[0] == "-" else length))
    return moment


def _free(option: str, value: object, text: str) -> datetime:
    """Read what only dateutil can read, as Flask-APScheduler does, unless it had to guess a part."""
    from dateutil import parser, tz  # type: ignore[import-untyped]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a zone's abbreviation that it does not know
            readings: list[datetime] = [
                parser.parse(text, default=filler) for filler in (datetime(2000, 1, 1), datetime(2011, 2, 3))
            ]
    except (ValueError, OverflowError, TypeError, Warning):
        _fail(option, value)
    if readings[0] != readings[1] or isinstance(readings[0].tzinfo, tz.tzlocal):
        _fail(option, value)
    return readings[0]
