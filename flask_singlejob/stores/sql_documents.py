"""Documents in the SQL store, and the cluster's revision that orders their changes.

The row of the revision is the one that every change locks first, until its commit: so revisions
become visible in their order. Quiet changes do without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, select, update

from ..records import Doc, new_id
from .sql_gateway import Gateway, Session
from .sql_ready import Ready, ReadyStatements
from .sql_statements import Statements, body_text

__all__ = ["Documents"]

_DAY_MS = 24 * 3600 * 1000
#: Old traces are looked for at most so often by one process.
_SWEEP_SECONDS = 600.0


class Documents:
    """The verbs of documents over one gateway."""

    def __init__(self, gate: Gateway, sql: Statements) -> None:
        self._gate = gate
        self._sql = sql
        self._table = sql.tables.documents
        self._ready = ReadyStatements(lambda: gate.engine.dialect)
        self._swept: float | None = None

    def prepare(self, kinds: int) -> None:
        """Compile, without a connection, what reads the documents of so many kinds."""
        for since in (False, True):
            self._reading(kinds, since)

    def _reading(self, kinds: int, since: bool) -> Ready:
        return self._ready.get(("docs", kinds, since), lambda: self._sql.documents(kinds, since=since))

    def docs_of(self, kinds: Sequence[str], *, since: int) -> list[Doc]:
        """See :meth:`~flask_singlejob.stores.base.Store.docs_of`."""
        if not kinds:
            return []
        values = {"p_since": since, **{f"p_kind_{n}": kind for n, kind in enumerate(kinds)}}
        reading = self._reading
        rows = self._gate.call(
            "docs", lambda session: session.run(reading(len(kinds), since > 0), values).rows
        )
        return [_read(row) for row in rows]

    def doc(self, kind: str, id: str) -> Doc | None:
        """See :meth:`~flask_singlejob.stores.base.Store.doc`."""
        row = self._gate.call("doc", lambda session: self._row(session, self._sql.document_id(kind, id)))
        return None if row is None or row.deleted else _read(row)

    def put(
        self, kind: str, id: str, body: Mapping[str, Any], *, expect: int | None, quiet: bool
    ) -> Doc | None:
        """See :meth:`~flask_singlejob.stores.base.Store.put`."""
        key, op = self._sql.document_id(kind, id), new_id()
        values = {
            "id": key,
            "cluster_id": self._sql.cluster_id,
            "cluster": self._sql.cluster,
            "kind": kind,
            "name": id,
            "body": body_text(body),
            "updated_ms": self._sql.now,
            "deleted": 0,
            "op": op,
        }

        def work(session: Session) -> Doc | None:
            row = None
            if expect is not None or session.again:
                row = self._row(session, key)
                if session.again and row is not None and row.op == op:
                    return _read(row)
                if not _meets(row, expect):
                    return None
            if quiet:
                return _read_living(self._row(session, key)) if self._write(session, values, expect) else None
            with session.transaction() as transaction:
                revision = self._raise_revision(session)
                if not self._write(session, values | {"revision": revision}, expect):
                    transaction.undo()
                    return None
                self._sweep(session)
                return _read_living(self._row(session, key))

        return self._gate.call("put", work)

    def _write(self, session: Session, values: dict[str, Any], expect: int | None) -> bool:
        """Write a document under its condition; returns whether it was met."""
        c = self._table.c
        change = update(self._table).where(c.id == values["id"])
        fresh = {"revision": 0, **values}
        if expect:
            changes = {name: value for name, value in values.items() if name != "id"}
            return (
                session.execute(change.where(c.revision == expect, c.deleted == 0).values(changes)).rowcount
                == 1
            )
        # A trace gives its place up: to a quiet document without its revision.
        if session.execute(change.where(c.deleted != 0).values(fresh)).rowcount == 1:
            return True
        if expect is None:
            changes = {name: value for name, value in values.items() if name != "id"}
            session.execute(self._sql.upsert(self._table, fresh, changes))
            return True
        session.execute(self._sql.insert_ignore(self._sql.insert_into(self._table).values(**fresh)))
        return bool(self._row(session, values["id"]).op == values["op"])

    def delete(self, kind: str, id: str, *, expect: int | None, quiet: bool) -> bool:
        """See :meth:`~flask_singlejob.stores.base.Store.delete`."""
        key, op = self._sql.document_id(kind, id), new_id()
        c = self._table.c
        conditions = [c.id == key, c.deleted == 0]
        if expect is not None:
            conditions.append(c.revision == expect)

        def work(session: Session) -> bool:
            row = self._row(session, key)
            if session.again and (row is None or row.op == op):
                return True
            if row is None or row.deleted or expect not in (None, row.revision):
                return False
            if quiet:
                return session.execute(delete(self._table).where(*conditions)).rowcount == 1
            with session.transaction() as transaction:
                revision = self._raise_revision(session)
                trace = {"deleted": 1, "body": "{}", "updated_ms": self._sql.now, "op": op}
                change = update(self._table).where(*conditions).values(revision=revision, **trace)
                if session.execute(change).rowcount != 1:
                    transaction.undo()
                    return False
                self._sweep(session)
                return True

        return self._gate.call("delete", work)

    def _row(self, session: Session, key: str) -> Any:
        return session.execute(select(self._table).where(self._table.c.id == key)).first()

    def _raise_revision(self, session: Session) -> int:
        meta = self._sql.tables.meta
        if session.execute(self._sql.raise_revision()).rowcount == 0:
            session.execute(self._sql.new_revision_row())
            session.execute(self._sql.raise_revision())
        statement = select(meta.c.value).where(meta.c.id == self._sql.revision_id)
        return int(session.execute(statement).scalar_one())

    def _sweep(self, session: Session) -> None:
        """Delete the traces that are older than a day, now and then."""
        if self._swept is not None and time.monotonic() - self._swept < _SWEEP_SECONDS:
            return
        c = self._table.c
        session.execute(
            delete(self._table).where(
                c.cluster_id == self._sql.cluster_id, c.deleted == 1, c.updated_ms < self._sql.now - _DAY_MS
            )
        )
        self._swept = time.monotonic()


def _meets(row: Any, expect: int | None) -> bool:
    if expect is None:
        return True
    living = row is not None and not row.deleted
    return bool(living and row.revision == expect) if expect else not living


def _read(row: Any) -> Doc:
    return Doc(
        kind=row.kind,
        id=row.name,
        body=json.loads(row.body),
        revision=row.revision,
        updated=row.updated_ms,
        deleted=bool(row.deleted),
    )


def _read_living(row: Any) -> Doc | None:
    return None if row is None or row.deleted else _read(row)
