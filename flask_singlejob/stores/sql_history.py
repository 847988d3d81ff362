"""History in the SQL store: finished runs and records, by time, by job and by status.

Owns the table of runs but for what a release, a settling or the end of a lost claim writes into it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, union_all

from ..records import Run, RunStatus
from .sql_gateway import Gateway, Session
from .sql_statements import Statements

__all__ = ["History"]

_CHUNK = 200


class History:
    """The verbs of history over one gateway."""

    def __init__(self, gate: Gateway, sql: Statements) -> None:
        self._gate = gate
        self._sql = sql
        self._table = sql.tables.runs

    def runs(
        self,
        job_id: str | None,
        *,
        status: Sequence[RunStatus] | None,
        since: int | None,
        before: tuple[int, str] | None,
        limit: int,
    ) -> list[Run]:
        """See :meth:`~flask_singlejob.stores.base.Store.runs`."""
        c = self._table.c
        conditions: list[ColumnElement[bool]] = [c.cluster_id == self._sql.cluster_id]
        if job_id is not None:
            conditions.append(c.job_key == self._sql.job_key(job_id))
        if since is not None:
            conditions.append(c.at_ms >= since)
        if before is not None:
            at_ms, run_id = before
            conditions += [c.at_ms <= at_ms, or_(c.at_ms < at_ms, and_(c.at_ms == at_ms, c.run_id < run_id))]
        if status is not None and not status:
            return []
        statuses = None if status is None else sorted({RunStatus(one).value for one in status})
        if statuses is None:
            page = self._newest(conditions, limit).subquery("page")
        elif job_id is not None:
            # Not by the index of the status, which leads through the runs of every job.
            page = self._newest([*conditions, c.status.concat("").in_(statuses)], limit).subquery("page")
        elif len(statuses) == 1:
            page = self._newest([*conditions, c.status == statuses[0]], limit).subquery("page")
        else:
            # One walk along the index per status; with IN a rare status would mean a walk through all.
            parts = [self._newest([*conditions, c.status == one], limit).subquery() for one in statuses]
            found = union_all(*(select(part) for part in parts)).subquery()
            page = (
                select(found)
                .order_by(found.c.at_ms.desc(), found.c.run_id.desc())
                .limit(limit)
                .subquery("page")
            )
        statement = (
            select(c.record).join(page, page.c.id == c.id).order_by(page.c.at_ms.desc(), page.c.run_id.desc())
        )
        records = self._gate.call("runs", lambda session: session.execute(statement).scalars().all())
        return [Run.from_record(json.loads(record)) for record in records]

    def _newest(self, conditions: Sequence[ColumnElement[bool]], limit: int) -> Select[Any]:
        """Return the ids of a page, which the index alone tells.

        MySQL walks from the newest to where the page begins: past the index, not past the records.
        """
        c = self._table.c
        return (
            select(c.id, c.at_ms, c.run_id)
            .where(*conditions)
            .order_by(c.at_ms.desc(), c.run_id.desc())
            .limit(limit)
        )

    def run(self, run_id: str) -> Run | None:
        """See :meth:`~flask_singlejob.stores.base.Store.run`."""
        statement = select(self._table.c.record).where(self._table.c.id == self._sql.run_id(run_id))
        record = self._gate.call("run", lambda session: session.execute(statement).scalar())
        return None if record is None else Run.from_record(json.loads(record))

    def add(self, run: Run) -> None:
        """See :meth:`~flask_singlejob.stores.base.Store.add_run`."""

        def work(session: Session) -> None:
            session.execute(self._sql.write_run(run))

        self._gate.call("add_run", work)

    def prune(self, *, before: int, keep: int, limit: int) -> int:
        """See :meth:`~flask_singlejob.stores.base.Store.prune`."""
        c = self._table.c
        mine = c.cluster_id == self._sql.cluster_id
        # The ids first: MySQL deletes by no subquery that has a limit.
        old = select(c.id).where(mine, c.at_ms < before).order_by(c.at_ms, c.run_id).limit(limit)
        full = select(c.job_key).where(mine).group_by(c.job_key).having(func.count() > keep)

        def work(session: Session) -> int:
            doomed: list[str] = list(session.execute(old).scalars())
            if len(doomed) < limit:
                deleted = self._delete(session, doomed)
                return deleted + self._delete_excess(
                    session, list(session.execute(full).scalars()), keep=keep, limit=limit - len(doomed)
                )
            return self._delete(session, doomed)

        return self._gate.call("prune", work)

    def _delete_excess(self, session: Session, job_keys: Sequence[str], *, keep: int, limit: int) -> int:
        c = self._table.c
        deleted = 0
        for job_key in job_keys:
            if deleted >= limit:
                break
            excess = (
                select(c.id)
                .where(c.cluster_id == self._sql.cluster_id, c.job_key == job_key)
                .order_by(c.at_ms.desc(), c.run_id.desc())
                .limit(limit - deleted)
                .offset(keep)
            )
            deleted += self._delete(session, list(session.execute(excess).scalars()))
        return deleted

    def _delete(self, session: Session, ids: Sequence[str]) -> int:
        c = self._table.c
        return sum(
            session.execute(delete(self._table).where(c.id.in_(ids[start : start + _CHUNK]))).rowcount
            for start in range(0, len(ids), _CHUNK)
        )
