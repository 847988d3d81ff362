"""Plain text for a terminal: cells of any script cut to a width, tables of at most 100 columns, times.

Knows nothing of jobs. What could move the cursor or turn the line around is written as an escape.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import click

__all__ = [
    "WIDTH",
    "Column",
    "ago",
    "clean",
    "cut",
    "full_moment",
    "moment",
    "parse",
    "seconds",
    "table",
    "width",
    "write",
]

#: No line of a table is wider, in columns of the terminal.
WIDTH = 100
_GAP = "  "
_ELLIPSIS = "…"
# First strong isolate and its end: what is written from right to left stays within its cell.
_ISOLATE, _END = "\u2068", "\u2069"
_ORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """Return a text with whatever could upset a terminal as a visible escape."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character.isprintable() and character not in _ORDERING:
        return character
    if character in _ORDERING or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp", "Co", "Cn"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    return " " if unicodedata.category(character) == "Zs" else character


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def width(text: str) -> int:
    """Return how many columns a text takes."""
    return sum(map(_columns, text))


def _turns(text: str) -> bool:
    return any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text)


def cut(text: str, columns: int, *, middle: bool = False) -> str:
    """Return a text that takes at most so many columns; what is left out is shown as "…".

    :param middle: keep beginning and end.
    """
    if width(text) <= columns:
        return text
    if columns <= 1:
        return _ELLIPSIS[:columns]
    room = columns - 1
    tail = ""
    if middle:
        for character in reversed(text):
            if width(tail) + _columns(character) > room // 3:
                break
            tail = character + tail
    head = ""
    for character in text:
        if width(head) + _columns(character) > room - width(tail):
            break
        head += character
    return f"{head}{_ELLIPSIS}{tail}"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    :param least: to how many columns it may shrink; 0: not at all.
    :param middle: cut in the middle.
    :param right: written to the right (numbers).
    """

    title: str
    least: int = 0
    middle: bool = False
    right: bool = False


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], limit: int) -> list[int]:
    natural = [
        max([width(column.title), *(width(row[place]) for row in rows)])
        for place, column in enumerate(columns)
    ]
    excess = sum(natural) + len(_GAP) * (len(columns) - 1) - limit
    while excess > 0:
        # The widest of those that may shrink gives way first; if none may any more, the widest of all.
        able = [
            place
            for place, column in enumerate(columns)
            if column.least and natural[place] > max(column.least, width(column.title))
        ] or [place for place in range(len(columns)) if natural[place] > 1]
        if not able:
            break
        widest = max(able, key=lambda place: natural[place])
        natural[widest] -= 1
        excess -= 1
    return natural


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    *,
    limit: int = WIDTH,
    indent: str = "",
    widths: list[int] | None = None,
    head: bool = True,
) -> list[str]:
    """Return the lines of a table; columns that are empty in every row are left out.

    :param widths: the widths to use, for rows that come later.
    """
    texts = [[clean("" if cell is None else str(cell)) for cell in row] for row in rows]
    kept = [
        place for place in range(len(columns)) if widths is not None or any(row[place] for row in texts)
    ] or list(range(len(columns)))
    columns = [columns[place] for place in kept]
    texts = [[row[place] for place in kept] for row in texts]
    sizes = widths or _widths(columns, texts, limit - len(indent))
    lines = [[column.title for column in columns], *texts] if head else texts
    return [(indent + _line(columns, line, sizes)).rstrip() for line in lines]


def _line(columns: Sequence[Column], cells: Sequence[str], sizes: Sequence[int]) -> str:
    done = []
    for column, cell, size in zip(columns, cells, sizes, strict=True):
        shown = cut(cell, size, middle=column.middle)
        space = " " * (size - width(shown))
        shown = f"{_ISOLATE}{shown}{_END}" if _turns(shown) else shown
        done.append(space + shown if column.right else shown + space)
    return _GAP.join(done)


# -- times -------------------------------------------------------------------------------------------


def parse(value: datetime | str | None) -> datetime | None:
    """Return a moment of the JSON form as a datetime."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def moment(value: datetime | str | None, *, now: datetime | None = None) -> str:
    """Return a moment in this machine's time and in UTC, to the second, for a table's cell.

    The year is shown when it is not this year. On a machine in UTC the moment is written once.
    """
    at = parse(value)
    if at is None:
        return ""
    now = (now or datetime.now(timezone.utc)).astimezone()
    local, utc = at.astimezone(), at.astimezone(timezone.utc)
    day = "%m-%d" if local.year == now.year else "%Y-%m-%d"
    if not local.utcoffset():
        return f"{utc:{day} %H:%M:%S}Z"
    other = "%H:%M:%S" if local.date() == utc.date() else "%m-%d %H:%M:%S"
    return f"{local:{day} %H:%M:%S} ({utc:{other}}Z)"


def full_moment(value: datetime | str) -> str:
    """Return a moment with its date in this machine's time, with the zone, and in UTC."""
    at = parse(value)
    assert at is not None
    local, utc = at.astimezone(), at.astimezone(timezone.utc)
    if not local.utcoffset():
        return f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    return f"{local:%Y-%m-%d %H:%M:%S %Z} ({utc:%Y-%m-%d %H:%M:%S} UTC)"


def seconds(value: float | None) -> str:
    """Return a length of time in one or two units."""
    if value is None:
        return ""
    if value < 10:
        return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"
    left = round(value)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number} {unit}")
        if len(parts) == 2:
            break
    return " ".join(parts)


def ago(value: datetime | str | None, now: datetime) -> str:
    """Return how long ago a moment was."""
    at = parse(value)
    if at is None:
        return ""
    gone = (now - at) / timedelta(seconds=1)
    return "just now" if gone < 1 else f"{seconds(gone)} ago"


def write(text: str = "", *, err: bool = False) -> None:
    """Print a line; what the terminal's encoding does not have is escaped."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace(_ELLIPSIS, "~").replace(_ISOLATE, "").replace(_END, "")
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(text, err=err)
