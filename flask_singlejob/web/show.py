"""How values look on the page: texts made safe to read, spans of time in words, an own template environment.

Owns wording only. The environment is not the app's: its delimiters, filters and globals cannot break the
page, and everything is escaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..records import from_ms

__all__ = ["environment", "moment", "seconds_text", "shown", "span_text"]

#: Of a text longer than this many characters the page shows the two ends.
MAX_TEXT = 60_000
#: They turn the order of what follows them around, or are not seen at all.
_CONTROLS = frozenset(
    "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)


def shown(value: Any) -> str:
    """Return a text with what is invisible, or reorders others, as escapes; lines and tabs stay."""
    text = str(value)
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n… {len(text) - MAX_TEXT} characters are left out …\n{text[-half:]}"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if char in "\n\t":
        return char
    if char in _CONTROLS or unicodedata.category(char) in ("Cc", "Cs"):
        return f"\\u{ord(char):04x}"
    return char


def shortened(value: Any, length: int) -> str:
    """Return at most so many characters of a text, safe to read."""
    text = shown(value).replace("\n", " ")
    return text if len(text) <= length else text[: length - 1] + "…"


def seconds_text(seconds: float | None) -> str:
    """Return a duration in a few characters, such as ``1.24 s`` or ``2 h 5 min``."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"-{seconds_text(-seconds)}"
    if seconds < 0.001:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return span_text(seconds)


def span_text(seconds: float) -> str:
    """Return a span with its two largest units, whole seconds at the least."""
    left = round(abs(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def moment(value: Any) -> datetime | None:
    """Return a datetime (aware, UTC) of one, of its ISO 8601 text or of UTC milliseconds."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc)
    if isinstance(value, int):
        return from_ms(value)
    return datetime.fromisoformat(value).astimezone(timezone.utc)


def utc_text(value: datetime, now: datetime) -> str:
    """Return an instant in UTC, with the date unless it is today's."""
    value, now = value.astimezone(timezone.utc), now.astimezone(timezone.utc)
    same_day = value.date() == now.date()
    return f"{value:%H:%M:%S} UTC" if same_day else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def away_text(value: datetime, now: datetime) -> str:
    """Return how far an instant is from now: ``in 5 s``, ``2 min ago``."""
    seconds = (value - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span_text(seconds)}" if seconds > 0 else f"{span_text(seconds)} ago"


def percent_text(share: float | None) -> str:
    """Return a share in percent; never 100 % while something failed."""
    if share is None:
        return "–"
    percent = share * 100
    if 99.9 <= percent < 100:
        return "99.9 %"
    return f"{percent:.3g} %"


def offset_text(seconds: float | None) -> str:
    """Return how far a clock is off, with its sign."""
    if seconds is None:
        return "not known"
    return f"{'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))}"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of the page's templates."""
    found = Environment(
        loader=PackageLoader("flask_singlejob.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Any] = {
        "shown": shown,
        "shortened": shortened,
        "seconds": seconds_text,
        "span": span_text,
        "moment": moment,
        "utc": utc_text,
        "away": away_text,
        "percent": percent_text,
        "offset": offset_text,
    }
    found.filters.update(filters)
    return found
