"""The tables of the SQL store, their DDL as text, and the steps that upgrade older ones.

Owns names, types and indexes, and no connection. Keys are digests, so that neither collation, case,
trailing spaces nor length decide what is equal; the readable columns beside them are for people.
All times are UTC milliseconds since 1970 and their columns end in ``_ms``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Index, MetaData, SmallInteger, String, Table, Text, insert
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, SetTableComment
from sqlalchemy.types import TypeEngine

__all__ = ["SCHEMA_VERSION", "STEPS", "Step", "Tables", "block", "digest", "statements"]

#: What :func:`statements` makes.
SCHEMA_VERSION = 1

_COMMENT = "Flask-SingleJob. Columns ending in _ms are UTC milliseconds since 1970-01-01."


@dataclass(frozen=True)
class Step:
    """One upgrade of the tables.

    :param to: the version after it.
    :param sql: gives the statements for a dialect's name. On MySQL each commits by itself and must bear
        being run again.
    :param min_reader: the oldest version of the code that still works with the tables after it.
    """

    to: int
    sql: Callable[[Tables, str], list[str]]
    min_reader: int = 1


#: In order; the first leads from version 1 to 2.
STEPS: tuple[Step, ...] = ()


def digest(*parts: str | int) -> str:
    """Return 32 hex digits that name the parts, safe in any collation."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _ascii(length: int) -> TypeEngine[str]:
    return (
        String(length)
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
    )


def _body() -> TypeEngine[str]:
    return Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class Tables:
    """The four tables under one prefix and schema."""

    def __init__(self, *, prefix: str, schema: str | None) -> None:
        self.metadata = MetaData(schema=schema)
        self.claims = self._table(
            f"{prefix}claims",
            Column("id", _ascii(32), primary_key=True),
            Column("cluster_id", _ascii(32), nullable=False),
            Column("cluster", String(255), nullable=False),
            Column("kind", String(64), nullable=False),
            Column("name", String(255), nullable=False),
            Column("host", String(255), nullable=False),
            Column("slot", BigInteger, nullable=False),
            Column("resolved_ms", BigInteger, nullable=False),
            Column("token", BigInteger, nullable=False),
            Column("holder", _ascii(64)),
            Column("held_tick_ms", BigInteger),
            Column("since_ms", BigInteger),
            Column("expires_ms", BigInteger),
            Column("hold_until_ms", BigInteger, nullable=False),
            Column("rerun_tick_ms", BigInteger),
            Column("rerun_attempt", BigInteger, nullable=False),
            Column("streak", String(255)),
            Column("info", _body(), nullable=False),
            Column("progress", _body()),
            Column("last_run", _body()),
            Column("last_success_ms", BigInteger),
            # The last release, settling or ending: tells after a broken connection whether it was done.
            Column("op", _ascii(32)),
        )
        held = self.claims.c.holder.is_not(None)
        Index(
            f"{prefix}claims_held",
            self.claims.c.cluster_id,
            self.claims.c.holder,
            postgresql_where=held,
            sqlite_where=held,
        )
        Index(f"{prefix}claims_kind", self.claims.c.cluster_id, self.claims.c.kind)
        self.runs = self._table(
            f"{prefix}runs",
            Column("id", _ascii(32), primary_key=True),
            Column("cluster_id", _ascii(32), nullable=False),
            Column("job_key", _ascii(32), nullable=False),
            Column("at_ms", BigInteger, nullable=False),
            Column("run_id", _ascii(64), nullable=False),
            Column("cluster", String(255), nullable=False),
            Column("job_id", String(255), nullable=False),
            Column("status", _ascii(16), nullable=False),
            Column("record", _body(), nullable=False),
        )
        runs = self.runs.c
        Index(f"{prefix}runs_time", runs.cluster_id, runs.at_ms, runs.run_id)
        Index(f"{prefix}runs_job", runs.cluster_id, runs.job_key, runs.at_ms, runs.run_id, runs.status)
        Index(f"{prefix}runs_status", runs.cluster_id, runs.status, runs.at_ms, runs.run_id)
        self.documents = self._table(
            f"{prefix}documents",
            Column("id", _ascii(32), primary_key=True),
            Column("cluster_id", _ascii(32), nullable=False),
            Column("cluster", String(255), nullable=False),
            Column("kind", String(64), nullable=False),
            Column("name", String(1000), nullable=False),
            Column("body", _body(), nullable=False),
            Column("revision", BigInteger, nullable=False),
            Column("updated_ms", BigInteger, nullable=False),
            Column("deleted", SmallInteger, nullable=False),
            Column("op", _ascii(32)),
        )
        Index(
            f"{prefix}documents_kind",
            self.documents.c.cluster_id,
            self.documents.c.kind,
            self.documents.c.revision,
        )
        self.meta = self._table(
            f"{prefix}meta",
            Column("id", _ascii(32), primary_key=True),
            Column("name", String(64), nullable=False),
            Column("cluster", String(255), nullable=False),
            Column("value", BigInteger, nullable=False),
        )

    def _table(self, name: str, *columns: Column[Any]) -> Table:
        return Table(
            name,
            self.metadata,
            *columns,
            comment=_COMMENT,
            mysql_engine="InnoDB",
            mysql_charset="utf8mb4",
            mysql_collate="utf8mb4_bin",
        )

    @property
    def all(self) -> tuple[Table, ...]:
        """Every table, ``meta`` last: once it is there, all are."""
        return (self.claims, self.runs, self.documents, self.meta)


