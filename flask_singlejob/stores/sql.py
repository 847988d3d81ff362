"""A store in SQLite, PostgreSQL, MySQL or MariaDB: a claim is one conditional UPDATE.

It promises what its database promises: a failover to an asynchronous replica may take back the last
claims, and an SQLite file serves the processes of one host. The statements are in
``sql_statements.py``, connections and second tries in ``sql_gateway.py``, the tables in ``schema.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from sqlalchemy import URL, Engine, literal, select, update
from sqlalchemy.exc import DBAPIError

from ..errors import ConfigError
from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Doc, Poll, Run, RunStatus, new_id
from . import schema as schema_module
from .base import Store
from .sql_create import Creation
from .sql_documents import Documents
from .sql_faults import Fault
from .sql_gateway import Gateway, Session
from .sql_history import History
from .sql_statements import Statements, body_text, read_row
from .sql_target import resolve

__all__ = ["SqlStore"]

_CHUNK = 200
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
        if fault is Fault.READ_ONLY:
            return " (it takes no writes: a replica?)"
        return ""

    # -- claims -------------------------------------------------------------------------------

    def poll(self) -> Poll:
        claims, meta = self._tables.claims, self._tables.meta
        revision = select(meta.c.value).where(meta.c.id == self._sql.revision_id).scalar_subquery()
        # One row at least, which tells the time when nothing is held.
        one = select(literal(1).label("one")).subquery("one")
        held = (claims.c.cluster_id == self._sql.cluster_id) & claims.c.holder.is_not(None)
        statement = select(self._sql.now.label("store_now"), revision.label("revision"), claims).select_from(
            one.outerjoin(claims, held)
        )
        rows = self._gate.call("poll", lambda session: session.execute(statement).all())
        return Poll(
            now=max(row.store_now for row in rows),
            revision=rows[0].revision or 0,
            held=tuple(read_row(row) for row in rows if row.id is not None),
        )

    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        wanted = list(dict.fromkeys(keys))

        def work(session: Session) -> dict[ClaimKey, ClaimRow]:
            found = self._read(session, wanted)
            missing = [key for key in wanted if key not in found]
            if missing:
                self._make(session, missing)
                found |= self._read(session, missing)
            return {key: found[key] for key in wanted}

        return self._gate.call("ensure", work)

    def rows(self, keys: Iterable[ClaimKey] | None = None, *, kind: str | None = None) -> list[ClaimRow]:
        if keys is not None:
            wanted = [key for key in dict.fromkeys(keys) if kind is None or key.kind == kind]
            found = self._gate.call("rows", lambda session: self._read(session, wanted))
            return list(found.values())
        claims = self._tables.claims
        statement = select(claims).where(claims.c.cluster_id == self._sql.cluster_id)
        if kind is not None:
            statement = statement.where(claims.c.kind == kind)
        return self._gate.call("rows", lambda session: [read_row(row) for row in session.execute(statement)])

    def _read(self, session: Session, keys: Sequence[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        claims = self._tables.claims
        by_id = {self._sql.row_id(key): key for key in keys}
        ids = list(by_id)
        found: dict[ClaimKey, ClaimRow] = {}
        for start in range(0, len(ids), _CHUNK):
            statement = select(claims).where(claims.c.id.in_(ids[start : start + _CHUNK]))
            for row in session.execute(statement):
                found[by_id[row.id]] = read_row(row)
        return found

    def _make(self, session: Session, keys: Iterable[ClaimKey]) -> None:
        jobs = [key for key in keys if key.kind == "job"]
        others = [key for key in keys if key.kind != "job"]
        # The same order in every process, so that no two of them wait for each other in a circle.
        for group in (jobs, others):
            group.sort(key=self._sql.row_id)
            for start in range(0, len(group), 50):
                session.execute(self._sql.new_rows(group[start : start + 50]))

    def claim(self, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
        take = self._take_slot if request.slot else self._take
        place = key.with_slot(request.slot) if request.slot else key

        def work(session: Session) -> ClaimOutcome:
            if session.again:
                outcome = self._look(session, place)
                if outcome is not None and outcome.row.holder == request.holder:
                    return ClaimOutcome(True, outcome.row, outcome.now)
            for _ in range(2):
                try:
                    outcome = take(session, key, place, request)
                except DBAPIError as error:
                    if session.fault(error) is not Fault.CONFLICT:
                        raise
                    outcome = self._look(session, key)
                if outcome is not None:
                    return outcome
                self._make(session, dict.fromkeys((key, place)))
            raise RuntimeError(f"the row of {key} cannot be made")

        return self._gate.call("claim", work)

    def _take(
        self, session: Session, key: ClaimKey, place: ClaimKey, request: ClaimRequest
    ) -> ClaimOutcome | None:
        """Return what came of the UPDATE, or None when there is no row yet."""
        result = session.execute(self._claim_statement(request), self._claim_values(key, request))
        if self._sql.returning:
            row = result.first()
            if row is not None:
                return ClaimOutcome(True, read_row(row), row.store_now)
        outcome = self._look(session, key)
        if outcome is not None and outcome.row.holder == request.holder:
            return ClaimOutcome(True, outcome.row, outcome.now)
        return outcome

    def _take_slot(
        self, session: Session, key: ClaimKey, place: ClaimKey, request: ClaimRequest
    ) -> ClaimOutcome | None:
        """Settle in the key's own row and hold in the slot's, in this order and in one transaction."""
        with session.transaction() as transaction:
            result = session.execute(self._claim_statement(request), self._claim_values(key, request))
            own = result.first() if self._sql.returning else None
            if own is None and not self._sql.returning and result.rowcount == 1:
                own = session.execute(self._sql.look(self._sql.row_id(key))).first()
            taken = None
            if own is not None:
                values = self._claim_values(place, request) | {"p_token": own.token}
                result = session.execute(self._sql.take_slot(by_hand=request.tick is None), values)
                taken = result.first() if self._sql.returning else None
                if taken is None and not self._sql.returning and result.rowcount == 1:
                    taken = session.execute(self._sql.look(self._sql.row_id(place))).first()
            if taken is None:
                transaction.undo()
        if taken is not None:
            return ClaimOutcome(True, read_row(taken), taken.store_now)
        outcome = self._look(session, key)
        return None if self._look(session, place) is None else outcome

    def _claim_statement(self, request: ClaimRequest) -> Any:
        mode = "hand" if request.tick is None else "rerun" if request.rerun else "tick"
        return self._sql.claim(
            mode=mode,
            seen=request.seen_resolved is not None,
            hold=bool(request.hold_ms),
            slot=bool(request.slot),
        )

    def _claim_values(self, key: ClaimKey, request: ClaimRequest) -> dict[str, Any]:
        return {
            "p_id": self._sql.row_id(key),
            "p_seen": request.seen_resolved,
            "p_tick": request.tick,
            "p_hold": request.hold_ms,
            "p_holder": request.holder,
            "p_lease": request.lease_ms,
            "p_info": body_text(request.info),
        }

    def _look(self, session: Session, key: ClaimKey) -> ClaimOutcome | None:
        row = session.execute(self._sql.look(self._sql.row_id(key))).first()
        return None if row is None else ClaimOutcome(False, read_row(row), row.store_now)

    def _was_done(self, session: Session, key: ClaimKey, op: str) -> bool:
        """Tell whether a write whose answer was lost was carried out."""
        claims = self._tables.claims
        statement = select(claims.c.op).where(claims.c.id == self._sql.row_id(key))
        return session.again and session.execute(statement).scalar() == op

    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        claims = self._tables.claims
        held = self._sql.held_by(self._sql.row_id(key), holder, token)
        values: dict[str, Any] = {
            "expires_ms": self._sql.later_of(claims.c.expires_ms, self._sql.now + lease_ms)
        }
        if progress is not None:
            values["progress"] = body_text(progress)
        remaining = claims.c.expires_ms - self._sql.now
        change: Any = update(claims).where(*held, claims.c.expires_ms > self._sql.now).values(values)

        def work(session: Session) -> int | None:
            if self._sql.returning:
                return session.execute(change.returning(remaining)).scalar()
            if session.execute(change).rowcount != 1:
                return None
            return session.execute(select(remaining).where(*held)).scalar()

        left = self._gate.call("renew", work)
        return left if left is not None and left > 0 else None

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
        claims, now, op = self._tables.claims, self._sql.now, new_id()
        own = key.with_slot(0)
        about: dict[str, Any] = {}
        if run is not None:
            about["last_run"] = body_text(run.to_record())
            if run.status is RunStatus.SUCCEEDED:
                about["last_success_ms"] = now
        if done:
            about["resolved_ms"] = now
        raised = (
            update(claims)
            .where(claims.c.id == self._sql.row_id(own), claims.c.resolved_ms == seen_resolved)
            .values(
                resolved_ms=self._sql.later_of(claims.c.resolved_ms, literal(resolved or 0)),
                streak=claims.c.streak if skipped is None else skipped.id,
            )
        )

        def end(session: Session) -> bool:
            conditions = (*self._sql.held_by(self._sql.row_id(key), holder, token), claims.c.expires_ms > now)
            return self._free(session, key, conditions, {"op": op}, about)

        def work(session: Session) -> bool:
            if self._was_done(session, key, op):
                return True
            if run is None and resolved is None and (not key.slot or not about):
                return end(session)
            with session.transaction() as transaction:
                if not end(session):
                    transaction.undo()
                    return False
                if run is not None:
                    session.execute(self._sql.write_run(run))
                if (
                    resolved is not None
                    and seen_resolved is not None
                    and session.execute(raised).rowcount == 1
                    and skipped is not None
                ):
                    session.execute(self._sql.write_run(skipped))
            return True

        return self._gate.call("release", work)

    def _free(
        self,
        session: Session,
        key: ClaimKey,
        conditions: Iterable[Any],
        place: dict[str, Any],
        own: dict[str, Any],
    ) -> bool:
        """Free a row where the conditions hold, and change the key's own row with it.

        A slot's own row comes first: in the order in which a claim takes the two.
        """
        claims = self._tables.claims
        c = claims.c
        own_id = self._sql.row_id(key.with_slot(0))
        if key.slot and own:
            session.execute(update(claims).where(c.id == own_id).values(own))
        changes = place if key.slot else {**own, **place}
        # What is computed from other columns stands first: MySQL computes from what is assigned already.
        assigned = [(c[name], value) for name, value in changes.items()] + self._sql.freeing()
        return session.execute(update(claims).where(*conditions).ordered_values(*assigned)).rowcount == 1

    def settle(self, key: ClaimKey, seen_resolved: int, resolved: int, record: Run | None = None) -> bool:
        claims, op = self._tables.claims, new_id()
        change = (
            update(claims)
            .where(
                claims.c.id == self._sql.row_id(key),
                claims.c.holder.is_(None),
                claims.c.resolved_ms == seen_resolved,
                self._sql.in_time,
            )
            .values(resolved_ms=resolved, streak=None if record is None else record.id, op=op)
        )

        def work(session: Session) -> bool:
            if self._was_done(session, key, op):
                return True
            if record is None:
                return session.execute(change).rowcount == 1
            with session.transaction() as transaction:
                if session.execute(change).rowcount != 1:
                    transaction.undo()
                    return False
                session.execute(self._sql.write_run(record))
            return True

        return self._gate.call("settle", work)

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
        claims, now, op = self._tables.claims, self._sql.now, new_id()
        c = claims.c

        def work(session: Session) -> bool:
            if self._was_done(session, key, op):
                return True
            seen = self._look(session, key)
            if seen is None or seen.row.holder != holder or seen.row.token != token:
                return False
            conditions = [*self._sql.held_by(self._sql.row_id(key), holder, token), self._sql.in_time]
            if not forced:
                conditions.append(c.expires_ms <= now)
            # Of both rows: the next claim's token has to be greater than this one.
            higher = self._sql.later_of(c.token + 1, now)
            own: dict[str, Any] = {"token": higher}
            if lost is not None:
                own["last_run"] = body_text(lost.to_record())
            if rerun:
                own["rerun_tick_ms"] = seen.row.held_tick
                own["rerun_attempt"] = int(seen.row.info.get("attempt", 1))
            with session.transaction() as transaction:
                if not self._free(session, key, conditions, {"token": higher, "op": op}, own):
                    transaction.undo()
                    return False
                if lost is not None:
                    session.execute(self._sql.write_run(lost, replace=False))
            return True

        return self._gate.call("expire", work)

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
        return self._documents.docs(kind, since=since)

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
