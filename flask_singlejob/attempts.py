"""What is done for a due tick, on a lane's thread: claim it and run it, or settle it unrun.

The only part of a term that claims. Whether a tick is due, and whose it is, the store alone decides, in the claim;
a refusal settles nothing.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from .catalog import EffectiveJob
from .claims import CLOCK_WENT_BACK_MS, Claimant, settle_unrun, unrun_record
from .clock import StoreClock, steady_seconds
from .errors import StoreError
from .plans import Board, Plan, Todo
from .records import ClaimOutcome, ClaimRequest, ClaimRow, RunStatus, new_id
from .runner import Observer, Runner
from .stores.base import Store

__all__ = ["AHEAD_MS", "Attempts"]

logger = logging.getLogger(__name__)

#: A run's thread is started so much before its tick, and claims at the tick: starting it costs no lag.
AHEAD_MS = 5
#: A thread that waited for its tick and comes out of it so late was frozen: grace time and what it stands for are
#: decided anew.
LATE_MS = 100


class Attempts:
    """Does for a plan what the planner decided.

    :param board: the plans.
    :param trouble: is told of each failed call to the store and, with None, of each good one.
    :param call: gives a job's function as it is to be called.
    """

    def __init__(
        self,
        board: Board,
        *,
        store: Store,
        clock: StoreClock,
        runner: Runner,
        observer: Observer,
        claimant: Claimant,
        lease_seconds: float,
        trouble: Callable[[StoreError | None], None],
        call: Callable[[EffectiveJob], Callable[..., object]],
    ) -> None:
        self._board = board
        self._store = store
        self._clock = clock
        self._runner = runner
        self._observer = observer
        self._claimant = claimant
        self._lease_seconds = lease_seconds
        self._trouble = trouble
        self._call = call

    def settle(self, plan: Plan, todo: Todo) -> None:
        """Settle ticks that are not to run, with their record; or set a row to where it has to start."""
        row = plan.row
        if row is None:
            return
        if todo.what == "reset":
            if todo.resolved > row.resolved - CLOCK_WENT_BACK_MS:
                self._store.settle(row.key, row.resolved, todo.resolved, None)
                plan.row = None
                return
            logger.warning(
                "job %r was settled up to more than a day ahead of the store's clock, which must have gone back: "
                "its ticks are counted from now",
                plan.job.id,
            )
            self._store.settle(row.key, row.resolved, todo.resolved, None)
            plan.row = None
            return
        definition = plan.job.definition
        record = unrun_record(
            plan.job.id,
            status=todo.status,
            reason=todo.reason,
            first=todo.first,
            last=todo.resolved,
            count=todo.count,
            now=self._clock.now_ms(),
            scope=definition.scope,
            host=self._claimant.host if definition.scope == "host" else None,
            detail=todo.detail,
        )
        written = settle_unrun(self._store, row, todo.resolved, record)
        if written is None:
            plan.row = None
            return
        plan.row = replace(row, resolved=todo.resolved, streak=written.id)
        level = logging.DEBUG if todo.status is RunStatus.SKIPPED else logging.WARNING
        logger.log(
            level,
            "job %r: %d tick(s) from %s to %s %s (%s)",
            plan.job.id,
            todo.count,
            record.scheduled_at.isoformat(),
            record.last_scheduled_at.isoformat() if record.last_scheduled_at else "",
            todo.status,
            todo.reason,
        )
        self._observer.unrun(
            replace(written, count=todo.count, stood_for=todo.count, scheduled_at=record.scheduled_at)
        )

    def attempt(self, plan: Plan, todo: Todo) -> None:
        """Claim one tick and run it, on a lane's thread."""
        won: tuple[ClaimRow, float] | None = None
        try:
            won = self._adopt(plan) if todo.what == "adopt" else self._claim(plan, todo)
            self._trouble(None)
            plan.failures = 0
        except StoreError as error:
            self._trouble(error)
            self._board.back_off(plan)
        finally:
            if won is None:
                self._board.free([plan])
        if won is not None:
            self._perform(plan, *won)

    def _request(self, plan: Plan, row: ClaimRow, todo: Todo, slot: int) -> ClaimRequest:
        definition = plan.job.definition
        rerun = todo.what == "rerun"
        info = self._claimant.info(
            cause="rerun" if rerun else "schedule",
            scope=definition.scope,
            attempt=row.rerun_attempt + 1 if rerun else 1,
            stood_for=todo.stood_for,
            **(
                {"rerun_lost": True, "max_attempts": definition.max_attempts} if definition.rerun_lost else {}
            ),
        )
        return ClaimRequest(
            holder=new_id(),
            lease_ms=int((definition.lease or self._lease_seconds) * 1000),
            tick=todo.tick,
            seen_resolved=None if rerun else row.resolved,
            rerun=rerun,
            slot=slot,
            info=info,
        )

    def _claim(self, plan: Plan, todo: Todo) -> tuple[ClaimRow, float] | None:
        """Try to take a tick.

        :returns: the row as claimed and when the claim was sent; None when it is not ours.
        """
        row = plan.row
        if self._board.stopped.is_set() or plan.dropped or row is None:
            return None
        definition = plan.job.definition
        slots = range(1, definition.max_instances + 1) if definition.max_instances > 1 else (0,)
        free = [slot for slot in slots if slot not in plan.held_slots] or list(slots)
        first = self._request(plan, row, todo, free[0])
        if todo.ahead:
            job = plan.job
            # What changed meanwhile is looked at anew.
            if not self._reached(todo.tick) or plan.dropped or plan.row is not row or plan.job is not job:
                return None
        for slot in free:
            request = first if slot == free[0] else self._request(plan, row, todo, slot)
            sent = steady_seconds()
            try:
                outcome = self._store.claim(plan.key, request)
            except StoreError:
                # It may have been carried out: should the row be seen to be held by it, it is ours.
                self._board.doubt(request.holder, row.resolved)
                raise
            self._board.clock_moved(self._clock.sync(outcome.now, sent, steady_seconds()))
            if outcome.won:
                self._took(plan, todo, outcome.row)
                return outcome.row, sent
            if not self._still_open(row, todo, outcome):
                break
        self._refused(plan, row, todo, outcome)
        return None

    def _reached(self, tick: int) -> bool:
        """Wait for a tick: a run's thread is started a moment before it.

        :returns: False when the planner has to look again: the clock was set back meanwhile, or this process was
            frozen beyond the tick.
        """
        left = self._clock.seconds_until(tick)
        if left > 2 * AHEAD_MS / 1000:
            return False
        self._board.stopped.wait(left)
        return not self._board.stopped.is_set() and self._clock.now_ms() - tick <= LATE_MS

    def _adopt(self, plan: Plan) -> tuple[ClaimRow, float] | None:
        """Go on with a claim of this process whose answer was lost: the store has it, nobody runs it yet.

        :returns: as :meth:`_claim`; None when its lease ended meanwhile: the tick is open again then.
        """
        row, plan.adopt = plan.adopt, None
        if row is None or row.holder is None or row.held_tick is None:
            return None
        lease_ms = int((plan.job.definition.lease or self._lease_seconds) * 1000)
        sent = steady_seconds()
        stopped = self._board.stopped.is_set() or plan.dropped
        good_ms = None if stopped else self._store.renew(row.key, row.holder, row.token, lease_ms)
        if good_ms is not None:
            self._board.settle_doubt(row.holder)
            self._took(plan, Todo("run", tick=row.held_tick), row)
            if row.key.slot:
                plan.row = None
            return row, sent
        plan.row = None
        rerun = row.info.get("cause") == "rerun"
        if self._store.expire(row.key, row.holder, row.token, rerun=rerun, forced=stopped):
            before = self._board.settle_doubt(row.holder)
            if not rerun and before is not None:
                self._store.settle(plan.key, row.held_tick, before, None)
        return None

    def _took(self, plan: Plan, todo: Todo | None, row: ClaimRow) -> None:
        """Take in that this process holds the row, or one of its slots."""
        assert row.holder is not None
        with self._board.lock:
            plan.local_runs.add(row.holder)
            plan.attempting = False
            if todo is None or todo.what == "rerun":
                # What falls due meanwhile is not settled by the end of this run: it was held, then.
                plan.held_from = plan.held_from or row.since
            if not row.key.slot:
                plan.row = row
                return
            plan.held_slots.add(row.key.slot)
            if todo is not None and plan.row is not None:
                settled = plan.row.resolved if todo.what == "rerun" else todo.tick
                plan.row = replace(plan.row, resolved=settled, token=row.token, rerun_tick=None, streak=None)
            self._board.dirty.add(plan.job.id)
        # A further run may follow at once. Otherwise the loop is not woken: nothing delays the job's start.
        self._board.wake()

    def _perform(self, plan: Plan, row: ClaimRow, sent: float, *, by_hand: bool = False) -> None:
        """Run what was claimed, on this thread."""
        job = plan.job
        definition = job.definition
        run_id = row.holder
        assert run_id is not None

        def freed(left: ClaimRow | None) -> None:
            with self._board.lock:
                plan.local_runs.discard(run_id)
                plan.ended_run = run_id
                if row.key.slot:
                    plan.held_slots.discard(row.key.slot)
                    if left is None:
                        plan.row = None
                elif plan.row is not None and plan.row.holder == run_id:
                    plan.row = left
                self._board.dirty.add(job.id)
            self._board.wake()

        delay = None
        if definition.jitter and not by_hand:
            seconds = random.uniform(0, definition.jitter)

            def delay() -> None:
                self._board.stopped.wait(seconds)

        def function(*args: object, **kwargs: object) -> object:
            # Looked up as part of the run: should it fail, the run has failed.
            return self._call(job)(*args, **kwargs)

        try:
            self._runner.perform(
                row,
                function,
                definition.args,
                definition.kwargs,
                sent=sent,
                lease_seconds=definition.lease or self._lease_seconds,
                max_runtime=definition.max_runtime,
                schedule=job.schedule if definition.max_instances == 1 and not by_hand else None,
                in_order=not definition.coalesce,
                delay=delay,
                freed=freed,
            )
        except BaseException:
            # The claim ends with its lease; the job must not stay blocked here for ever.
            freed(None)
            raise

    @staticmethod
    def _still_open(seen: ClaimRow, todo: Todo, outcome: ClaimOutcome) -> bool:
        """Tell whether only the slot can have been the reason of a refusal.

        :param seen: the row before the claim.
        """
        main = outcome.row
        if todo.what == "rerun":
            return main.rerun_tick == todo.tick and main.holder is None
        return (
            main.resolved == seen.resolved
            and main.holder is None
            and main.rerun_tick is None
            and todo.tick <= outcome.now
            and main.hold_until <= outcome.now
        )

    def _refused(self, plan: Plan, seen: ClaimRow, todo: Todo, outcome: ClaimOutcome) -> None:
        row = outcome.row
        still_open = self._still_open(seen, todo, outcome)
        plan.row = row
        if todo.what == "run" and todo.tick > outcome.now and row.resolved < todo.tick:
            # An early timer, or a host whose clock runs ahead: the store has not reached the tick.
            plan.retry_at = steady_seconds() + min(1.0, (todo.tick - outcome.now) / 1000)
        elif still_open and plan.job.definition.max_instances > 1:
            plan.full_since = outcome.now
            plan.held_slots = set(range(1, plan.job.definition.max_instances + 1))
        elif still_open or row.hold_until > outcome.now:
            plan.retry_at = steady_seconds() + random.uniform(0.02, 0.08)

    # -- runs by hand that an owner was asked for ---------------------------------------------------

    def by_hand(self, plan: Plan, request_id: str, revision: int) -> None:
        """Claim a job by hand for a request, take the request, and run it, on a lane's thread."""
        won: tuple[ClaimRow, float] | None = None
        try:
            won = self._claim_by_hand(plan, request_id, revision)
            self._trouble(None)
        except StoreError as error:
            self._trouble(error)
            self._board.back_off(plan)
        finally:
            if won is None:
                self._board.free([plan])
        if won is not None:
            self._perform(plan, *won, by_hand=True)

    def _claim_by_hand(self, plan: Plan, request_id: str, revision: int) -> tuple[ClaimRow, float] | None:
        if self._board.stopped.is_set() or plan.dropped:
            return None
        definition = plan.job.definition
        for slot in range(1, definition.max_instances + 1) if definition.max_instances > 1 else (0,):
            sent = steady_seconds()
            request = ClaimRequest(
                holder=new_id(),
                lease_ms=int((definition.lease or self._lease_seconds) * 1000),
                slot=slot,
                info=self._claimant.info(cause="manual", scope=definition.scope, attempt=1),
            )
            outcome = self._store.claim(plan.key, request)
            if outcome.won:
                break
        else:
            plan.row = outcome.row if definition.max_instances == 1 else plan.row
            plan.retry_at = steady_seconds() + 0.25
            return None
        row = outcome.row
        assert row.holder is not None
        try:
            taken = self._store.delete("request", request_id, expect=revision)
        except StoreError:
            with contextlib.suppress(StoreError):
                self._store.release(row.key, row.holder, row.token)
            raise
        self._board.drop_request(request_id)
        if not taken:
            # Another owner took the request first: give the claim back, nothing happened.
            self._store.release(row.key, row.holder, row.token)
            plan.row = None
            return None
        self._took(plan, None, row)
        return row, sent
