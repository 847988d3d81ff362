"""Checks of single configuration values, and their display without secrets.

Each check returns the value in the form the rest of the package uses, or raises
:class:`WrongValue` with the cure. It knows no key, no app and no store.
"""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

__all__ = [
    "Check",
    "WrongValue",
    "choice",
    "days",
    "duration",
    "file_path",
    "guard",
    "identifier",
    "names",
    "options",
    "safe_url",
    "safe_value",
    "store",
    "switch",
    "text",
    "url_path",
    "whole_number",
    "zone",
]

Check = Callable[[Any], Any]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_EMBEDDED = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\S+")
_LOGIN = re.compile(r"[^\s:/@]*:\S*@")
_SECRET = r"[\w.\-]*(?:passw|pwd|passphrase|secret|token|credential|api_?key|odbc_connect)[\w.\-]*"
_SECRET_IN_QUERY = re.compile(rf"((?:^|[?&;\s]){_SECRET}=)[^&;\s]*", re.IGNORECASE)
_SECRET_IN_REPR = re.compile(rf"(['\"]{_SECRET}['\"]\s*:\s*)('[^']*'|\"[^\"]*\"|[^,}}\s]+)", re.IGNORECASE)
_LONGEST_SHOWN = 200


class WrongValue(ValueError):
    """A value that a check refuses; its text is the cure, or empty when the allowed values say all."""


def _hide_in_url(url: str) -> str:
    scheme, rest = url.split("://", 1)
    # The last "@" anywhere, as a password may hold "/", "?" and "@" unquoted: too much hidden does no harm.
    login, at, place = rest.rpartition("@")
    if at and ":" in login:
        rest = f"{login.partition(':')[0]}:***@{place}"
    return _SECRET_IN_QUERY.sub(r"\g<1>***", f"{scheme}://{rest}")


