"""The way to a Redis server: its URL, its client, and what its errors mean in one line.

Owns no command and no key. A client never resends by itself: whether a request may be sent twice
is for the store to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError

__all__ = ["SCHEMES", "Target", "explain", "findings", "parse"]

#: URL schemes that the Redis store takes.
SCHEMES = (
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)

#: Two tries, each with a connect and a read, and a sentinel asked before, end within the store's time limit.
CONNECT_SECONDS = 1.5
READ_SECONDS = 2.5
SENTINEL_SECONDS = 1.0

_FORMS = (
    "redis://host:6379/0, rediss://host:6379/0 (TLS), redis+unix:///path/to.sock?db=0, "
    "redis+sentinel://host:26379,host:26379/service/0, redis+cluster://host:6379,host:6379"
)
#: Ours to set: we read bytes, and we alone decide what is sent twice.
_OURS = ("decode_responses", "encoding", "encoding_errors", "retry", "retry_on_timeout", "retry_on_error")

_MEANINGS = {
    "READONLY": "it is a read-only replica: after a failover, the address has to lead to the new primary",
    "OOM": "it is out of memory: raise maxmemory or free some of it",
    "LOADING": "it is loading its data after a start",
    "MISCONF": "it cannot save its data to disk and takes no writes: look at its log and its disk",
    "NOREPLICAS": "fewer replicas are connected than min-replicas-to-write asks for",
    "MASTERDOWN": "it is a replica without its primary",
    "CLUSTERDOWN": "the Redis Cluster is down: not all of its slots are served",
    "BUSY": "it is busy with a script that does not end: SCRIPT KILL or SHUTDOWN NOSAVE frees it",
    "NOAUTH": "it wants a password: put one into the URL",
    "WRONGPASS": "it refused the user name or the password",
    "NOPERM": "its user may not run scripts, or not touch the keys of this store",
}
_WORDS = re.compile(rf"\b({'|'.join(_MEANINGS)})\b")


@dataclass(frozen=True)
class Target:
    """Where a URL leads.

    :param name: the URL without user, password and options.
    :param connect: makes a client; only a cluster's client connects in it.
    :param tries: how often a request may be sent; a cluster's client has tried twice by itself.
    """

    name: str
    connect: Callable[[], Any]
    tries: int


def _driver() -> Any:
    try:
        import redis
        import redis.backoff
        import redis.cluster
        import redis.exceptions
        import redis.retry
        import redis.sentinel
    except ImportError as error:
        raise ConfigError(
            'A redis:// store needs the redis package: pip install "flask-singlejob[redis]"'
        ) from error
    return redis


def _capped(value: Any, limit: float) -> float:
    """Return a time limit in seconds: the user's own when it is tighter than ours."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return limit
    return min(seconds, limit) if seconds > 0 else limit


def _places(netloc: str, default_port: int) -> list[tuple[str, int]]:
    places = []
    for place in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{place}")
        if not parts.hostname:
            raise ValueError("a host is missing")
        places.append((parts.hostname, parts.port or default_port))
    return places


def _login(netloc: str) -> dict[str, str]:
    login, at, _ = netloc.rpartition("@")
    if not at:
        return {}
    user, _, password = login.partition(":")
    return {k: unquote(v) for k, v in (("username", user), ("password", password)) if v}


def parse(url: str, options: Mapping[str, Any] | None = None) -> Target:
    """Return where a URL leads, without connecting to it.

    :param options: keyword arguments as for ``redis.from_url``; those of the URL's query win.
    :raises ConfigError: if the driver is missing, or URL or options cannot be used.
    """
    redis = _driver()
    scheme = url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise ConfigError(f"A Redis store takes no {scheme}:// URL. Use one of {_FORMS}")
    try:
        target = _target(redis, url, scheme, dict(options or {}))
    except (TypeError, ValueError, AttributeError) as error:
        # The driver's message may quote a part of a password that holds "/" or "@": only its kind is told.
        reason = str(error) if isinstance(error, TypeError) else "it cannot be read"
        raise ConfigError(
            f"The Redis store's URL ({scheme}://…) or its options cannot be used: {reason}. "
            f"Allowed: {_FORMS}; percent-encode special characters of a password"
        ) from None
    return target


