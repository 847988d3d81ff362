"""Making and upgrading the tables of the SQL store, by many processes at once.

Looks first and asks for nothing that is there. Owns the rule on versions: tables of a newer version
are used as they are, unless they say that this version of the code no longer may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Dialect, select, text, update
from sqlalchemy.exc import DBAPIError

from ..errors import StoreError
from .schema import SCHEMA_VERSION, STEPS, Step, Tables, block, statements
from .sql_faults import Fault
from .sql_gateway import Gateway, Session

__all__ = ["Creation", "undoubled", "versions"]

#: More than one only where others fell in each other's way over half of the tables.
_TRIES = 3
#: What a step of MySQL meets when another process, or a try that broke off, was there before.
_THERE_ALREADY = {1050, 1060, 1061, 1062, 1091}


class Creation:
    """The tables of one store.

    :param steps: the upgrades that this code knows, for the tables at ``version``.
    """

    def __init__(
        self, gate: Gateway, tables: Tables, *, steps: Sequence[Step] = STEPS, version: int = SCHEMA_VERSION
    ) -> None:
        self._gate = gate
        self._tables = tables
        self._steps = steps
        self._version = version
        self._prefix = tables.meta.name.removesuffix("meta")

    def ddl(self) -> str:
        """Return the statements as text."""
        made = "".join(f"{statement};\n\n" for statement in self._statements())
        return undoubled(made, self._gate.engine.dialect)

    def _statements(self) -> list[str]:
        return statements(self._tables, self._gate.engine.dialect)

    def create(self) -> None:
        """Make what is missing and upgrade what is old.

        :raises StoreError: if that is not allowed, or the tables need a newer version of the code.
        """

        def work(session: Session) -> None:
            found = versions(session, self._tables)
            for _ in range(_TRIES):
                if found:
                    break
                self._make(session)
                found = versions(session, self._tables)
            if not found:
                raise StoreError(
                    f"create: the tables in {self._gate.target.describe()} cannot be made: something else has "
                    f"one of their names. Choose another table prefix than {self._prefix!r}."
                )
            if found.get("min_reader_version", 1) > self._version:
                raise StoreError(
                    f"create: the tables in {self._gate.target.describe()} are of version "
                    f"{found.get('schema_version')} and need a newer Flask-SingleJob: upgrade it here too."
                )
            for step in self._steps:
                if step.to > found.get("schema_version", 1):
                    self._upgrade(session, step)

        try:
            self._gate.call("create", work)
        except StoreError as error:
            if _denied(error.__cause__, self._gate.kind):
                raise StoreError(
                    f"{error} (the user may not make the tables: let an administrator run the statements "
                    f"that 'flask singlejob init-db --sql' prints)"
                ) from error.__cause__
            raise

    def _make(self, session: Session) -> None:
        if self._gate.kind == "postgresql":
            session.connection.exec_driver_sql(block(self._tables, self._gate.engine.dialect))
            return
        made = self._statements()
        if self._gate.kind == "sqlite":
            with session.transaction():
                for statement in made:
                    session.connection.exec_driver_sql(statement)
            return
        for statement in made:
            session.connection.exec_driver_sql(statement)

    def _upgrade(self, session: Session, step: Step) -> None:
        """Go one version up; whoever comes second finds nothing to do."""
        meta = self._tables.meta
        raise_version = (
            update(meta)
            .where(meta.c.id == "schema_version", meta.c.value == step.to - 1)
            .values(value=step.to)
        )
        set_reader = update(meta).where(meta.c.id == "min_reader_version").values(value=step.min_reader)
        if self._gate.kind == "mysql":
            # Each of these commits by itself, so the version is raised when all are there.
            for statement in step.sql(self._tables, self._gate.kind):
                try:
                    session.connection.exec_driver_sql(statement)
                except DBAPIError as error:
                    if error.orig is None or error.orig.args[0] not in _THERE_ALREADY:
                        raise
            if session.execute(raise_version).rowcount == 1:
                session.execute(set_reader)
            return
        with session.transaction():
            # First: it locks the row, so that others wait here and then find it raised.
            if session.execute(raise_version).rowcount == 1:
                for statement in step.sql(self._tables, self._gate.kind):
                    session.connection.exec_driver_sql(statement)
                session.execute(set_reader)


def versions(session: Session, tables: Tables) -> dict[str, int]:
    """Return ``schema_version`` and ``min_reader_version``; nothing when there are no tables."""
    meta = tables.meta
    if session.connection.dialect.name == "postgresql":
        dialect = session.connection.dialect
        name = undoubled(dialect.identifier_preparer.format_table(meta), dialect)
        # A SELECT from a missing table would leave an error in the server's log.
        if session.execute(text("SELECT to_regclass(:name)"), {"name": name}).scalar() is None:
            return {}
    statement = select(meta.c.name, meta.c.value).where(
        meta.c.id.in_(("schema_version", "min_reader_version"))
    )
    try:
        found: dict[str, int] = {row.name: row.value for row in session.execute(statement)}
    except DBAPIError as error:
        if session.fault(error) is not Fault.MISSING:
            raise
        return {}
    return found or {}


def undoubled(written: str, dialect: Dialect) -> str:
    """Return what SQLAlchemy wrote for a driver, whose parameters are ``%s``, as the database is to read it."""
    return written.replace("%%", "%") if dialect.paramstyle in ("format", "pyformat") else written


def _denied(error: Any, kind: str) -> bool:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if kind == "postgresql":
        return state == "42501"
    if kind == "sqlite":
        return "readonly database" in str(error) or "unable to open" in str(error)
    return bool(getattr(error, "args", None)) and error.args[0] in (1044, 1142, 1143)