def safe_url(value: object) -> str:
    """Return a URL, or a text that may hold URLs, with every password replaced by ``***``.

    :param value: a text, SQLAlchemy's ``URL`` or ``Engine``, or any object (its type's name is returned).
    """
    if isinstance(value, str):
        if _SCHEME.match(value):
            return _hide_in_url(value)
        if _LOGIN.match(value):
            return _hide_in_url(f"x://{value}").removeprefix("x://")
        return _EMBEDDED.sub(lambda found: _hide_in_url(found[0]), _SECRET_IN_QUERY.sub(r"\g<1>***", value))
    for candidate in (value, getattr(value, "url", None)):
        render = getattr(candidate, "render_as_string", None)
        if callable(render):
            return safe_url(str(render(hide_password=True)))
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def safe_value(value: object) -> str:
    """Return any value as a short text for an error message, without the passwords it holds."""
    if isinstance(value, int) and value.bit_length() > 1000:
        shown = f"an int of {value.bit_length()} bits"  # Python refuses to write some of these.
    elif value is None or isinstance(value, (int, float, timedelta)):
        shown = repr(value)
    elif isinstance(value, str):
        shown = repr(safe_url(value))
    elif isinstance(value, (list, tuple, set, frozenset, dict)):
        shown = safe_url(_SECRET_IN_REPR.sub(r"\g<1>'***'", repr(value)))
    else:
        shown = safe_url(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


def switch(value: Any) -> bool:
    """Accept True and False themselves; a text such as ``"False"`` would be true."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        meant = "true" if value.strip().lower() in ("true", "1", "yes", "on", "y", "t") else "false"
        raise WrongValue(
            f"in Python write {meant.title()} without quotes, in the environment write {meant} "
            f"(from_prefixed_env reads JSON)"
        )
    raise WrongValue("")


def _number(value: Any) -> float:
    if isinstance(value, str):
        raise WrongValue("write the number without quotes")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongValue("")
    try:
        number = float(value)
    except OverflowError:
        raise WrongValue("") from None
    if not math.isfinite(number):
        raise WrongValue("")
    return number


def duration(*, least: float = 0.0, most: float = 31_536_000.0, whole: bool = False) -> Check:
    """Return a check for seconds or a ``timedelta``, giving seconds as a float (an int if ``whole``)."""

    def check(value: Any) -> float | int:
        seconds = value.total_seconds() if isinstance(value, timedelta) else _number(value)
        if not least <= seconds <= most or (whole and not float(seconds).is_integer()):
            raise WrongValue("")
        return int(seconds) if whole else float(seconds)

    return check


def days(*, least: float, most: float) -> Check:
    """Return a check for days or a ``timedelta``, giving days as a float."""

    def check(value: Any) -> float:
        count = value / timedelta(days=1) if isinstance(value, timedelta) else _number(value)
        if not least <= count <= most:
            raise WrongValue("")
        return float(count)

    return check


def whole_number(*, least: int, most: int) -> Check:
    """Return a check for an int within bounds, giving the int."""

    def check(value: Any) -> int:
        _number(value)
        if not isinstance(value, int) or not least <= value <= most:
            raise WrongValue("")
        return value

    return check


def text(*, longest: int = 255) -> Check:
    """Return a check for a name: some characters, none of them a control character.

    An int is taken as its digits, since ``from_prefixed_env`` reads ``12`` as a number. A float is not:
    ``123e4567`` would be infinity and ``1.10`` would lose its zero.
    """

    def check(value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, (bool, float)):
            raise WrongValue("write it as text; in the environment put it in double quotes, as '\"1.10\"'")
        if not isinstance(value, str):
            raise WrongValue("")
        if not value:
            raise WrongValue("leave the key out for its default")
        if value != value.strip():
            raise WrongValue("remove the white space at its ends")
        if len(value) > longest or not value.isprintable():
            raise WrongValue("")
        return value

    return check


def identifier(*, longest: int) -> Check:
    """Return a check for what may begin the name of a table, a key or a collection on every store."""
    pattern = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{longest - 1}}}")

    def check(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise WrongValue("")
        return value

    return check


def choice(*allowed: str) -> Check:
    """Return a check for one of a few texts."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise WrongValue("")
        return value

    return check


def names(*, star: bool = False) -> Check:
    """Return a check for several names, giving a frozenset, or a list when ``star`` allows ``"*"``."""
    one = text()

    def check(value: Any) -> Collection[str]:
        if isinstance(value, str):
            if star and value == "*":
                return ["*"]
            raise WrongValue(f"write a list, [{value!r}]; in the environment JSON, '[\"{value}\"]'")
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise WrongValue("")
        try:
            found = [one(item) for item in value]
        except WrongValue:
            raise WrongValue("each must be a text that is not empty") from None
        return found if star else frozenset(found)

    return check


def options(value: Any) -> dict[str, Any]:
    """Accept a mapping with names as keys, giving a dict of its own."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise WrongValue("")
    return dict(value)


def url_path(value: Any) -> str:
    """Accept an absolute URL path without variables, giving it without a slash at its end."""
    if not isinstance(value, str):
        raise WrongValue("")
    if not value.startswith("/"):
        raise WrongValue(f"write {'/' + value!r}" if value else "leave the key out for its default")
    path = value.rstrip("/")
    if not path or "//" in path or not re.fullmatch(r"[A-Za-z0-9/._~\-]+", path):
        raise WrongValue("")
    return path


def file_path(value: Any) -> str:
    """Accept the path of a file, giving it as text with ``~`` expanded."""
    if not isinstance(value, (str, os.PathLike)):
        raise WrongValue("")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path or path.endswith(("/", os.sep)):
        raise WrongValue("")
    return os.path.expanduser(path)


def store(value: Any) -> Any:
    """Accept what may name a store, unopened: a URL as text, or an object that the stores know."""
    if isinstance(value, str):
        if not value:
            raise WrongValue("leave the key out for the default; an empty environment variable is no store")
        if not _SCHEME.match(value):
            raise WrongValue("write a URL; for a file sqlite:///path/to/file.db")
        return value
    if isinstance(value, os.PathLike):
        raise WrongValue("write a URL, sqlite:///path/to/file.db")
    # SQLAlchemy's URL is a tuple too.
    named = hasattr(value, "render_as_string")
    if isinstance(value, (bool, int, float, bytes, list, tuple, dict, set)) and not named:
        raise WrongValue("")
    return value


def guard(value: Any) -> Any:
    """Accept a view decorator, ``"public"`` or ``"module:name"``, giving the decorator or ``"public"``."""
    if not isinstance(value, str):
        if callable(value):
            return value
        if callable(getattr(value, "login_required", None)):
            raise WrongValue("give its login_required, which is the decorator")
        raise WrongValue("")
    if value == "public":
        return value
    module_name, colon, path = value.partition(":")
    if not (colon and module_name and path):
        raise WrongValue("")
    found: Any
    try:
        found = importlib.import_module(module_name)
    except Exception as error:
        raise WrongValue(f"importing {module_name} failed: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise WrongValue(
                f"module {module_name} has no {path} (yet: if it is still being imported, define it above "
                f"init_app or give the function itself)"
            ) from None
    if not callable(found):
        raise WrongValue(f"{path} in {module_name} cannot be called")
    return found


def zone(value: Any) -> tzinfo:
    """Accept a time zone or the name of one, giving the time zone."""
    if isinstance(value, tzinfo):
        return value
    if not isinstance(value, str) or not value:
        raise WrongValue("")
    try:
        return ZoneInfo(value)
    except (OSError, ValueError, KeyError):
        raise WrongValue("no zone of this name is installed") from None
