"""A store in SQLite, PostgreSQL, MySQL or MariaDB: a claim is one conditional UPDATE.

It promises what its database promises: a failover to an asynchronous replica may take back the last
claims, and an SQLite file serves the processes of one host. The statements are in
``sql_statements.py``, connections and second tries in ``sql_gateway.py``, the tables in ``schema.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from sqlalchemy import URL, Engine

from ..errors import ConfigError
from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Doc, Poll, Run, RunStatus
from . import schema as schema_module
from .base import Store
from .sql_claims import Claims
from .sql_create import Creation
from .sql_documents import Documents
from .sql_faults import Fault
from .sql_gateway import Gateway
from .sql_history import History
from .sql_statements import Statements
from .sql_target import resolve

__all__ = ["SqlStore"]

_UPDATE_RETURNING_SQLITE = (3, 35, 0)
_OLDEST_SQLITE = (3, 24, 0)


class SqlStore(Store):
    """A :class:`~flask_singlejob.stores.base.Store` over SQLAlchemy Core.

    :param source: a URL, or an engine, which lends its URL, connect arguments and ``do_connect``
        listeners; its pool and its other listeners stay its own.
    :param schema: the schema of the tables (PostgreSQL) or their database (MySQL, MariaDB).
    :param options: keyword arguments for ``create_engine``. Isolation is the store's own matter.
    :param base_dir: the directory of a relative SQLite path; made at the first use.
    :raises ConfigError: if URL, driver or options cannot be used.
    """

    def __init__(
        self,
        source: str | URL | Engine,
        *,
        cluster: str,
        table_prefix: str,
        schema: str | None = None,
        options: Mapping[str, Any] | None = None,
        base_dir: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(cluster=cluster, table_prefix=table_prefix)
        target = resolve(source, options=options or {}, base_dir=base_dir)
        self.local = target.kind == "sqlite"
        self._target = target
        self._schema = schema
        returning = target.kind == "postgresql"
        if target.kind == "sqlite":
            returning = _check_sqlite(schema)
        self._gate = Gateway(target, explain=self._explain)
        self._tables = schema_module.Tables(prefix=table_prefix, schema=schema)
        self._sql = Statements(self._tables, target.kind, cluster=cluster, returning=returning)
        self._creation = Creation(self._gate, self._tables)
        self._claims = Claims(self._gate, self._sql)
        self._history = History(self._gate, self._sql)
        self._documents = Documents(self._gate, self._sql)

    # -- life ---------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        place = f"{self._target.identity}/{self.table_prefix}"
        return place if self._schema is None else f"{place}@{self._schema}"

    def describe(self) -> str:
        return self._target.describe()

    def create(self) -> None:
        self._creation.create()

    def ddl(self) -> str:
        return self._creation.ddl()

    def close(self) -> None:
        self._gate.close()

    def after_fork(self) -> None:
        self._gate.after_fork()

    def checks(self) -> list[tuple[str, str]]:
        from .sql_checks import findings

        return findings(self._gate, self._tables)

    def _explain(self, fault: Fault) -> str:
        if fault is Fault.MISSING:
            return (
                f" (the tables {self.table_prefix}* are missing or of an older version: run 'flask singlejob "
                f"init-db', or the statements that 'flask singlejob init-db --sql' prints)"
            )
        if fault is Fault.DENIED:
            return " ('flask singlejob doctor' tells which rights are missing)"
        if fault is Fault.CONFLICT:
            return " (another program or transaction keeps it locked)"
        if fault is Fault.READ_ONLY:
            return " (it takes no writes: a replica?)"
        return ""

    # -- claims -------------------------------------------------------------------------------

    def prepare(self, kinds: int, rows: int | None) -> None:
        """Make ready what an owner asks first, without connecting.

        :param kinds: of how many kinds it will read the documents at once.
        :param rows: of how many jobs it will read the rows; None: of any number.
        """
        self._claims.prepare(rows)
        self._documents.prepare(kinds)

    def poll(self) -> Poll:
        return self._claims.poll()

    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        return self._claims.ensure(keys)

    def rows(self, keys: Iterable[ClaimKey] | None = None, *, kind: str | None = None) -> list[ClaimRow]:
        return self._claims.rows(keys, kind=kind)

    def claim(self, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
        return self._claims.claim(key, request)

    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        return self._claims.renew(key, holder, token, lease_ms, progress=progress)

    def release(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        *,
        run: Run | None = None,
        resolved: int | None = None,
        seen_resolved: int | None = None,
        skipped: Run | None = None,
        done: bool = False,
    ) -> bool:
        return self._claims.release(
            key,
            holder,
            token,
            run=run,
            resolved=resolved,
            seen_resolved=seen_resolved,
            skipped=skipped,
            done=done,
        )

    def settle(self, key: ClaimKey, seen_resolved: int, resolved: int, record: Run | None = None) -> bool:
        return self._claims.settle(key, seen_resolved, resolved, record)

    def expire(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        *,
        lost: Run | None = None,
        rerun: bool = False,
        forced: bool = False,
    ) -> bool:
        return self._claims.expire(key, holder, token, lost=lost, rerun=rerun, forced=forced)

    # -- history ------------------------------------------------------------------------------

    def runs(
        self,
        job_id: str | None = None,
        *,
        status: Sequence[RunStatus] | None = None,
        since: int | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Run]:
        return self._history.runs(job_id, status=status, since=since, before=before, limit=limit)

    def run(self, run_id: str) -> Run | None:
        return self._history.run(run_id)

    def add_run(self, run: Run) -> None:
        self._history.add(run)

    def prune(self, *, before: int, keep: int, limit: int = 500) -> int:
        return self._history.prune(before=before, keep=keep, limit=limit)

    # -- documents ----------------------------------------------------------------------------

    def docs(self, kind: str, *, since: int = 0) -> list[Doc]:
        return self._documents.docs_of((kind,), since=since)

    def docs_of(self, kinds: Sequence[str], *, since: int = 0) -> list[Doc]:
        return self._documents.docs_of(kinds, since=since)

    def doc(self, kind: str, id: str) -> Doc | None:
        return self._documents.doc(kind, id)

    def put(
        self,
        kind: str,
        id: str,
        body: Mapping[str, Any],
        *,
        expect: int | None = None,
        quiet: bool = False,
    ) -> Doc | None:
        return self._documents.put(kind, id, body, expect=expect, quiet=quiet)

    def delete(self, kind: str, id: str, *, expect: int | None = None, quiet: bool = False) -> bool:
        return self._documents.delete(kind, id, expect=expect, quiet=quiet)


def _check_sqlite(schema: str | None) -> bool:
    """Return whether SQLite can answer an UPDATE with its row.

    :raises ConfigError: if it is too old, or a schema was given.
    """
    import sqlite3

    if schema is not None:
        raise ConfigError(f"SQLite has no schemas: leave {schema!r} out.")
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old for a store: 3.24 is needed.")
    return sqlite3.sqlite_version_info >= _UPDATE_RETURNING_SQLITE
