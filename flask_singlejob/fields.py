"""The JSON-ready description of a trigger: how its values are checked, pinned, stored and told apart.

Every instant is an integer, UTC milliseconds, or ``{"local": ISO text}`` while its zone is not known; null is
"from now" where a trigger starts, and "not given" elsewhere. Jitter is no part of it. Knows no APScheduler.

    interval           seconds, start, end, zone
    date               at, zone
    cron               fields {name: expression}, start, end, zone
    calendarinterval   years, months, weeks, days, hour, minute, second, start_date, end_date, zone
    and, or            triggers
    custom             ref, repr: a class of somebody else's making, in code only
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import timedelta, tzinfo
from typing import Any, NoReturn

from .errors import JobDefinitionError
from .records import from_ms
from .zones import zone_from

__all__ = [
    "CALENDAR_STEPS",
    "UNITS",
    "Fields",
    "check_storable",
    "fail",
    "fingerprint",
    "jitter_of",
    "needs_pin",
    "number",
    "pin",
    "seconds_of",
    "whole",
]

Fields = dict[str, Any]

UNITS = ("weeks", "days", "hours", "minutes", "seconds")
CALENDAR_STEPS = ("years", "months", "weeks", "days")

# The field of each type that is null while it means "from now".
_PINNABLE = {"interval": "start", "date": "at", "calendarinterval": "start_date"}


def fail(message: str) -> NoReturn:
    raise JobDefinitionError(message)


def number(name: str, value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        fail(f"{name}={value!r} is no number: give an int or a float")
    return value


def whole(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        fail(f"{name}={value!r}: give a whole number from 0 to {most}")
    return value


def jitter_of(value: object) -> float | None:
    if value is None:
        return None
    seconds = number("jitter", value)
    if seconds < 0:
        fail(f"jitter={value!r} is negative: give seconds, 0 or more")
    return float(seconds) or None


def seconds_of(length: timedelta, shown: str) -> int | float:
    """Return the length of an interval in seconds: a whole number, or to the millisecond."""
    milliseconds = round(length / timedelta(milliseconds=1))
    if milliseconds < 1:
        fail(f"an interval of {shown} never ends: give a length above 0 in {', '.join(UNITS)}")
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def check_storable(fields: Fields) -> None:
    """Check that fields say all there is to say of the trigger, so that it can be stored.

    :raises JobDefinitionError: for a trigger class of somebody else's making.
    """
    if fields["type"] == "custom":
        fail(
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
