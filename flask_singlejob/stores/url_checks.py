"""What a store's URL says wrong, read by hand: neither SQLAlchemy nor a driver is imported for it.

Reads a URL as the library does that it is meant for. Knows no configuration key, and puts no part of a login
into a message.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from ..errors import ConfigError

__all__ = ["check_object", "check_text", "query_of"]

#: As SQLAlchemy's make_url() reads it.
_SQL = re.compile(
    r"[\w+]+://"
    r"(?:[^:/]*(?::[^@]*)?@)?"
    r"(?P<host>\[[^/?]+\]|[^/:?]+)?(?::(?P<port>[^/?]*))?"
    r"(?:/(?P<database>[^?]*))?"
    r"(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_DRIVERS = {"redis": "redis", "rediss": "redis", "mongodb": "pymongo"}
_NUMBERS = {
    "sqlite": ("timeout", "detect_types", "cached_statements"),
    "postgresql": ("connect_timeout",),
    "mysql": ("connect_timeout", "read_timeout", "write_timeout"),
    "redis": ("db", "socket_timeout", "socket_connect_timeout", "health_check_interval", "max_connections"),
}
#: What sqlite3.connect() takes; a file: URI takes more.
_SQLITE = {
    *("timeout", "detect_types", "isolation_level", "check_same_thread", "cached_statements"),
    *("factory", "uri", "autocommit"),
}


def query_of(url: str) -> dict[str, str]:
    """Return what stands behind a URL's question mark."""
    if found := _SQL.fullmatch(url):
        return dict(parse_qsl(found["query"] or "", keep_blank_values=True))
    return dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))


def check_text(url: str, scheme: str, shown: str, *, options: Mapping[str, Any] | None) -> None:
    """Refuse a URL that cannot be read or names no place.

    :param url: without white space, its scheme in lower case.
    :param scheme: a known one, without an SQL driver.
    :param shown: the URL for messages, without its login.
    :param options: the store's options, which may name what the URL leaves out; None: not known.
    :raises ConfigError: naming the URL and the cure.
    """
    base, _, kind = scheme.partition("+")
    if base in ("redis", "rediss"):
        _check_redis(url, kind, shown)
    elif base == "mongodb":
        hosts = url.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[0]
        _check_hosts(hosts, shown)
        if not all(hosts.split(",")):
            raise ConfigError(f"The store URL {shown} names no host: write mongodb://host:27017/database.")
    elif base != "memory":
        found = _SQL.fullmatch(url)
        if found is None or not (found["port"] or "0").isdecimal():
            raise _unreadable(shown)
        if base == "sqlite" and found["host"]:
            raise ConfigError(
                f"The store URL {shown} names a host where SQLite has a path: write sqlite:///relative.db or "
                f"sqlite:////path/to/file.db."
            )
        _check_sql(base, found["database"], query_of(url), shown, options)
    if base in _DRIVERS and importlib.util.find_spec(_DRIVERS[base]) is None:
        extra = "redis" if base.startswith("redis") else base
        raise ConfigError(
            f"The store {shown} needs a driver that is not installed ({_DRIVERS[base]}): "
            f'pip install "flask-singlejob[{extra}]"'
        )


def check_object(url: Any, scheme: str, shown: str, *, options: Mapping[str, Any] | None) -> None:
    """Refuse SQLAlchemy's ``URL`` where the same as text would be.

    :param options: as for :func:`check_text`; an engine's own arguments may name the database too.
    :raises ConfigError: naming the URL and the cure.
    """
    query = {name: value for name, value in url.query.items() if isinstance(value, str)}
    _check_sql(scheme, url.database, query, shown, options)


def _unreadable(shown: str) -> ConfigError:
    return ConfigError(
        f"The store URL {shown} cannot be read: after the host there may be a port, a number; "
        f"write special characters in user and password as %-escapes."
    )


def _check_hosts(hosts: str, shown: str) -> None:
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise _unreadable(shown)


def _check_numbers(kind: str, query: Mapping[str, str], shown: str, *, whole: Iterable[str] = ()) -> None:
    for name in _NUMBERS[kind]:
        if name not in query:
            continue
        try:
            _ = int(query[name]) if name in whole else float(query[name])
        except ValueError:
            raise ConfigError(
                f"The store URL {shown} has {name}={query[name][:40]!r} behind its question mark: write a "
                f"{'whole ' if name in whole else ''}number."
            ) from None


def _check_sql(
    base: str, database: str | None, query: Mapping[str, str], shown: str, options: Mapping[str, Any] | None
) -> None:
    kind = "mysql" if base == "mariadb" else base
    _check_numbers(kind, query, shown, whole=set(_NUMBERS[kind]) - {"timeout"})
    if kind == "sqlite":
        if not database or ":memory:" in database or query.get("mode") == "memory":
            raise ConfigError(
                f"The store URL {shown} is an SQLite database in memory, one of its own per connection, so it can "
                f"be no store: write memory:// for tests, or sqlite:///path/to/file.db."
            )
        unknown = sorted(set(query) - _SQLITE)
        if unknown and not database.startswith("file:"):
            raise ConfigError(
                f"The store URL {shown} has {', '.join(unknown)} behind its question mark, which sqlite3.connect() "
                f"does not take; allowed: {', '.join(sorted(_SQLITE))}."
            )
    elif not database and options is not None and not {"creator", "connect_args"} & set(options):
        raise ConfigError(f"The store URL {shown} names no database: end it with /NAME.")


def _check_redis(url: str, kind: str, shown: str) -> None:
    query = query_of(url)
    rest = re.split(r"[?#]", url.partition("://")[2], maxsplit=1)[0]
    netloc, _, path = rest.partition("/")
    database = path.strip("/")
    if kind == "unix":
        database = ""
        if not path:
            raise ConfigError(
                f"The store URL {shown} names no socket: write redis+unix:///path/to.sock?db=0."
            )
    else:
        hosts = netloc.rpartition("@")[2]
        _check_hosts(hosts, shown)
        if kind and not all(host.partition(":")[0] for host in hosts.split(",")):
            raise ConfigError(
                f"The store URL {shown} names no host: write redis+{kind}://host:port,host:port."
            )
    if kind == "sentinel":
        service, _, database = database.partition("/")
        if not service:
            raise ConfigError(
                f"The store URL {shown} names no service: write redis+sentinel://host:26379/service/0."
            )
    if database and not re.fullmatch(r"[0-9]+", database):
        raise ConfigError(
            f"The store URL {shown} names the database {database[:40]!r}, and a Redis database is a number: end the "
            f"URL with /0 or another number."
        )
    if kind == "cluster" and database.strip("0"):
        raise ConfigError(
            f"The store URL {shown} names database {database}, and a Redis Cluster has only /0."
        )
    _check_numbers("redis", query, shown, whole=("db", "health_check_interval", "max_connections"))
