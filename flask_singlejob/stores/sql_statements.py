"""The statements of the SQL store in three dialects, and how their rows are read.

Owns how a dialect tells the time: each statement reads the server's clock itself. Executes nothing.
Assignments stand in an order that is also right where they see each other's results (MySQL).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    String,
    Update,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.sql.dml import Insert

from ..records import ClaimKey, ClaimRequest, ClaimRow, Run
from .base import ANSWER_SECONDS
from .schema import Tables, digest

__all__ = ["Statements", "body_text", "claimed_row", "read_row"]

_NOW = {
    "postgresql": "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)",
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)",
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
}
#: True while a statement's caller still waits for it: one that lay in a lock's queue for longer must
#: not be carried out. (MySQL is told to give up by its lock timeouts, SQLite by its busy timeout.)
_IN_TIME = f"clock_timestamp() < statement_timestamp() + INTERVAL '{ANSWER_SECONDS:g} seconds'"


#: What a claimed row holds that the claim's request does not tell.
UNKNOWN_TO_CLAIMER = (
    "resolved_ms",
    "token",
    "since_ms",
    "expires_ms",
    "hold_until_ms",
    "rerun_tick_ms",
    "rerun_attempt",
    "streak",
    "last_run",
    "last_success_ms",
)


def body_text(body: Mapping[str, Any]) -> str:
    """Return a body as JSON in ASCII, which passes any server's encoding."""
    return json.dumps(dict(body), separators=(",", ":"))


def claimed_row(key: ClaimKey, request: ClaimRequest, row: Any) -> ClaimRow:
    """Return the row that a claim took: what the request put there, and what it could not know."""
    return ClaimRow(
        key=key,
        resolved=row.resolved_ms,
        token=row.token,
        holder=request.holder,
        held_tick=row.since_ms if request.tick is None else request.tick,
        since=row.since_ms,
        expires=row.expires_ms,
        hold_until=row.hold_until_ms,
        rerun_tick=row.rerun_tick_ms,
        rerun_attempt=row.rerun_attempt,
        streak=row.streak,
        info=request.info,
        progress=None,
        last_run=None if row.last_run is None else json.loads(row.last_run),
        last_success=row.last_success_ms,
    )


def _number(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=BigInteger)


def _text(name: str) -> ColumnElement[str]:
    return bindparam(name, type_=String)


def read_row(row: Any) -> ClaimRow:
    """Return a row of the claims table."""
    return ClaimRow(
        key=ClaimKey(kind=row.kind, name=row.name, host=row.host, slot=row.slot),
        resolved=row.resolved_ms,
        token=row.token,
        holder=row.holder,
        held_tick=row.held_tick_ms,
        since=row.since_ms,
        expires=row.expires_ms,
        hold_until=row.hold_until_ms,
        rerun_tick=row.rerun_tick_ms,
        rerun_attempt=row.rerun_attempt,
        streak=row.streak,
        info=json.loads(row.info),
        progress=None if row.progress is None else json.loads(row.progress),
        last_run=None if row.last_run is None else json.loads(row.last_run),
        last_success=row.last_success_ms,
    )


