"""Opens the store that a URL or an object names; the one list of schemes.

Imports no driver and no SQLAlchemy by itself: what a store needs is imported when it is opened.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from os import PathLike
from typing import Any, cast

from ..errors import ConfigError
from .base import Store
from .drivers import choose_driver
from .url_checks import check_object, check_text

__all__ = ["SCHEMES", "Store", "check_store", "is_flask_sqlalchemy", "kind_of", "open_store", "redacted"]

#: Every scheme and the class that serves it; what stands behind a ``+`` (the driver) is cut off first.
SCHEMES: dict[str, str] = {
    "memory": "flask_singlejob.stores.memory:MemoryStore",
    "sqlite": "flask_singlejob.stores.sql:SqlStore",
    "postgresql": "flask_singlejob.stores.sql:SqlStore",
    "mysql": "flask_singlejob.stores.sql:SqlStore",
    "mariadb": "flask_singlejob.stores.sql:SqlStore",
    "redis": "flask_singlejob.stores.redis:RedisStore",
    "rediss": "flask_singlejob.stores.redis:RedisStore",
    "redis+sentinel": "flask_singlejob.stores.redis:RedisStore",
    "rediss+sentinel": "flask_singlejob.stores.redis:RedisStore",
    "redis+cluster": "flask_singlejob.stores.redis:RedisStore",
    "rediss+cluster": "flask_singlejob.stores.redis:RedisStore",
    "redis+unix": "flask_singlejob.stores.redis:RedisStore",
    "mongodb": "flask_singlejob.stores.mongodb:MongoStore",
    "mongodb+srv": "flask_singlejob.stores.mongodb:MongoStore",
}

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")


def open_store(
    url: Any,
    *,
    cluster: str = "default",
    table_prefix: str = "singlejob_",
    schema: str | None = None,
    options: Mapping[str, Any] | None = None,
    base_dir: str | PathLike[str] | None = None,
) -> Store:
    """Open a store; nothing is connected before its first verb.

    :param url: a URL as text; an SQLAlchemy ``URL``; an ``Engine``, which lends its URL, its connect
        arguments and its ``do_connect`` listeners (the pool is our own); a Flask-SQLAlchemy ``db`` in an
        application context; or a store that is open already, returned as it is.
    :param cluster: all processes that give the same name share claims, history and documents.
    :param table_prefix: the prefix of tables, keys or collections.
    :param schema: the schema of the tables (PostgreSQL) or their database (MySQL, MariaDB).
    :param options: keyword arguments for ``create_engine``, ``redis.from_url`` or ``MongoClient``.
    :param base_dir: the directory of a relative SQLite path; None: the current one.
    :raises ConfigError: if the value cannot be used, naming it without its password, and the cure.
    """
    if isinstance(url, Store):
        return url
    if not isinstance(cluster, str) or not cluster:
        raise ConfigError(f"The cluster's name is {cluster!r}: give a text that is not empty.")
    if not isinstance(table_prefix, str) or not _PREFIX.fullmatch(table_prefix):
        raise ConfigError(
            f"The table prefix {table_prefix!r} cannot be used: write 1 to 32 letters, digits and "
            f"underscores, the first no digit."
        )
    source = _source(url)
    module_name, _, class_name = SCHEMES[_scheme(source)].partition(":")
    _check_source(source, options or {})
    if schema is not None and class_name != "SqlStore":
        raise ConfigError(
            f"A schema ({schema!r}) is only for PostgreSQL, MySQL and MariaDB: leave it out for "
            f"{redacted(source)}."
        )
    if class_name == "MemoryStore" and set(options or ()) - {"clock"}:
        raise ConfigError(f"memory:// takes no store options but clock, and got {sorted(options or ())}.")
    store_class = getattr(importlib.import_module(module_name), class_name)
    more: dict[str, Any] = {"cluster": cluster, "table_prefix": table_prefix}
    if class_name == "MemoryStore":
        clock = (options or {}).get("clock")
        return cast(Store, store_class(name=source.partition("://")[2], clock=clock, **more))
    if class_name == "SqlStore":
        more |= {"schema": schema, "base_dir": base_dir}
    return cast(Store, store_class(source, options=options, **more))


def check_store(value: Any, *, options: Mapping[str, Any] | None = None) -> None:
    """Refuse what can be no store, as far as that is known before anything is imported or connected.

    :param options: the store's options; None: not known, and what they may name is not missed in the URL.
    :raises ConfigError: naming the value without its password, and the cure.
    """
    if isinstance(value, Store) or is_flask_sqlalchemy(value):
        return
    _check_source(_source(value), options)


def kind_of(value: Any) -> str:
    """Return what a value that :func:`check_store` lets pass leads to.

    :returns: ``memory``, ``sqlite``, ``postgresql``, ``mysql``, ``redis`` or ``mongodb``.
    """
    base = _scheme(_source(value)).partition("+")[0]
    return {"mariadb": "mysql", "rediss": "redis"}.get(base, base)


def _check_source(source: Any, options: Mapping[str, Any] | None) -> None:
    scheme = _scheme(source)
    shown = redacted(source)
    if "SqlStore" in SCHEMES[scheme]:
        name = (
            source.partition("://")[0]
            if isinstance(source, str)
            else getattr(source, "url", source).drivername
        )
        choose_driver(name, shown)
    if isinstance(source, str):
        check_text(source, scheme, shown, options=options)
    elif "SqlStore" in SCHEMES[scheme]:
        # What an engine connects with may name the database too.
        check_object(
            getattr(source, "url", source), scheme, shown, options=None if hasattr(source, "url") else options
        )


def is_flask_sqlalchemy(value: Any) -> bool:
    """Tell whether a value is a Flask-SQLAlchemy extension, without asking it for what needs a context."""
    return hasattr(type(value), "engines") or hasattr(type(value), "get_engine")


def redacted(value: Any) -> str:
    """Return a store's URL for a message: without user, password and query, cut to 200 characters."""
    if not isinstance(value, str):
        url = getattr(value, "url", value)
        value = str(getattr(url, "drivername", type(value).__name__)) + "://…"
    if "://" not in value:
        return "…" if re.search(r"pass|pwd|@", value, re.IGNORECASE) else repr(value[:200])
    scheme, _, rest = value.partition("://")
    rest = re.sub(r"^.*@", "***@", rest, flags=re.DOTALL).partition("?")[0]
    return repr(f"{scheme}://{rest}"[:200])


