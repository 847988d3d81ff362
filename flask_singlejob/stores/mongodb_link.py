"""The way to a MongoDB deployment: its URL, its client, its collections, and its errors in one line.

Owns no document. Every call is bounded in time, reads from the primary and writes with majority.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..errors import ConfigError, StoreError

__all__ = ["NOW", "Link", "digest", "literal"]

_T = TypeVar("_T")

#: The server's clock, UTC milliseconds, in any expression: one value within one command.
NOW = {"$toLong": "$$NOW"}

#: A whole verb, with what the driver tries again by itself, ends within the store's time limit.
VERB_SECONDS = 7.0
_LIMITS_MS = {"serverSelectionTimeoutMS": 3000, "connectTimeoutMS": 1500, "socketTimeoutMS": 3000}
#: Ours to set: what a claim's answer means depends on them.
_OURS = ("w", "wtimeoutms", "readpreference", "readconcernlevel", "document_class", "type_registry")

#: Clients of a parent process, kept so that the child never closes what the parent uses.
_inherited: list[Any] = []


def digest(*parts: Any) -> str:
    """Return 32 hex digits that name these parts, safe as ``_id`` and as a field's name."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def literal(value: Any) -> dict[str, Any]:
    """Return an expression for a value as it is, whatever dollar signs it holds."""
    return {"$literal": value}


class Link:
    """A client that is made at the first call, and the four collections of one table prefix.

    :raises ConfigError: if pymongo is missing, or URL or options cannot be used.
    """

    def __init__(self, url: str, *, table_prefix: str, options: Mapping[str, Any] | None = None) -> None:
        try:
            import pymongo
            import pymongo.errors
            import pymongo.read_concern
            import pymongo.uri_parser
        except ImportError as error:
            raise ConfigError(
                'A mongodb:// store needs the pymongo package: pip install "flask-singlejob[mongodb]"'
            ) from error
        self._pymongo: Any = pymongo
        self._url = url
        self._options = dict(options or {})
        self._prefix = table_prefix
        self._lock = threading.Lock()
        self._client: Any = None
        scheme, _, rest = url.partition("://")
        places = urlsplit(f"//{rest}").netloc.rpartition("@")[2]
        try:
            if scheme != "mongodb+srv":  # That one's hosts are asked of the name service, at the first call.
                pymongo.uri_parser.parse_uri(url)
            if self._options:
                pymongo.MongoClient("mongodb://localhost", connect=False, **self._options).close()
        except Exception as error:
            # The driver's message about a URL may quote a part of its password.
            plain = isinstance(error, pymongo.errors.ConfigurationError)
            about = str(error) if plain else type(error).__name__
            raise ConfigError(
                f"The MongoDB store's URL ({scheme}://…) or its options cannot be used ({about}). Allowed: "
                "mongodb://user:password@host:27017,host:27017/database?replicaSet=name or "
                "mongodb+srv://host/database; percent-encode special characters of user and password"
            ) from None
        self.database = urlsplit(f"//{rest}").path.strip("/") or "singlejob"
        self.name = f"{scheme}://{places}/{self.database}"

    @property
    def claims(self) -> Any:
        """One document for each claimable name."""
        return self._collection("claims")

    @property
    def confirmed_claims(self) -> Any:
        """The same, but as a majority has it: what a second look sees no failover takes back."""
        return self.claims.with_options(read_concern=self._pymongo.read_concern.ReadConcern("majority"))

    @property
    def history(self) -> Any:
        """One document for each record of history."""
        return self._collection("runs")

    @property
    def bodies(self) -> Any:
        """One document for each version of a document's body."""
        return self._collection("docs")

    @property
    def meta(self) -> Any:
        """One document for each cluster: its revision and the index of its documents."""
        return self._collection("meta")

    def _collection(self, name: str) -> Any:
        pymongo = self._pymongo
        with self._lock:
            if self._client is None:
                limits = dict(_LIMITS_MS)
                given = {key.lower(): key for key in self._options}
                options = {k: v for k, v in self._options.items() if k.lower() not in _OURS}
                for limit, most in limits.items():
                    own = options.pop(given.get(limit.lower(), limit), most)
                    limits[limit] = min(int(own or most), most)
                self._client = pymongo.MongoClient(self._url, connect=False, **{**options, **limits})
            client = self._client
        database = client.get_database(
            self.database,
            write_concern=pymongo.WriteConcern("majority", wtimeout=int(VERB_SECONDS * 1000)),
            read_preference=pymongo.ReadPreference.PRIMARY,
            read_concern=pymongo.read_concern.ReadConcern("local"),
        )
        return database[f"{self._prefix}{name}"]

    def close(self) -> None:
        """Close every connection; the next call makes a new client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def after_fork(self) -> None:
        """Forget the parent's client and its monitor threads, which do not run in a child."""
        if self._client is not None:
            _inherited.append(self._client)
        self._lock = threading.Lock()
        self._client = None

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Bound what is inside in time, and turn the driver's errors into one :class:`StoreError`."""
        try:
            with self._pymongo.timeout(VERB_SECONDS):
                yield
        except self._pymongo.errors.PyMongoError as error:
            raise StoreError(f"The store {self.name} failed: {self._explain(error)}") from error

    def unless_unknown(self, write: Callable[[], _T], look_again: Callable[[], _T]) -> _T:
        """Do a write; when its outcome is unknown, answer with what a second look finds.

        Unknown: the connection broke or timed out, or no majority confirmed it. The second look has to
        tell by a random id in the document whether the write was ours.
        """
        errors = self._pymongo.errors
        try:
            return write()
        except (errors.ServerSelectionTimeoutError, errors.DuplicateKeyError):
            raise
        except (errors.ConnectionFailure, errors.ExecutionTimeout, errors.WTimeoutError):
            return look_again()

    def upsert_all(self, collection: Any, changes: Sequence[tuple[Any, Any]]) -> None:
        """Write many documents in one request; that somebody else makes the same ones is no error."""
        errors = self._pymongo.errors
        requests = [self._pymongo.UpdateOne(wanted, change, upsert=True) for wanted, change in changes]
        try:
            collection.bulk_write(requests, ordered=False)
        except errors.BulkWriteError as error:
            details = error.details or {}
            others = [one for one in details.get("writeErrors", []) if one.get("code") != 11000]
            if others or details.get("writeConcernErrors"):
                raise

    def is_duplicate(self, error: BaseException) -> bool:
        """Tell whether somebody else made the same document first."""
        return isinstance(error, self._pymongo.errors.DuplicateKeyError)

    def _explain(self, error: Exception) -> str:
        errors = self._pymongo.errors
        text = " ".join(str(error).split())
        if isinstance(error, errors.ServerSelectionTimeoutError):
            return f"no primary can be reached ({text[:200]})"
        if isinstance(error, errors.NotPrimaryError):
            return "the server is no longer the primary"
        if isinstance(error, errors.OperationFailure) and error.code in (13, 18):
            return "it refuses the user or the password, or the user may not write this database"
        if isinstance(error, errors.WTimeoutError):
            return "no majority of the replica set confirmed the write in time"
        if isinstance(error, (errors.NetworkTimeout, errors.ExecutionTimeout)):
            return f"it did not answer in time ({text[:200]})"
        if isinstance(error, errors.ConnectionFailure):
            return f"the connection broke ({text[:200]})"
        return text[:300] or type(error).__name__