class Statements:
    """The statements over one set of tables for one kind of database.

    :ivar now: the server's clock at the moment of evaluation, UTC milliseconds.
    :ivar at: the same for all places of one statement.
    :ivar returning: True when an UPDATE can answer with the row it changed.
    """

    def __init__(self, tables: Tables, kind: str, *, cluster: str, returning: bool) -> None:
        self.tables = tables
        self.kind = kind
        self.cluster = cluster
        self.cluster_id = digest(cluster)
        self.returning = returning
        self.now: ColumnElement[int] = literal_column(_NOW[kind], BigInteger)
        self.at: ColumnElement[int] = self.now
        self.in_time: ColumnElement[bool] = true()
        if kind == "postgresql":
            # clock_timestamp() moves within a statement; a subquery reads it once.
            self.at = select(self.now.label("now_ms")).subquery("clock").c.now_ms
            self.in_time = literal_column(_IN_TIME, Boolean)
        # The others' are not imported: with their drivers they cost a command a tenth of a second.
        self._dialect = importlib.import_module(f"sqlalchemy.dialects.{kind}")
        #: The primary key of a claimable row.
        self.row_id: Callable[[ClaimKey], str] = lru_cache(maxsize=8192)(
            partial(ClaimKey.digest, cluster=cluster)
        )

    def later_of(self, a: Any, b: Any) -> ColumnElement[int]:
        """Return the greater of two numbers."""
        result: ColumnElement[int] = func.max(a, b) if self.kind == "sqlite" else func.greatest(a, b)
        return result

    def insert_ignore(self, statement: Insert) -> Insert:
        """Return an insert that does nothing where the key exists."""
        if self.kind == "mysql":
            return statement.prefix_with("IGNORE")
        own: Any = statement
        ignoring: Insert = own.on_conflict_do_nothing(index_elements=["id"])
        return ignoring

    def insert_into(self, table: Any) -> Any:
        """Return the dialect's own insert."""
        return self._dialect.insert(table)

    def upsert(self, table: Any, values: Mapping[str, Any], changes: Iterable[str]) -> Any:
        """Return an insert that changes the named columns where the key exists."""
        statement = self.insert_into(table).values(**values)
        if self.kind == "mysql":
            return statement.on_duplicate_key_update({name: statement.inserted[name] for name in changes})
        return statement.on_conflict_do_update(
            index_elements=["id"], set_={name: statement.excluded[name] for name in changes}
        )

    # -- claims -------------------------------------------------------------------------------

    def new_rows(self, keys: Iterable[ClaimKey]) -> Insert:
        """Make the rows of the keys, all jobs or none of them, where they are missing."""
        keys = list(keys)
        claims = self.tables.claims
        initial: Any = self.now if keys[0].kind == "job" else 0
        return self.insert_ignore(
            self.insert_into(claims).values(
                [
                    {
                        "id": self.row_id(key),
                        "cluster_id": self.cluster_id,
                        "cluster": self.cluster,
                        "kind": key.kind,
                        "name": key.name,
                        "host": key.host,
                        "slot": key.slot,
                        "resolved_ms": initial,
                        "token": 0,
                        "hold_until_ms": 0,
                        "rerun_attempt": 0,
                        "info": "{}",
                    }
                    for key in keys
                ]
            )
        )

    def claim(self, *, mode: str, seen: bool, hold: bool, slot: bool) -> Any:
        """Return the one UPDATE that takes a row, or with a slot the one that settles its tick.

        :param mode: ``tick``, ``rerun`` or ``hand``.
        """
        claims = self.tables.claims
        c = claims.c
        conditions = [c.id == _text("p_id"), c.holder.is_(None), c.hold_until_ms <= self.at, self.in_time]
        values: list[tuple[Any, Any]] = [(c.token, self.later_of(c.token + 1, self.at))]
        if seen:
            conditions.append(c.resolved_ms == _number("p_seen"))
        if mode == "tick":
            conditions += [
                _number("p_tick") <= self.at,
                c.resolved_ms < _number("p_tick"),
                c.rerun_tick_ms.is_(None),
            ]
            values += [(c.resolved_ms, _number("p_tick")), (c.rerun_attempt, 0), (c.streak, None)]
        elif mode == "rerun":
            conditions.append(c.rerun_tick_ms == _number("p_tick"))
            values += [(c.rerun_tick_ms, None), (c.streak, None)]
        if hold:
            values.append((c.hold_until_ms, self.at + _number("p_hold")))
        if not slot:
            values += self._taking(self.at if mode == "hand" else _number("p_tick"))
        return self._answering(update(claims).where(*conditions).ordered_values(*values))

    def take_slot(self, *, by_hand: bool) -> Any:
        """Return the UPDATE that puts a claim into a slot's row, under the token of its own row."""
        claims = self.tables.claims
        c = claims.c
        return self._answering(
            update(claims)
            .where(c.id == _text("p_id"), c.holder.is_(None), c.token < _number("p_token"), self.in_time)
            # SQLAlchemy 2.0.0 looks for the clock's subquery in the conditions only.
            .where(self.at > literal_column("0"))
            .ordered_values(
                (c.token, _number("p_token")), *self._taking(self.at if by_hand else _number("p_tick"))
            )
        )

    def _taking(self, tick: Any) -> list[tuple[Any, Any]]:
        c = self.tables.claims.c
        return [
            (c.holder, _text("p_holder")),
            (c.held_tick_ms, tick),
            (c.since_ms, self.at),
            (c.expires_ms, self.at + _number("p_lease")),
            (c.info, _text("p_info")),
            (c.progress, None),
        ]

    def _answering(self, statement: Update) -> Any:
        if not self.returning:
            return statement
        c = self.tables.claims.c
        return statement.returning(*(c[name] for name in UNKNOWN_TO_CLAIMER), self.now.label("store_now"))

    def look(self, row_id: str) -> Any:
        """Return the SELECT of one row with the server's clock."""
        claims = self.tables.claims
        return select(claims, self.now.label("store_now")).where(claims.c.id == row_id)

    def poll(self) -> Any:
        """Return the SELECT of the clock, the revision and the held rows."""
        claims, meta = self.tables.claims, self.tables.meta
        revision = select(meta.c.value).where(meta.c.id == self.revision_id).scalar_subquery()
        # One row at least, which tells the time when nothing is held.
        one = select(literal(1).label("one")).subquery("one")
        # SQLite would not see from IS NOT NULL, in a join's condition, that its index of held rows serves.
        held = (claims.c.cluster_id == self.cluster_id) & (claims.c.holder > literal_column("''"))
        replica: Any = literal_column("pg_is_in_recovery()" if self.kind == "postgresql" else "0")
        return select(
            self.now.label("store_now"), revision.label("revision"), replica.label("replica"), claims
        ).select_from(one.outerjoin(claims, held))

    def rows_by_id(self, count: int) -> Any:
        """Return the SELECT of the rows ``p_id_0`` and on, so many."""
        claims = self.tables.claims
        return select(claims).where(claims.c.id.in_([_text(f"p_id_{n}") for n in range(count)]))

    def look_by_id(self) -> Any:
        """Return :meth:`look` for the row ``p_id``."""
        return self.look(_text("p_id"))  # type: ignore[arg-type]

    def _held(self) -> list[ColumnElement[bool]]:
        return self.held_by(_text("p_id"), _text("p_holder"), _number("p_token"))  # type: ignore[arg-type]

    def renew(self, *, progress: bool) -> Any:
        """Return the UPDATE that moves a held row's end by ``p_lease``, answering with what is left."""
        c = self.tables.claims.c
        values: dict[str, Any] = {"expires_ms": self.later_of(c.expires_ms, self.now + _number("p_lease"))}
        if progress:
            values["progress"] = _text("p_progress")
        change = update(self.tables.claims).where(*self._held(), c.expires_ms > self.now).values(values)
        return change.returning(c.expires_ms - self.now) if self.returning else change

    def time_left(self) -> Any:
        """Return the SELECT of how long a held row is good for."""
        c = self.tables.claims.c
        return select(c.expires_ms - self.now).where(*self._held())

    def _about(self, names: frozenset[str]) -> list[tuple[Any, Any]]:
        c = self.tables.claims.c
        given: dict[str, Any] = {
            "last_run": _text("p_last_run"),
            "last_success_ms": self.now,
            "resolved_ms": self.now,
        }
        return [(c[name], given[name]) for name in sorted(names)]

    def tell_about(self, names: frozenset[str]) -> Any:
        """Return the UPDATE of what the key's own row keeps of a run that a slot's row held."""
        claims = self.tables.claims
        return update(claims).where(claims.c.id == _text("p_own")).ordered_values(*self._about(names))

    def release(self, names: frozenset[str]) -> Any:
        """Return the UPDATE that frees a row held by ``p_holder`` under ``p_token`` and not expired."""
        claims = self.tables.claims
        return (
            update(claims)
            .where(*self._held(), claims.c.expires_ms > self.now)
            .ordered_values(*self._about(names), (claims.c.op, _text("p_op")), *self.freeing())
        )

    def raise_resolved(self, *, streak: bool) -> Any:
        """Return the UPDATE that settles up to ``p_resolved`` where ``p_seen`` is settled still."""
        claims = self.tables.claims
        c = claims.c
        values: list[tuple[Any, Any]] = [(c.resolved_ms, self.later_of(c.resolved_ms, _number("p_resolved")))]
        if streak:
            values.append((c.streak, _text("p_streak")))
        return (
            update(claims)
            .where(c.id == _text("p_own"), c.resolved_ms == _number("p_seen"))
            .ordered_values(*values)
        )

    def write_any_run(self) -> Any:
        """Return the insert of a record from parameters named as its columns, which replaces one of its id."""
        runs = self.tables.runs
        names = ("id", "cluster_id", "cluster", "job_key", "at_ms", "run_id", "job_id", "status", "record")
        values = {name: bindparam(f"p_{name}", type_=runs.c[name].type) for name in names}
        return self.upsert(runs, values, ("job_key", "job_id", "at_ms", "status", "record"))

    def held_by(self, row_id: str, holder: str, token: int) -> list[ColumnElement[bool]]:
        """Return the conditions that a claim still holds a row."""
        c = self.tables.claims.c
        return [c.id == row_id, c.holder == holder, c.token == token]

    def freeing(self) -> list[tuple[Any, Any]]:
        """Return the assignments that free a row."""
        c = self.tables.claims.c
        names = (c.holder, c.held_tick_ms, c.since_ms, c.expires_ms, c.progress)
        return [(column, None) for column in names]

    # -- history ------------------------------------------------------------------------------

    def run_id(self, run_id: str) -> str:
        """Return the primary key of a record."""
        return digest("run", self.cluster, run_id)

    def job_key(self, job_id: str) -> str:
        """Return what tells a job's records from others'."""
        return digest(self.cluster, job_id)

    def record(self, run: Run) -> dict[str, Any]:
        """Return the columns of a record."""
        return {
            "id": self.run_id(run.id),
            "cluster_id": self.cluster_id,
            "cluster": self.cluster,
            "job_key": self.job_key(run.job_id),
            "at_ms": run.at_ms,
            "run_id": run.id,
            "job_id": run.job_id,
            "status": run.status.value,
            "record": body_text(run.to_record()),
        }

    def write_run(self, run: Run, *, replace: bool = True) -> Any:
        """Return the insert of a record, which replaces one of the same id or leaves it."""
        values = self.record(run)
        if replace:
            return self.upsert(self.tables.runs, values, ("job_key", "job_id", "at_ms", "status", "record"))
        return self.insert_ignore(self.insert_into(self.tables.runs).values(**values))

    # -- documents ----------------------------------------------------------------------------

    def document_id(self, kind: str, name: str) -> str:
        """Return the primary key of a document."""
        return digest("document", self.cluster, kind, name)

    def documents(self, kinds: int, *, since: bool) -> Any:
        """Return the SELECT of the documents of the kinds ``p_kind_0`` and on.

        :param since: those of a greater revision than ``p_since``, incl. traces; else the living ones.
        """
        c = self.tables.documents.c
        wanted = c.revision > _number("p_since") if since else c.deleted == 0
        return select(self.tables.documents).where(
            c.cluster_id == self.cluster_id, c.kind.in_([_text(f"p_kind_{n}") for n in range(kinds)]), wanted
        )

    # -- meta ---------------------------------------------------------------------------------

    @property
    def revision_id(self) -> str:
        """The primary key of the cluster's revision."""
        return digest("revision", self.cluster)

    def new_revision_row(self) -> Insert:
        """Make the cluster's revision where it is missing."""
        return self.insert_ignore(
            self.insert_into(self.tables.meta).values(
                id=self.revision_id, name="revision", cluster=self.cluster, value=0
            )
        )

    def raise_revision(self) -> Update:
        """Raise the revision, never below the clock: it grows even when the tables were emptied."""
        meta = self.tables.meta
        return (
            update(meta)
            .where(meta.c.id == self.revision_id)
            .values(value=self.later_of(meta.c.value + 1, self.now))
        )