def _source(value: Any) -> Any:
    """Return text, or an SQLAlchemy URL or Engine, of whatever may name a store."""
    if isinstance(value, str):
        return _checked_text(value)
    # Whoever hands over one of SQLAlchemy's objects has imported it already.
    sqlalchemy = sys.modules.get("sqlalchemy")
    if sqlalchemy is not None:
        if isinstance(value, (sqlalchemy.URL, sqlalchemy.Engine)):
            return value
        if is_flask_sqlalchemy(value):
            try:
                engine = value.engine
            except RuntimeError as error:
                raise ConfigError(
                    f"The store is a Flask-SQLAlchemy extension, whose engine is only known in an "
                    f"application context: {' '.join(str(error).split())}"
                ) from error
            return _source(engine)
        if hasattr(value, "sync_engine"):
            raise ConfigError(
                "The store is an asynchronous engine: give an Engine of create_engine() or a URL with a "
                "synchronous driver."
            )
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    raise ConfigError(
        f"The store is {'None' if value is None else 'of type ' + type(value).__name__}: give a URL "
        f"({known}), an SQLAlchemy Engine or URL, or a Flask-SQLAlchemy db."
    )


def _checked_text(text: str) -> str:
    shown = redacted(text)
    if text != text.strip() or any(ord(c) < 32 for c in text):
        raise ConfigError(f"The store URL {shown} has spaces or line ends around or in it: take them out.")
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ConfigError(
            f"The store {shown} is no URL: write one such as postgresql://user@host/database or "
            f"sqlite:////path/to/file.db."
        )
    if not scheme.lower().startswith("sqlite") and re.search(r"\s", rest):
        raise ConfigError(f"The store URL {shown} has a space in it: write it as %20, or take it out.")
    return f"{scheme.lower()}://{rest}"


def _scheme(source: Any) -> str:
    """Return the key in :data:`SCHEMES` of a checked text, URL or Engine."""
    text = source if isinstance(source, str) else str(getattr(source, "url", source).drivername)
    name = text.partition("://")[0]
    if name in SCHEMES:
        return name
    scheme = name.partition("+")[0]
    if scheme == "postgres":
        raise ConfigError(
            f"The store URL {redacted(source)} starts with postgres://, which SQLAlchemy does not know: "
            f"write postgresql://."
        )
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}://" for known in SCHEMES)
        raise ConfigError(f"The store URL {redacted(source)} has an unknown scheme; known are {known}.")
    if "SqlStore" not in SCHEMES[scheme]:
        raise ConfigError(
            f"The store URL {redacted(source)} has an unknown scheme {name}://: write {scheme}://."
        )
    return scheme