@dataclass(frozen=True)
class Piece:
    """Statements that belong together.

    :param relation: the table or index that they make, as written in SQL; None: they only add what is missing.
    """

    relation: str | None
    sql: tuple[str, ...]


def pieces(tables: Tables, dialect: Dialect) -> list[Piece]:
    """Return what makes the tables, in order; no statement minds being run again."""
    found: list[Piece] = []
    preparer = dialect.identifier_preparer
    for table in tables.all:
        made = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)).strip()
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        name = preparer.format_table(table)
        if dialect.name == "mysql":
            # MySQL has no CREATE INDEX IF NOT EXISTS, and each statement commits: one for all is atomic.
            head, _, tail = made.rpartition("\n)")
            for index in indexes:
                columns = ", ".join(preparer.quote(column.name) for column in index.columns)
                head += f",\n\tINDEX {preparer.quote(str(index.name))} ({columns})"
            found.append(Piece(name, (f"{head}\n){tail}",)))
            continue
        comment = (str(SetTableComment(table).compile(dialect=dialect)).strip(),)
        found.append(Piece(name, (made, *(comment if dialect.supports_comments else ()))))
        place = name.rpartition(".")[0]
        for index in indexes:
            made = str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)).strip()
            name = preparer.quote(str(index.name))
            found.append(Piece(f"{place}.{name}" if place else name, (made,)))
    for name, value in (("schema_version", SCHEMA_VERSION), ("min_reader_version", 1)):
        row = insert(tables.meta).values(id=name, name=name, cluster="", value=value)
        if dialect.name == "mysql":
            row = row.prefix_with("IGNORE")
        elif dialect.name == "sqlite":
            row = row.prefix_with("OR IGNORE")
        text = str(row.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        found.append(
            Piece(None, (text + " ON CONFLICT DO NOTHING" if dialect.name == "postgresql" else text,))
        )
    return found


def statements(tables: Tables, dialect: Dialect) -> list[str]:
    """Return the statements of :func:`pieces`."""
    return [statement for piece in pieces(tables, dialect) for statement in piece.sql]


def block(tables: Tables, dialect: Dialect) -> str:
    """Return for PostgreSQL one statement that makes what is missing, all or nothing.

    The losers of a race wait for the winner and then run into what it made, or see it and ask for
    nothing: caught inside, that is no error in the server's log. What is there already is not even
    locked, so the losers cannot wait for each other in a circle.
    """
    body = ""
    for piece in pieces(tables, dialect):
        lines = "".join(f"{statement};\n" for statement in piece.sql)
        if piece.relation is not None:
            name = piece.relation.replace("'", "''")
            lines = f"IF to_regclass('{name}') IS NULL THEN\n{lines}END IF;\n"
        body += lines
    return (
        f"DO $singlejob$ BEGIN\n{body}EXCEPTION WHEN unique_violation OR duplicate_table OR duplicate_object "
        f"OR deadlock_detected THEN NULL;\nEND $singlejob$"
    )
