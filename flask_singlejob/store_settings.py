"""What the configuration says of the store, judged together at start: URL, options and schema.

Imports no driver and no SQLAlchemy for names that are known here; what is not known the library itself is
asked about, without a connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from .checks import safe_url, safe_value
from .errors import ConfigError
from .stores import Store, check_store, is_flask_sqlalchemy, kind_of, open_store
from .stores.url_checks import query_of

__all__ = ["check_store_settings"]

#: Options that each library takes in every version and for every database; others it is asked about.
_KNOWN = {
    "sql": {
        *("connect_args", "creator", "echo", "echo_pool", "execution_options", "hide_parameters"),
        *("isolation_level", "json_deserializer", "json_serializer", "logging_name", "max_overflow"),
        *("pool_logging_name", "pool_pre_ping", "pool_recycle", "pool_size", "pool_timeout", "pool_use_lifo"),
    },
    "redis": {
        *("client_name", "db", "decode_responses", "encoding", "encoding_errors", "health_check_interval"),
        *("max_connections", "password", "protocol", "retry", "retry_on_error", "retry_on_timeout"),
        *(
            "socket_connect_timeout",
            "socket_keepalive",
            "socket_keepalive_options",
            "socket_timeout",
            "username",
        ),
    },
    "mongodb": {
        *("appname", "authmechanism", "authsource", "connect", "connecttimeoutms", "directconnection"),
        *("maxidletimems", "maxpoolsize", "minpoolsize", "password", "replicaset", "retryreads"),
        *("retrywrites", "serverselectiontimeoutms", "sockettimeoutms", "timeoutms", "tls", "tlscafile"),
        "username",
    },
}
_TLS = {
    *("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"),
    "ssl_password",
}
_NUMBERS = {
    "sql": ("max_overflow", "pool_recycle", "pool_size", "pool_timeout"),
    "redis": ("db", "health_check_interval", "socket_connect_timeout", "socket_timeout"),
    "mongodb": ("connecttimeoutms", "serverselectiontimeoutms", "sockettimeoutms", "timeoutms"),
}
_TAKERS = {
    "sql": "keyword arguments of SQLAlchemy's create_engine",
    "redis": "keyword arguments of redis.from_url",
    "mongodb": "keyword arguments of pymongo's MongoClient",
}


def check_store_settings(store: Any, options: Mapping[str, Any], schema: str | None) -> None:
    """Refuse what cannot serve, as far as that can be told without connecting.

    :param store: as given; None: the default, an SQLite file or (in a test) ``memory://``.
    :raises ConfigError: naming the key, its value without a password, and what is allowed.
    """
    if isinstance(store, Store):
        return
    database = "sqlite" if store is None else None
    if store is not None and not is_flask_sqlalchemy(store):
        try:
            check_store(store, options=options)
        except ConfigError as error:
            raise ConfigError(f"SINGLEJOB_STORE is {safe_value(store)}. {error}") from error
        database = kind_of(store)
    if schema is not None and database not in (None, "postgresql", "mysql"):
        place = "not set, which is SQLite" if store is None else safe_value(store)
        raise ConfigError(
            f"SINGLEJOB_SCHEMA is {schema!r} and SINGLEJOB_STORE is {place}; allowed: a schema for PostgreSQL, MySQL "
            f"and MariaDB only. Cure: remove the key."
        )
    if database == "memory":
        _check_memory(options)
        return
    library = database if database in ("redis", "mongodb") else "sql"
    given = dict(options)
    if store is None:
        _check_clock(given.pop("clock", None))
    _check_values(library, given)
    if store is None:
        store = "sqlite:///singlejob.db"
    _ask_the_library(library, store, given)


def _check_memory(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - {"clock"})
    if unknown:
        raise ConfigError(
            f"SINGLEJOB_STORE_OPTIONS has {_named(unknown)} and SINGLEJOB_STORE is memory://; allowed: clock."
        )
    _check_clock(options.get("clock"))


def _check_clock(clock: Any) -> None:
    if clock is not None and not callable(clock):
        raise ConfigError(
            f"SINGLEJOB_STORE_OPTIONS has a clock of type {type(clock).__name__}; allowed: a "
            f"flask_singlejob.testing.FrozenClock, or a function that gives UTC milliseconds."
        )


def _check_values(library: str, options: Mapping[str, Any]) -> None:
    arguments = options.get("connect_args", {})
    if library == "sql" and not isinstance(arguments, Mapping):
        raise ConfigError(
            f"SINGLEJOB_STORE_OPTIONS has connect_args of type {type(arguments).__name__}; allowed: a dict."
        )
    for name, value in options.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name.lower() in _NUMBERS[library] and value is not None and not number:
            raise ConfigError(
                f"SINGLEJOB_STORE_OPTIONS has {name} of type {type(value).__name__}; allowed: a number."
            )


def _ask_the_library(library: str, store: Any, options: Mapping[str, Any]) -> None:
    """Let the library judge names that are not known here, by making and dropping what connects later."""
    if is_flask_sqlalchemy(store):
        return  # Its engine is known in an application context only.
    known = set(_KNOWN[library])
    query: set[str] = set()
    if library == "redis" and isinstance(store, str):
        known |= _TLS if store.lower().startswith("rediss") else set()
        query = set(query_of(store)) - known
    unknown = {name for name in options if (name.lower() if library == "mongodb" else name) not in known}
    if not unknown and not query:
        return
    try:
        opened = open_store(store, options=options)
    except Exception as error:
        # Its first sentence; SQLAlchemy's own says more than what was made of it.
        told = " ".join(str(error.__cause__ or error).split()).partition(". ")[0].rstrip(".")
        told += ")" * (told.count("(") - told.count(")"))
        taken = f"allowed: {_TAKERS[library]} ({safe_url(told)})."
        if unknown:
            raise ConfigError(f"SINGLEJOB_STORE_OPTIONS has {_named(unknown)}; {taken}") from error
        raise ConfigError(
            f"SINGLEJOB_STORE is {safe_value(store)}, with {_named(query)} behind its question mark; {taken}"
        ) from error
    with contextlib.suppress(Exception):
        opened.close()


def _named(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names))