def _target(redis: Any, url: str, scheme: str, options: dict[str, Any]) -> Target:
    once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    base, _, kind = scheme.partition("+")
    rest = url.partition("://")[2]
    if kind in ("sentinel", "cluster"):
        parts = urlsplit(f"//{rest}")
        kwargs = {
            **options,
            **redis.connection.parse_url(f"{base}://host?{parts.query}"),
            **_login(parts.netloc),
        }
        kwargs.pop("host", None)
    else:
        plain = f"unix://{rest}" if kind == "unix" else f"{base}://{rest}"
        kwargs = {**options, **redis.connection.parse_url(plain)}
    for name in _OURS:
        kwargs.pop(name, None)
    kwargs["socket_timeout"] = _capped(kwargs.get("socket_timeout"), READ_SECONDS)
    kwargs["socket_connect_timeout"] = _capped(kwargs.get("socket_connect_timeout"), CONNECT_SECONDS)
    kwargs["retry"] = once

    if kind == "cluster":
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in _places(parts.netloc, 6379)]
        if kwargs.pop("connection_class", None) is redis.connection.SSLConnection:
            kwargs["ssl"] = True
        kwargs["retry"] = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
        name = f"{scheme}://{','.join(f'{node.host}:{node.port}' for node in nodes)}"
        return Target(name, lambda: redis.RedisCluster(startup_nodes=nodes, **kwargs), tries=1)

    if kind == "sentinel":
        hosts = _places(parts.netloc, 26379)
        service, _, db = parts.path.strip("/").partition("/")
        if not service:
            raise TypeError("the service's name is missing after the hosts")
        if db:
            kwargs["db"] = int(db)
        tls = kwargs.pop("connection_class", None) is redis.connection.SSLConnection
        asking = {"retry": once, "ssl": tls}
        asking.update(
            socket_timeout=min(kwargs["socket_timeout"], SENTINEL_SECONDS),
            socket_connect_timeout=min(kwargs["socket_connect_timeout"], SENTINEL_SECONDS),
        )
        for theirs, ours in (("username", "sentinel_username"), ("password", "sentinel_password")):
            if kwargs.get(ours):
                asking[theirs] = kwargs[ours]
            kwargs.pop(ours, None)
        if tls:
            kwargs["ssl"] = True
            asking.update({k: v for k, v in kwargs.items() if k.startswith("ssl_")})

        def through_sentinel() -> Any:
            return redis.sentinel.Sentinel(hosts, sentinel_kwargs=asking).master_for(service, **kwargs)

        name = (
            f"{scheme}://{','.join(f'{host}:{port}' for host, port in hosts)}/{service}/{kwargs.get('db', 0)}"
        )
        return Target(name, through_sentinel, tries=2)

    def direct() -> Any:
        return redis.Redis(connection_pool=redis.ConnectionPool(**kwargs))

    # A connection is made, not opened: an unknown option is told at start, not at the first claim.
    redis.ConnectionPool(**kwargs).make_connection()
    db = kwargs.get("db", 0)
    if kind == "unix":
        return Target(f"{scheme}://{kwargs.get('path', '')}?db={db}", direct, tries=2)
    host = kwargs.get("host", "localhost")
    return Target(f"{scheme}://{host}:{kwargs.get('port', 6379)}/{db}", direct, tries=2)


def explain(error: BaseException) -> str:
    """Return what an error of the driver means, in one line and without any secret."""
    redis = _driver()
    text = " ".join(str(error).split())
    known = {
        redis.exceptions.ReadOnlyError: "READONLY",
        redis.exceptions.BusyLoadingError: "LOADING",
        redis.exceptions.NoPermissionError: "NOPERM",
        redis.exceptions.ClusterDownError: "CLUSTERDOWN",
        redis.exceptions.MasterDownError: "MASTERDOWN",
        redis.exceptions.OutOfMemoryError: "OOM",
    }
    word = next((word for kind, word in known.items() if isinstance(error, kind)), None)
    if word is None and (found := _WORDS.search(text)):
        word = found[1]
    if word is None and isinstance(error, redis.exceptions.AuthenticationError):
        missing = "authentication required" in text.lower() or "already authenticated" in text.lower()
        word = "NOAUTH" if missing else "WRONGPASS"
    if word is None and "previous master is now a slave" in text:
        word = "READONLY"
    if word is not None:
        return f"{_MEANINGS[word]} ({word})"
    if isinstance(error, redis.exceptions.TimeoutError):
        return f"it did not answer in time ({text})"
    if isinstance(error, (redis.exceptions.ConnectionError, redis.exceptions.RedisClusterException)):
        return f"it cannot be reached ({text})"
    return text or type(error).__name__


def findings(info: Mapping[str, str], config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Tell what of a server's INFO and CONFIG endangers claims: (finding, cure) pairs."""
    version = info.get("redis_version", "0")
    if int(version.partition(".")[0]) < 6:
        yield f"Redis {version} is too old", "use Redis 6 or newer"
    if info.get("role") in ("slave", "replica"):
        yield "this server is a read-only replica", "let SINGLEJOB_STORE name the primary, or its Sentinels"
    policy = info.get("maxmemory_policy") or config.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        yield (
            f"maxmemory-policy is {policy}: short of memory, Redis deletes claims, and a tick may run twice",
            "set maxmemory-policy noeviction, or give the store a Redis of its own",
        )
    if info.get("aof_enabled", "0") == "0":
        if config.get("save") == "":
            yield (
                "nothing is persisted (appendonly no, save empty): a restart forgets ticks and stored jobs",
                "set appendonly yes",
            )
        else:
            yield (
                "appendonly is off: a crash forgets what was written since the last snapshot",
                "set appendonly yes",
            )
    if int(info.get("connected_slaves", "0")) > 0 and config.get("min-replicas-to-write", "1") == "0":
        yield (
            "min-replicas-to-write is 0: a primary cut off from its replicas goes on giving claims "
            "that a failover loses",
            "set min-replicas-to-write 1 and min-replicas-max-lag 10",
        )
