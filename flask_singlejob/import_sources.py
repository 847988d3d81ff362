"""Reads the job stores of APScheduler 3: an SQL table, a Redis hash, a MongoDB collection. Writes nothing.

What they hold is pickled. This module is the one place that unpickles, and it is called for the command
``import-jobs`` only; a pickle runs whatever code it holds.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checks import safe_url
from .errors import ConfigError, StoreError

__all__ = ["Source", "Unreadable", "unpickled"]

_ANSWER_SECONDS = 8


class Unreadable(Exception):
    """A job's pickle cannot be read here; the text says why."""


@dataclass(frozen=True)
class Source:
    """A job store to read.

    :param url: of a database that SQLAlchemy knows, ``redis://`` or ``mongodb://``.
    :param table: of a SQLAlchemyJobStore; ``schema`` too.
    :param jobs_key: the hash of a RedisJobStore.
    :param database: of a MongoDBJobStore; ``collection`` too.
    """

    url: str
    table: str = "apscheduler_jobs"
    schema: str | None = None
    jobs_key: str = "apscheduler.jobs"
    database: str = "apscheduler"
    collection: str = "jobs"

    @property
    def name(self) -> str:
        """The job store without any password."""
        place = {
            "redis": f"key {self.jobs_key}",
            "mongodb": f"collection {self.database}.{self.collection}",
        }.get(self._kind, f"table {self.table if self.schema is None else f'{self.schema}.{self.table}'}")
        return f"{safe_url(self.url)}, {place}"

    @property
    def _kind(self) -> str:
        scheme = self.url.partition("://")[0].partition("+")[0].lower()
        return {"rediss": "redis", "unix": "redis"}.get(scheme, scheme)

    def read(self) -> list[tuple[str, bytes]]:
        """Return every job's id and pickle, by id.

        :raises ConfigError: when URL, table or driver cannot be used.
        :raises StoreError: when the job store does not answer.
        """
        if "://" not in self.url:
            raise ConfigError(
                f"{safe_url(self.url)!r} is no URL of a job store: write sqlite:///jobs.db, postgresql://…, redis://…, mongodb://…"
            )
        reader = {"redis": self._redis, "mongodb": self._mongodb}.get(self._kind, self._sql)
        return sorted(reader())

    # -- each kind ---------------------------------------------------------------------------------------

    def _sql(self) -> Iterator[tuple[str, bytes]]:
        import sqlalchemy
        from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

        from .stores.sql_faults import reason_of

        source = self._known_driver()
        try:
            engine = sqlalchemy.create_engine(source, poolclass=sqlalchemy.pool.NullPool)
            columns: tuple[Any, Any] = (
                sqlalchemy.column("id"),
                sqlalchemy.column("job_state", sqlalchemy.LargeBinary),
            )
            table = sqlalchemy.table(self.table, *columns, schema=self.schema)
            with engine.connect() as connection:
                if not sqlalchemy.inspect(connection).has_table(self.table, schema=self.schema):
                    raise NoSuchTableError(self.table)
                for id, state in connection.execute(sqlalchemy.select(*columns).select_from(table)):
                    yield str(id), bytes(state)
        except NoSuchTableError:
            raise ConfigError(
                f"there is no table {self.table!r} in {safe_url(self.url)}: name the job store's table with --table "
                "(and its schema with --schema)"
            ) from None
        except ImportError as error:
            raise ConfigError(
                f"the driver of {safe_url(self.url)} is not installed ({error}): install it, or name another in the URL"
            ) from error
        except SQLAlchemyError as error:
            raise StoreError(
                f"the job store {self.name} cannot be read: {safe_url(reason_of(error))}"
            ) from error

    def _known_driver(self) -> Any:
        """Return the URL with a driver that is installed; an SQLite file must be there, or it would be made."""
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        from .stores.sql_target import resolve

        try:
            url = make_url(self.url)
        except (ArgumentError, ValueError):
            raise ConfigError(f"the URL {safe_url(self.url)!r} cannot be read") from None
        kind = url.get_backend_name()
        if kind == "postgres":
            raise ConfigError("SQLAlchemy does not know postgres://: write postgresql://")
        if kind == "sqlite":
            path = Path(url.database or "")
            if not (url.database or "").startswith("file:") and not path.is_file():
                raise ConfigError(f"there is no SQLite file {str(path.absolute())!r}")
            return url
        if kind in ("postgresql", "mysql", "mariadb") and "+" not in url.drivername:
            return resolve(url, options={}, base_dir=None).url
        return url

    def _redis(self) -> Iterator[tuple[str, bytes]]:
        try:
            import redis
        except ImportError:
            raise ConfigError(
                f"reading {safe_url(self.url)} needs redis-py: pip install flask-singlejob[redis]"
            ) from None
        try:
            client = redis.Redis.from_url(
                self.url, socket_timeout=_ANSWER_SECONDS, socket_connect_timeout=_ANSWER_SECONDS
            )
            with client:
                found: Any = client.hgetall(self.jobs_key)
        except ValueError as error:
            raise ConfigError(f"the URL {safe_url(self.url)!r} cannot be used: {error}") from None
        except redis.RedisError as error:
            raise StoreError(f"the job store {self.name} cannot be read: {safe_url(str(error))}") from error
        for id, state in found.items():
            yield id.decode("utf-8", "replace"), state

    def _mongodb(self) -> Iterator[tuple[str, bytes]]:
        try:
            import pymongo
            from pymongo.errors import PyMongoError
        except ImportError:
            raise ConfigError(
                f"reading {safe_url(self.url)} needs PyMongo: pip install flask-singlejob[mongodb]"
            ) from None
        limit = _ANSWER_SECONDS * 1000
        try:
            client: Any = pymongo.MongoClient(self.url, serverSelectionTimeoutMS=limit, socketTimeoutMS=limit)
            with client:
                for document in client[self.database][self.collection].find({}, {"job_state": 1}):
                    yield str(document["_id"]), bytes(document["job_state"])
        except PyMongoError as error:
            # What follows is the driver's view of the whole topology.
            reason = safe_url(str(error)).partition(" (configured")[0][:300]
            raise StoreError(f"the job store {self.name} cannot be read: {reason}") from error


def unpickled(state: bytes) -> dict[str, Any]:
    """Return what APScheduler pickled of a job.

    :raises Unreadable: when it cannot be read here, saying why.
    """
    try:
        found = pickle.loads(state)
    except (ImportError, AttributeError) as error:
        raise Unreadable(
            f"its pickle names code that this process cannot import ({error}): bring it back, or add the job anew"
        ) from error
    except Exception as error:
        raise Unreadable(f"its pickle cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(found, dict) or "trigger" not in found:
        raise Unreadable(f"its pickle is no job of APScheduler 3 (it is of type {type(found).__name__})")
    return found
