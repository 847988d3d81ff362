"""One job's row over a store: what a claim, a lost run, a missed or skipped tick means.

Owns the policy that every store shares. Decides nothing by the host's clock and trusts no process id:
a claim is a random id and a growing token. Knows neither Flask nor APScheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .records import ClaimKey, ClaimRow, Run, RunStatus, from_ms, new_id
from .stores.base import Store

__all__ = [
    "CLOCK_WENT_BACK_MS",
    "Claimant",
    "held_run",
    "lost_run",
    "never_claimed",
    "settle_unrun",
    "unrun_record",
]

logger = logging.getLogger(__name__)

#: ``resolved`` so far ahead of the store's clock means that the store's clock went back.
CLOCK_WENT_BACK_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims: what a row says of its holder. Only ``instance`` is ever used to tell processes apart.

    :param instance: random per process start.
    :param machine: tells the running kernel, so that proof of death is only sought where it can be had.
    """

    host: str
    pid: int
    instance: str
    machine: str

    def info(self, **more: Any) -> dict[str, Any]:
        """Return the ``info`` of a claim."""
        return {
            "host": self.host,
            "pid": self.pid,
            "instance": self.instance,
            "machine": self.machine,
            **more,
        }


def held_run(row: ClaimRow) -> Run:
    """Return the running run that a held job row stands for."""
    info = row.info
    assert row.holder is not None
    assert row.held_tick is not None
    return Run(
        id=row.holder,
        job_id=row.key.name,
        cause=str(info.get("cause", "schedule")),
        scheduled_at=from_ms(row.held_tick),
        status=RunStatus.RUNNING,
        stood_for=int(info.get("stood_for", 1)),
        scope=str(info.get("scope", "host" if row.key.host else "cluster")),
        host=info.get("host"),
        pid=info.get("pid"),
        token=row.token,
        attempt=int(info.get("attempt", 1)),
        started_at=from_ms(row.since or 0),
        progress=row.progress,
    )


def lost_run(row: ClaimRow, *, now: int, reason: str, detail: str | None = None) -> Run:
    """Return the record of a held run whose process will not end it.

    :param reason: ``lease_ended``, ``process_died``, ``shutdown`` or ``unlocked``.
    """
    return replace(
        held_run(row),
        status=RunStatus.LOST,
        finished_at=from_ms(max(now, row.since or 0)),
        reason=reason,
        detail=detail,
        progress=row.progress,
    )


def may_rerun(row: ClaimRow) -> bool:
    """Tell whether a lost run of this row is to be run again, as its claim was made to say."""
    attempt = int(row.info.get("attempt", 1))
    return bool(row.info.get("rerun_lost")) and attempt < int(row.info.get("max_attempts", 1))


def end_dead_claim(
    store: Store, row: ClaimRow, *, now: int, reason: str, forced: bool, detail: str | None = None
) -> Run | None:
    """End a claim whose lease has ended or whose process is proven dead; anyone may, one does.

    :returns: the lost run when this call ended a job's claim; None otherwise.
    """
    assert row.holder is not None
    if row.key.kind != "job":
        store.expire(row.key, row.holder, row.token, forced=forced)
        return None
    lost = lost_run(row, now=now, reason=reason, detail=detail)
    rerun = reason != "unlocked" and row.info.get("cause") != "manual" and may_rerun(row)
    ended = store.expire(row.key, row.holder, row.token, lost=lost, rerun=rerun, forced=forced)
    return lost if ended else None


def unrun_record(
    job_id: str,
    *,
    status: RunStatus,
    reason: str,
    first: int,
    last: int,
    count: int,
    now: int,
    scope: str,
    host: str | None,
    detail: str | None = None,
) -> Run:
    """Return the record of ticks that were not run.

    :param status: ``SKIPPED`` or ``MISSED``.
    :param first: the first such tick, UTC milliseconds; ``last`` likewise.
    """
    return Run(
        id=new_id(),
        job_id=job_id,
        cause="schedule",
        scheduled_at=from_ms(first),
        last_scheduled_at=from_ms(last),
        status=status,
        stood_for=count,
        scope=scope,
        host=host,
        finished_at=from_ms(max(now, last)),
        reason=reason,
        detail=detail,
        count=count,
    )


def settle_unrun(store: Store, row: ClaimRow, resolved: int, record: Run) -> Run | None:
    """Settle ticks that are not to run, joining the record to a like one just before it.

    :returns: the record as written, or None when the row changed meanwhile or is held.
    """
    if row.streak is not None:
        before = store.run(row.streak)
        if before is not None and before.status == record.status and before.reason == record.reason:
            record = replace(
                record,
                id=before.id,
                scheduled_at=before.scheduled_at,
                count=before.count + record.count,
                stood_for=before.count + record.count,
            )
    return record if store.settle(row.key, row.resolved, resolved, record) else None


@dataclass(frozen=True, slots=True)
class DeathProof:
    """Tells whether a holder is proven dead by this host's kernel.

    :param machine: the kernel that can prove it.
    :param is_dead: ``instance -> True`` only when proven.
    """

    machine: str
    is_dead: Callable[[str], bool]

    def covers(self, info: Mapping[str, Any]) -> bool:
        """Tell whether the holder that says this of itself is dead for sure."""
        instance = info.get("instance")
        return (
            isinstance(instance, str)
            and bool(instance)
            and info.get("machine") == self.machine
            and self.is_dead(instance)
        )


def sweep(
    store: Store, held: tuple[ClaimRow, ...], *, now: int, proof: DeathProof | None
) -> list[tuple[ClaimRow, Run | None]]:
    """End every held claim whose lease has ended or whose process is proven dead.

    :returns: the rows that are free now, each with the lost run that this call recorded, if it did.
    """
    freed: list[tuple[ClaimRow, Run | None]] = []
    for row in held:
        dead = proof is not None and proof.covers(row.info)
        if not dead and (row.expires is None or row.expires > now):
            continue
        reason = "process_died" if dead else "lease_ended"
        freed.append((row, end_dead_claim(store, row, now=now, reason=reason, forced=dead)))
    return freed


def never_claimed(row: ClaimRow) -> bool:
    """Tell whether no tick of a row was ever claimed, skipped or missed."""
    return row.token == 0 and row.streak is None and row.holder is None and row.rerun_tick is None


def job_key(job_id: str, scope: str, host: str) -> ClaimKey:
    """Return the key under which a job's ticks are claimed: one per cluster, or one per host."""
    return ClaimKey("job", job_id, host if scope == "host" else "")
