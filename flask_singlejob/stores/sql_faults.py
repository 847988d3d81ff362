"""What a driver's error means: a lost connection, a lost race, a missing table, a missing right.

Knows the codes of SQLite, PostgreSQL, MySQL and MariaDB, and connects to nothing.
"""

from __future__ import annotations

from enum import Enum

from sqlalchemy.exc import DBAPIError

__all__ = ["Fault", "fault_of", "reason_of"]


class Fault(Enum):
    """The kinds of trouble that are treated differently."""

    CONFLICT = "another transaction was in the way; nothing was written"
    GONE = "the connection broke; what was under way may have been written or not"
    READ_ONLY = "the server takes no writes"
    MISSING = "a table or column is not there"
    DENIED = "the user may not do it"
    OTHER = "anything else"


_BY_SQLSTATE = {
    "40001": Fault.CONFLICT,
    "40P01": Fault.CONFLICT,
    "55P03": Fault.CONFLICT,
    "25006": Fault.READ_ONLY,
    "42P01": Fault.MISSING,
    "42703": Fault.MISSING,
    "3F000": Fault.MISSING,
    "42501": Fault.DENIED,
    "57P01": Fault.GONE,
    "57P02": Fault.GONE,
    "57P03": Fault.GONE,
    "57P05": Fault.GONE,
    "25P03": Fault.GONE,
}
_BY_ERRNO = {
    1020: Fault.CONFLICT,
    1205: Fault.CONFLICT,
    1213: Fault.CONFLICT,
    1290: Fault.READ_ONLY,
    1792: Fault.READ_ONLY,
    1836: Fault.READ_ONLY,
    1054: Fault.MISSING,
    1146: Fault.MISSING,
    1044: Fault.DENIED,
    1142: Fault.DENIED,
    1143: Fault.DENIED,
    1053: Fault.GONE,
    1927: Fault.GONE,
    2006: Fault.GONE,
    2013: Fault.GONE,
    2014: Fault.GONE,
    2055: Fault.GONE,
    4031: Fault.GONE,
}
_BY_SQLITE_TEXT = (
    ("database is locked", Fault.CONFLICT),
    ("database table is locked", Fault.CONFLICT),
    ("no such table", Fault.MISSING),
    ("no such column", Fault.MISSING),
    ("has no column", Fault.MISSING),
    ("readonly database", Fault.DENIED),
    ("unable to open database", Fault.DENIED),
)


def fault_of(error: DBAPIError, kind: str) -> Fault:
    """Return what an error of the given kind of database means."""
    if error.connection_invalidated:
        return Fault.GONE
    original = error.orig
    if kind == "sqlite":
        text = str(original)
        return next((fault for part, fault in _BY_SQLITE_TEXT if part in text), Fault.OTHER)
    if kind == "postgresql":
        state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
        return _BY_SQLSTATE.get(str(state), Fault.OTHER)
    number = original.args[0] if original is not None and original.args else None
    return _BY_ERRNO.get(number, Fault.OTHER) if isinstance(number, int) else Fault.OTHER


def reason_of(error: BaseException) -> str:
    """Return an error's text on one line."""
    original = getattr(error, "orig", None) or error
    # What PostgreSQL quotes of the statement says nothing to a reader of logs.
    text = " ".join(str(original).partition("\nLINE ")[0].split())
    return text or type(original).__name__
