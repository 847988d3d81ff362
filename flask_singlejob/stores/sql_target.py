"""Which database a value names, by which driver and with which settings, checked before any connection.

Owns the rules for URLs, drivers, paths of SQLite files and what an ``Engine`` lends. Connects to
nothing, and puts no password into a message.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, event, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import ConfigError
from . import redacted
from .base import ANSWER_SECONDS
from .drivers import choose_driver

__all__ = ["BUSY_SECONDS", "CONNECT_SECONDS", "Target", "lend_listeners", "resolve", "url_of_file"]

#: An attempt to connect ends after so many seconds, so that a second one still fits into a verb's limit.
CONNECT_SECONDS = 3
BUSY_SECONDS = 5.0


@dataclass(frozen=True)
class Target:
    """A database to connect to.

    :param url: with driver and password.
    :param kind: ``sqlite``, ``postgresql`` or ``mysql`` (MariaDB too).
    :param driver: as in a URL behind the ``+``.
    :param connect_args: for the driver.
    :param engine_options: for ``create_engine``, as the user gave them.
    :param lender: the user's engine, for its listeners of ``do_connect``.
    :param path: the file of an SQLite database, absolute, unless it is a ``file:`` URI.
    """

    url: URL
    kind: str
    driver: str
    connect_args: dict[str, Any]
    engine_options: dict[str, Any]
    lender: Engine | None
    path: Path | None

    @property
    def identity(self) -> str:
        """The database without user, password, driver and settings."""
        if self.kind == "sqlite":
            return f"sqlite:///{self.path.resolve() if self.path is not None else self.url.database}"
        return f"{self.kind}://{self._place()}/{self.url.database or ''}"

    def describe(self) -> str:
        """Return the database and its user, without password and settings."""
        if self.kind == "sqlite":
            return f"sqlite:///{self.path if self.path is not None else self.url.database}"
        user = f"{self.url.username}@" if self.url.username else ""
        return f"{self.kind}://{user}{self._place()}/{self.url.database or ''}"

    def _place(self) -> str:
        query = self.url.query
        hosts = [self.url.host] if self.url.host else []
        for name in ("host", "unix_socket", "service"):
            value = query.get(name) or self.connect_args.get(name)
            if isinstance(value, str):
                hosts.append(value)
            elif isinstance(value, (tuple, list)):
                hosts += [str(one) for one in value]
        port = self.url.port or {"postgresql": 5432, "mysql": 3306}[self.kind]
        return f"{','.join(dict.fromkeys(hosts)) or 'localhost'}:{port}"


def resolve(
    source: str | URL | Engine, *, options: Mapping[str, Any], base_dir: str | PathLike[str] | None
) -> Target:
    """Return what a URL or an engine names.

    :raises ConfigError: if it cannot be used or its driver is missing.
    """
    engine_options = dict(options)
    connect_args: dict[str, Any] = {}
    lender = source if isinstance(source, Engine) else None
    if lender is not None:
        connect_args |= _lent_arguments(lender, engine_options)
    given = engine_options.pop("connect_args", {})
    if not isinstance(given, Mapping):
        raise ConfigError(f"The store option connect_args is {type(given).__name__}: give a dict.")
    connect_args |= given
    url = _url(source)
    kind, driver = choose_driver(url.drivername, redacted(str(url)))
    url = url.set(drivername=f"{kind}+{driver}")
    path: Path | None = None
    if kind == "sqlite":
        url, path = _sqlite(url, base_dir)
    elif not url.database and "creator" not in engine_options and not connect_args:
        raise ConfigError(f"The store URL {redacted(str(url))} names no database: end it with /NAME.")
    if kind == "mysql":
        # Names may hold any character, whatever the application's own connections are set to.
        url = url.update_query_dict({"charset": "utf8mb4"})
        connect_args.pop("charset", None)
    return Target(
        url=url,
        kind=kind,
        driver=driver,
        connect_args={**_limits(kind, driver, url), **connect_args},
        engine_options=engine_options,
        lender=lender,
        path=path,
    )


def _url(source: str | URL | Engine) -> URL:
    if isinstance(source, Engine):
        return source.url
    try:
        return make_url(source)
    except (ArgumentError, ValueError):
        # Without its cause, whose text may hold the password.
        raise ConfigError(
            f"The store URL {redacted(source)} cannot be read: write one such as "
            f"postgresql://user@host:5432/database, with %-escapes for special characters."
        ) from None


def _sqlite(url: URL, base_dir: str | PathLike[str] | None) -> tuple[URL, Path | None]:
    name = url.database or ""
    if not name or ":memory:" in name or url.query.get("mode") == "memory":
        raise ConfigError(
            "An SQLite database in memory is one of its own per connection, so it can be no store: write "
            "memory:// for tests, or sqlite:///path/to/file.db."
        )
    if name.startswith("file:"):
        return url, None
    path = Path(base_dir or os.curdir, os.path.expanduser(name)).absolute()
    return url.set(database=str(path)), path


def url_of_file(path: str) -> URL:
    """Return the URL of an SQLite file; in a text a "%" or "?" of its path would mean something else."""
    return URL.create("sqlite", database=path)


def _limits(kind: str, driver: str, url: URL) -> dict[str, Any]:
    """Return the driver's arguments that keep it from waiting for ever; the user's own win."""
    if kind == "sqlite":
        return {"timeout": BUSY_SECONDS, "check_same_thread": False}
    found: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS}
    if driver == "psycopg":
        # A prepared statement belongs to a session, which a pooler in transaction mode does not keep.
        found["prepare_threshold"] = None
    if kind == "mysql":
        # For the greeting, before which the store's own watch sees no connection.
        limit = int(ANSWER_SECONDS) + 1
        found |= {"read_timeout": limit, "write_timeout": limit}
    return {name: value for name, value in found.items() if name not in url.query}


def _lent_arguments(engine: Engine, options: dict[str, Any]) -> dict[str, Any]:
    """Return the connect arguments of a user's engine; a ``creator`` goes into the options.

    SQLAlchemy keeps them in the function that its pool connects with, nowhere else.
    """
    connect: Any = engine.pool._creator
    options.setdefault("pool_recycle", engine.pool._recycle)
    try:
        variables = inspect.getclosurevars(connect).nonlocals
    except TypeError:
        variables = {}
    if isinstance(variables.get("cparams"), Mapping) and "dialect" in variables:
        return dict(variables["cparams"])
    options.setdefault("creator", connect)
    return {}


def lend_listeners(engine: Engine, lender: Engine) -> None:
    """Let ``do_connect`` listeners of the user's engine (a token for a password, say) serve ours too."""

    def do_connect(dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
        for listener in lender.dialect.dispatch.do_connect:
            connection = listener(dialect, record, cargs, cparams)
            if connection is not None:
                return connection
        return None

    event.listen(engine, "do_connect", do_connect)
