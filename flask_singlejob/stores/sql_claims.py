"""Claimable rows in the SQL store: taking, renewing, freeing and settling them.

A claim is one conditional UPDATE that commits by itself; what touches two rows or a row and a record
is one short transaction. A row says which write was its last, so a lost answer can be looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError

from ..errors import StoreError
from ..records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, Poll, Run, RunStatus, new_id
from .sql_faults import Fault
from .sql_gateway import Gateway, Session
from .sql_ready import Ready, ReadyStatements
from .sql_statements import Statements, body_text, claimed_row, read_row

__all__ = ["Claims"]

#: For how many rows the statements that read them are made; more are read in several.
_SIZES = (1, 10, 50, 200)
_PART = 500


class Claims:
    """The verbs of claims over one gateway; see :class:`~flask_singlejob.stores.base.Store` for each."""

    def __init__(self, gate: Gateway, sql: Statements) -> None:
        self._gate = gate
        self._sql = sql
        self._tables = sql.tables
        self._ready = ReadyStatements(lambda: gate.engine.dialect)

    def prepare(self, rows: int | None) -> None:
        """Compile, without a connection, what an owner asks first.

        :param rows: of how many jobs it will read the rows; None: of any number.
        """
        self._polling()
        self._ready.get("look", self._sql.look_by_id)
        for size in _SIZES if rows is None else (_size_for(rows),):
            self._reading(size)

    def _polling(self) -> Ready:
        return self._ready.get("poll", self._sql.poll)

    def poll(self) -> Poll:
        rows = self._gate.call("poll", lambda session: session.run(self._polling(), {}).rows)
        if rows[0].replica:
            # Left alone, the pool would go on reading from a server that never lets a claim through.
            self._gate.close()
            raise StoreError(
                f"poll: the store {self._gate.target.describe()} takes no writes: it is a replica. Point the "
                f"store at the primary."
            )
        return Poll(
            now=max(row.store_now for row in rows),
            revision=rows[0].revision or 0,
            held=tuple(read_row(row) for row in rows if row.id is not None),
        )

    def ensure(self, keys: Iterable[ClaimKey]) -> dict[ClaimKey, ClaimRow]:
        wanted = list(dict.fromkeys(keys))
        rows: dict[ClaimKey, ClaimRow] = {}
        # Each part has the verb's time limit for itself: thousands of new jobs may need longer.
        for start in range(0, len(wanted), _PART):
            part = wanted[start : start + _PART]

            def work(session: Session, part: Sequence[ClaimKey] = part) -> dict[ClaimKey, ClaimRow]:
                found = self._read(session, part)
                missing = [key for key in part if key not in found]
                if missing:
                    self._make(session, missing)
                    found |= self._read(session, missing)
                return {key: found[key] for key in part}

            rows |= self._gate.call("ensure", work)
        return rows

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
        by_id = {self._sql.row_id(key): key for key in keys}
        ids = list(by_id)
        found: dict[ClaimKey, ClaimRow] = {}
        for start in range(0, len(ids), _SIZES[-1]):
            part = ids[start : start + _SIZES[-1]]
            size = _size_for(len(part))
            # One statement per size, compiled already: its free places repeat the first id.
            values = {f"p_id_{n}": part[n] if n < len(part) else part[0] for n in range(size)}
            for row in session.run(self._reading(size), values).rows:
                found[by_id[row.id]] = read_row(row)
        return found

    def _reading(self, size: int) -> Ready:
        return self._ready.get(("rows", size), lambda: self._sql.rows_by_id(size))

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
                    # Nobody took what still can be taken: what was in the way is trouble, not a race that was lost.
                    if outcome is None or self._is_open(session, outcome, place, request):
                        raise
                if outcome is not None:
                    return outcome
                self._make(session, dict.fromkeys((key, place)))
            raise RuntimeError(f"the row of {key} cannot be made")

        return self._gate.call("claim", work)

    def _take(
        self, session: Session, key: ClaimKey, place: ClaimKey, request: ClaimRequest
    ) -> ClaimOutcome | None:
        """Return what came of the UPDATE, or None when there is no row yet."""
        result = session.run(self._claim_statement(request), self._claim_values(key, request))
        if self._sql.returning:
            row = result.row
            if row is not None:
                return ClaimOutcome(True, claimed_row(key, request, row), row.store_now)
        outcome = self._look(session, key)
        if outcome is not None and outcome.row.holder == request.holder:
            return ClaimOutcome(True, outcome.row, outcome.now)
        return outcome

    def _take_slot(
        self, session: Session, key: ClaimKey, place: ClaimKey, request: ClaimRequest
    ) -> ClaimOutcome | None:
        """Settle in the key's own row and hold in the slot's, in this order and in one transaction."""
        with session.transaction() as transaction:
            result = session.run(self._claim_statement(request), self._claim_values(key, request))
            own = result.row if self._sql.returning else None
            if own is None and not self._sql.returning and result.changed == 1:
                own = session.execute(self._sql.look(self._sql.row_id(key))).first()
            taken = None
            if own is not None:
                values = self._claim_values(place, request) | {"p_token": own.token}
                by_hand = request.tick is None
                statement = self._ready.get(("slot", by_hand), lambda: self._sql.take_slot(by_hand=by_hand))
                result = session.run(statement, values)
                taken = result.row if self._sql.returning else None
                if taken is None and not self._sql.returning and result.changed == 1:
                    taken = session.execute(self._sql.look(self._sql.row_id(place))).first()
            if taken is None:
                transaction.undo()
        if taken is not None:
            row = claimed_row(place, request, taken) if self._sql.returning else read_row(taken)
            return ClaimOutcome(True, row, taken.store_now)
        outcome = self._look(session, key)
        return None if self._look(session, place) is None else outcome

    def _claim_statement(self, request: ClaimRequest) -> Ready:
        mode = "hand" if request.tick is None else "rerun" if request.rerun else "tick"
        seen, hold, slot = request.seen_resolved is not None, bool(request.hold_ms), bool(request.slot)
        return self._ready.get(
            ("claim", mode, seen, hold, slot),
            lambda: self._sql.claim(mode=mode, seen=seen, hold=hold, slot=slot),
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
        row = session.run(self._ready.get("look", self._sql.look_by_id), {"p_id": self._sql.row_id(key)}).row
        return None if row is None else ClaimOutcome(False, read_row(row), row.store_now)

    def _is_open(
        self, session: Session, outcome: ClaimOutcome, place: ClaimKey, request: ClaimRequest
    ) -> bool:
        """Tell whether a key's own row, as it was looked at, and its slot's would let a claim through."""
        row = outcome.row
        if row.holder is not None or row.hold_until > outcome.now:
            return False
        if request.seen_resolved not in (None, row.resolved):
            return False
        if request.rerun and row.rerun_tick != request.tick:
            return False
        if request.tick is not None and not request.rerun:
            settled = row.resolved >= request.tick or row.rerun_tick is not None
            if settled or request.tick > outcome.now:
                return False
        if not request.slot:
            return True
        slot = self._look(session, place)
        return slot is None or slot.row.holder is None

    def _was_done(self, session: Session, key: ClaimKey, op: str) -> bool:
        """Tell whether a write whose answer was lost was carried out."""
        if not session.again:
            return False
        claims = self._tables.claims
        statement = select(claims.c.op).where(claims.c.id == self._sql.row_id(key))
        return session.execute(statement).scalar() == op

    def renew(
        self,
        key: ClaimKey,
        holder: str,
        token: int,
        lease_ms: int,
        *,
        progress: Mapping[str, Any] | None = None,
    ) -> int | None:
        told = progress is not None
        values = {"p_id": self._sql.row_id(key), "p_holder": holder, "p_token": token, "p_lease": lease_ms}
        if progress is not None:
            values["p_progress"] = body_text(progress)

        def work(session: Session) -> int | None:
            change = self._ready.get(("renew", told), lambda: self._sql.renew(progress=told))
            if self._sql.returning:
                return _number(session.run(change, values).row)
            if session.run(change, values).changed != 1:
                return None
            return _number(session.run(self._ready.get("left", self._sql.time_left), values).row)

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
        op = new_id()
        own_id = self._sql.row_id(key.with_slot(0))
        about: set[str] = {"resolved_ms"} if done else set()
        if run is not None:
            about |= {"last_run", "last_success_ms"} if run.status is RunStatus.SUCCEEDED else {"last_run"}
        values = {
            "p_id": self._sql.row_id(key),
            "p_own": own_id,
            "p_holder": holder,
            "p_token": token,
            "p_op": op,
            "p_last_run": None if run is None else body_text(run.to_record()),
        }

        def end(session: Session) -> bool:
            # A slot's own row comes first: in the order in which a claim takes the two.
            if key.slot and about:
                changed = frozenset(about)
                session.run(
                    self._ready.get(("about", changed), lambda: self._sql.tell_about(changed)), values
                )
            changes = frozenset() if key.slot else frozenset(about)
            ending = self._ready.get(("release", changes), lambda: self._sql.release(changes))
            return session.run(ending, values).changed == 1

        def raise_resolved(session: Session) -> bool:
            told = skipped is not None
            raised = {
                "p_own": own_id,
                "p_seen": seen_resolved,
                "p_resolved": resolved,
                "p_streak": None if skipped is None else skipped.id,
            }
            statement = self._ready.get(("raise", told), lambda: self._sql.raise_resolved(streak=told))
            return session.run(statement, raised).changed == 1

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
                    self._write_run(session, run)
                if (
                    resolved is not None
                    and seen_resolved is not None
                    and raise_resolved(session)
                    and skipped is not None
                ):
                    self._write_run(session, skipped)
            return True

        return self._gate.call("release", work)

    def _write_run(self, session: Session, run: Run) -> None:
        record = {f"p_{name}": value for name, value in self._sql.record(run).items()}
        session.run(self._ready.get("write_run", self._sql.write_any_run), record)

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
            token = session.execute(select(c.token).where(c.id == own_id)).scalar()
            # One token for both: the clock may have gone on between the two statements.
            place = place if token is None else {**place, "token": token}
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


def _size_for(rows: int) -> int:
    return next((size for size in _SIZES if size >= rows), _SIZES[-1])


def _number(row: Any) -> int | None:
    return None if row is None or row[0] is None else int(row[0])
