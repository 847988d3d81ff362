"""Time zones: from any way of giving one to a name that every host reads alike, and their changes of offset.

Owns the look at the host's zone. Knows no trigger and no job. What a zone's rules are is the business of
the host's tz database: hosts with different releases of it may differ where a government changed its mind.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from bisect import bisect_right
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import TZPATH, ZoneInfo, available_timezones

from .errors import JobDefinitionError
from .records import from_ms, to_ms

__all__ = [
    "Segment",
    "instant",
    "local_zone",
    "offset_at",
    "offset_grid",
    "segment_at",
    "zone_from",
    "zone_name",
]

UTC = timezone.utc
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400
_UTC_NAMES = frozenset(
    {"UTC", "Etc/UTC", "UCT", "Etc/UCT", "Universal", "Etc/Universal", "Zulu", "Etc/Zulu"},
)
# Names that stand for whatever the host is set to: no other host would read them alike.
_HOST_NAMES = frozenset({"local", "localtime", "posixrules", "Factory"})
_FIXED = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):(\d{2})(?::(\d{2}))?")


def zone_from(value: str | tzinfo) -> tzinfo:
    """Return the zone that a name, a fixed offset or any library's zone object stands for.

    :param value: ``"Europe/Berlin"``, ``"UTC"``, ``"UTC+02:00"``, a ``ZoneInfo``, a ``timezone``, a pytz or
        dateutil zone.
    :returns: a ``ZoneInfo`` or a fixed ``timezone``; always ``timezone.utc`` for UTC by any name.
    :raises JobDefinitionError: if it is no zone, or has no name that another host could read.
    """
    if isinstance(value, tzinfo):
        return value if value is UTC else zone_from(zone_name(value))
    if not isinstance(value, str):
        raise JobDefinitionError(
            f"timezone={value!r} is no time zone: give a name such as 'Europe/Berlin', or a tzinfo object"
        )
    if value in _UTC_NAMES:
        return UTC
    fixed = _FIXED.fullmatch(value)
    if fixed:
        sign, hours, minutes, seconds = fixed.groups()
        offset = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds or 0))
        if offset < timedelta(days=1) and int(minutes) < 60 and int(seconds or 0) < 60:
            return timezone(-offset if sign == "-" else offset) if offset else UTC
    elif value not in _HOST_NAMES:
        try:
            return ZoneInfo(value)
        except (OSError, ValueError, KeyError):
            pass  # an unknown name, a directory, or a path outside the database: all the same to the caller
    raise JobDefinitionError(
        f"timezone={value!r} is not known here: give an IANA name such as 'Europe/Berlin', 'UTC', or an "
        "offset such as 'UTC+02:00'; if the name is right, install the tz database (pip install tzdata)"
    )


def zone_name(zone: tzinfo) -> str:
    """Return the name by which every host finds the zone again with :func:`zone_from`.

    :raises JobDefinitionError: if the zone has rules but no name.
    """
    for attribute in ("key", "zone", "_filename"):  # zoneinfo, pytz, dateutil
        text = getattr(zone, attribute, None)
        if isinstance(text, str) and text:
            name = _known_name(text)
            if name is not None:
                return name
    # A fixed offset knows itself without a date; rules that have no name do not.
    offset = None if isinstance(zone, ZoneInfo) or _is_host_clock(zone) else zone.utcoffset(None)
    if offset is None or offset.microseconds:
        raise JobDefinitionError(
            f"timezone={zone!r} has no name that another host could read: "
            "give an IANA name such as 'Europe/Berlin'"
        )
    if not offset:
        return "UTC"
    seconds = abs(offset) // timedelta(seconds=1)
    text = f"UTC{'-' if offset < timedelta(0) else '+'}{seconds // 3600:02}:{seconds // 60 % 60:02}"
    return text + (f":{seconds % 60:02}" if seconds % 60 else "")


def _is_host_clock(zone: tzinfo) -> bool:
    """Tell a zone object that asks the C library, whose offset is the host's and changes with it."""
    return type(zone).__name__ == "tzlocal"


def _known_name(text: str) -> str | None:
    """Return the zone name in a key or a path such as ``/usr/share/zoneinfo/Europe/Berlin``."""
    if text in _UTC_NAMES:
        return "UTC"
    parts = text.strip("/").split("/")
    for start in range(len(parts)):
        name = "/".join(parts[start:])
        if name in _HOST_NAMES:
            return None
        try:
            ZoneInfo(name)
        except (OSError, ValueError, KeyError):
            continue
        return "UTC" if name in _UTC_NAMES else name
    return None


