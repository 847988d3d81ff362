"""What ``testing.run_due`` does: the due ticks of one app, one after the other, in the caller's thread.

Owns no thread and waits for nothing. Uses the same claim, runner and rules as an owner.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from .catalog import EffectiveJob
from .catalog_reader import pin_definitions
from .claims import job_key, never_claimed, settle_unrun, unrun_record
from .clock import steady_seconds
from .engine_access import engine_of
from .errors import ConfigError
from .records import ClaimRequest, ClaimRow, Run, RunStatus, from_ms, new_id, to_ms
from .ticks import due

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["run_all_due"]


def run_all_due(app: Any, until: datetime | timedelta | float) -> list[Run]:
    """Run every due tick up to a moment; see :func:`flask_singlejob.testing.run_due`."""
    engine = engine_of(app)
    if engine is None:
        raise ConfigError(f"run_due(): the app {app.name!r} has no SingleJob: call init_app first")
    clock = getattr(engine.ready_store(), "clock", None)
    movable = hasattr(clock, "move_to")
    now = engine.manager.refresh()
    pin_definitions(
        engine.store,
        engine.catalog,
        engine.catalog_lock,
        now=now,
        zone_name=engine.own_zone_name(),
        by=engine.settings.host_id,
    )
    if isinstance(until, datetime):
        end = to_ms(until)
    else:
        seconds = until.total_seconds() if isinstance(until, timedelta) else float(until)
        end = now + round(seconds * 1000)
    if end > now and not movable:
        raise ValueError(
            f"run_due(until={until!r}) is ahead of the store's clock, which cannot be moved: set "
            "SINGLEJOB_STORE_OPTIONS = {'clock': FrozenClock()} with the store memory://"
        )
    ended: list[Run] = []
    while True:
        now = engine.manager.refresh()
        soonest = _soonest(engine, now, end)
        if soonest is None:
            break
        job, row, tick = soonest
        if movable and tick > now:
            clock.move_to(from_ms(tick))  # type: ignore[union-attr]
            now = engine.manager.refresh()
        run = _run(engine, job, row, now)
        if run is not None:
            ended.append(run)
    if movable and end > to_ms(clock.now):  # type: ignore[union-attr]
        clock.move_to(from_ms(end))  # type: ignore[union-attr]
    return ended


def _soonest(engine: Engine, now: int, end: int) -> tuple[EffectiveJob, ClaimRow, int] | None:
    """Return the job whose next tick comes first, with its row and the tick."""
    groups = engine.settings.groups
    host = engine.settings.host_id
    with engine.catalog_lock:
        jobs = [
            job
            for job in engine.catalog.all(now=now)
            if job.schedule is not None
            and not job.paused
            and job.broken is None
            and (groups is None or job.definition.group in groups)
        ]
    keys = {job.id: job_key(job.id, job.definition.scope, host) for job in jobs}
    rows = engine.store.ensure(keys.values())
    best: tuple[EffectiveJob, ClaimRow, int] | None = None
    for job in jobs:
        row = rows[keys[job.id]]
        if never_claimed(row) and row.resolved > job.floor and job.pinned:
            engine.store.settle(row.key, row.resolved, job.floor, None)
            row = engine.store.ensure([row.key])[row.key]
        if row.holder is not None:
            continue
        assert job.schedule is not None
        tick = job.schedule.next_after(max(row.resolved, job.floor, job.resumed_at))
        if tick is not None and tick <= end and (best is None or tick < best[2]):
            best = (job, row, tick)
    return best


def _run(engine: Engine, job: EffectiveJob, row: ClaimRow, now: int) -> Run | None:
    definition = job.definition
    assert job.schedule is not None
    lease_seconds = definition.lease or engine.settings.lease
    decision = due(
        job.schedule,
        resolved=max(row.resolved, job.floor, job.resumed_at),
        now=now,
        grace=definition.grace,
        coalesce=definition.coalesce,
        lease_ms=int(lease_seconds * 1000),
    )
    if decision.missed is not None:
        missed = decision.missed
        record = unrun_record(
            job.id,
            status=RunStatus.MISSED,
            reason="late",
            first=missed.first,
            last=missed.last,
            count=missed.count,
            now=now,
            scope=definition.scope,
            host=None,
        )
        written = settle_unrun(engine.store, row, missed.last, record)
        if written is not None:
            engine.observer.unrun(written)
        return None
    if decision.tick is None:
        return None
    with engine.claiming() as claimant:
        sent = steady_seconds()
        outcome = engine.store.claim(
            row.key,
            ClaimRequest(
                holder=new_id(),
                lease_ms=int(lease_seconds * 1000),
                tick=decision.tick,
                seen_resolved=row.resolved,
                info=claimant.info(
                    cause="schedule", scope=definition.scope, attempt=1, stood_for=decision.stood_for
                ),
            ),
        )
        if not outcome.won:
            return None
        return engine.runner.perform(
            outcome.row,
            engine.callable_of(definition),
            definition.args,
            definition.kwargs,
            sent=sent,
            lease_seconds=lease_seconds,
        ).run