def local_zone() -> tuple[tzinfo, str, str | None]:
    """Return the host's zone, its name, and a warning when it cannot be told and UTC stands in for it.

    Never raises and never warns by itself: a host without tz database, with a wrong ``TZ`` or a broken
    ``/etc/localtime`` still serves.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import tzlocal

            found: tzinfo = tzlocal.get_localzone()
        name = _name_of_host_zone(found)
        zone = zone_from(name)
    except Exception as error:  # tzlocal raises whatever its parsers raise
        # A KeyError's own text is the repr of its message.
        said = " ".join(str(error.args[0] if error.args else type(error).__name__).split()).rstrip(".")
        return UTC, "UTC", _utc_instead(said)
    now = time.time()
    if abs(offset_at(zone, int(now)) - time.localtime(now).tm_gmtoff) > 60:
        return (
            UTC,
            "UTC",
            _utc_instead(f"it is configured as {name}, but the system clock has another offset"),
        )
    for warning in caught:
        if "defaulting to UTC" in str(warning.message):
            return zone, name, _utc_instead("nothing on this host names it")
    return zone, name, None


def _utc_instead(reason: str) -> str:
    return (
        f"The time zone of this host cannot be told ({reason}): UTC is used. Set SCHEDULER_TIMEZONE, or the "
        "environment variable TZ, to a name such as 'Europe/Berlin'."
    )


def _name_of_host_zone(found: tzinfo) -> str:
    """Return the name of tzlocal's answer, looking an unnamed copy of a zone file up by its content."""
    try:
        return zone_name(found)
    except JobDefinitionError:
        path = os.path.realpath("/etc/localtime")
        with open(path, "rb") as file:
            content = file.read()
        for name in sorted(available_timezones() - _HOST_NAMES):
            for root in TZPATH:
                candidate = os.path.join(root, name)
                if os.path.isfile(candidate) and os.path.getsize(candidate) == len(content):
                    with open(candidate, "rb") as file:
                        if file.read() == content:
                            return name
        raise


def instant(local: datetime, zone: tzinfo) -> int:
    """Return the UTC milliseconds of a naive local time.

    A repeated time is the earlier of the two; one that is left out is moved on by the length of the gap.
    """
    return to_ms(local.replace(tzinfo=zone))


class Segment(NamedTuple):
    """A stretch of UTC seconds, ``start <= s < end``, in which a zone keeps one offset.

    :param before: the offset, in seconds, that was in force just before ``start``.
    :param offset: the offset in force, in seconds.
    """

    start: int
    end: int
    before: int
    offset: int


def offset_at(zone: tzinfo, second: int) -> int:
    """Return the zone's offset from UTC, in seconds, at a UTC second."""
    offset = from_ms(second * 1000).astimezone(zone).utcoffset()
    return 0 if offset is None else offset // timedelta(seconds=1)


def offset_grid(zone: tzinfo) -> int:
    """Return a number of seconds by whose multiples alone a zone's offset has changed since 1973."""
    return _DAY if isinstance(zone, timezone) else 900


@lru_cache(maxsize=1024)
def _changes(zone: tzinfo, year: int) -> tuple[tuple[int, int, int], ...]:
    """Return (UTC second, offset before, offset from then on) of each change in a UTC year.

    Looks once a day: a zone that changes twice within one day is not seen to change.
    """
    found = []
    low = _year_start(year)
    end = _year_start(year + 1)
    before = offset_at(zone, low - 1)
    low -= 1
    while low < end - 1:
        high = min(low + _DAY, end - 1)
        after = offset_at(zone, high)
        if after != before:
            inside, outside = low, high
            while outside - inside > 1:
                middle = (inside + outside) // 2
                if offset_at(zone, middle) == before:
                    inside = middle
                else:
                    outside = middle
            found.append((outside, before, after))
            before = after
        low = high
    return tuple(found)


@lru_cache(maxsize=4096)
def _year_start(year: int) -> int:
    return (datetime(year, 1, 1) - _EPOCH) // timedelta(seconds=1)


@lru_cache(maxsize=1024)
def _around(zone: tzinfo, year: int) -> tuple[Segment, ...]:
    """Return the segments from the start of the year before to the end of the year after."""
    changes = [change for near in (year - 1, year, year + 1) for change in _changes(zone, near)]
    first, last = _year_start(year - 1), _year_start(year + 2)
    offset = changes[0][1] if changes else offset_at(zone, first)
    segments = []
    start, before = first, offset
    for moment, was, becomes in changes:
        segments.append(Segment(start, moment, before, was))
        start, before, offset = moment, was, becomes
    segments.append(Segment(start, last, before, offset))
    return tuple(segments)


def segment_at(zone: tzinfo, second: int) -> Segment:
    """Return the segment that holds a UTC second between the years 2 and 9997.

    Where no change is near, it may end or begin at a turn of the year: ``before`` is ``offset`` then.
    """
    if isinstance(zone, timezone):
        offset = offset_at(zone, 0)
        return Segment(_year_start(2), _year_start(9998), offset, offset)
    year = from_ms(second * 1000).year
    segments = _around(zone, year)
    return segments[bisect_right(segments, second, key=lambda segment: segment.start) - 1]
