"""The due ticks of an owner's jobs: computed from the last settled tick, claimed, and handed to the runner.

Owns when to try what. Its loop never calls the store, so it cannot get stuck in one: every call is made
on a lane's thread. Whether a tick is due, and whose it is, the store alone decides, in the claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from .attempts import AHEAD_MS, Attempts
from .catalog import EffectiveJob
from .claims import (
    CLOCK_WENT_BACK_MS,
    Claimant,
    job_key,
    never_claimed,
)
from .clock import StoreClock, steady_seconds
from .errors import StoreError
from .lanes import Lane
from .plans import Board, Plan, Todo
from .records import ClaimKey, ClaimRow, RunStatus
from .runner import Observer, Runner
from .stores.base import Store
from .ticks import due, grace_ms

__all__ = ["Plan", "Planner"]

logger = logging.getLogger(__name__)

#: A paused job's ticks are recorded as skipped this often at most.
PAUSED_RECORD_MS = 5_000
#: Where another host tries a tick first, this one looks so much later whether it did.
LOOK_LATER_MS = 200
#: Work on the store that is no run of a job does not wait for a place of an executor.
ERRAND_PLACES = 4
#: A row that is younger than its definition by no more than this starts where the definition does.
JUST_PINNED_MS = 120_000
#: A tick that is further away is looked at once more so many seconds before.
NEAR_SECONDS = 30.0
#: Late ticks of many jobs after a long time without owner are started this far apart.
STAGGER_SECONDS = 0.1


class Planner:
    """Decides, for each job of one term of ownership, what is next, and has it done.

    :param wake: makes the scheduler's loop call :meth:`step` now.
    :param trouble: is told of each failed call to the store and, with None, of each good one, and whether it wrote.
    :param away: tells whether the store was away at any time in a span of its clock.
    :param rank: this host's place in the order of living hosts for a job, 0 for the first.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: StoreClock,
        runner: Runner,
        observer: Observer,
        claimant: Claimant,
        lanes: Mapping[str, Lane],
        lease_seconds: float,
        wake: Callable[[], None],
        trouble: Callable[..., None],
        away: Callable[[int, int], bool],
        call: Callable[[EffectiveJob], Callable[..., object]],
        rank: Callable[[str, str], int] = lambda job_id, group: 0,
        trigger_ended: Callable[[EffectiveJob], None] = lambda job: None,
    ) -> None:
        self._board = Board(wake)
        self._attempts = Attempts(
            self._board,
            store=store,
            clock=clock,
            runner=runner,
            observer=observer,
            claimant=claimant,
            lease_seconds=lease_seconds,
            trouble=trouble,
            call=call,
        )
        self._store = store
        self._clock = clock
        self._claimant = claimant
        self._lanes = lanes
        self._errands = Lane("errand", ERRAND_PLACES)
        self._lease_seconds = lease_seconds
        self._trouble = trouble
        self._away = away
        self._rank = rank
        self._trigger_ended = trigger_ended
        self._waiting: set[str] = set()
        self._began_ms = 0
        self._next_late = 0.0
        self.last_step = steady_seconds()

    # -- the jobs -------------------------------------------------------------------------------

    def begin(self, jobs: Sequence[EffectiveJob]) -> None:
        """Take over the jobs of the term; their rows are read in one go."""
        self._began_ms = self._clock.now_ms()
        keys = [job_key(job.id, job.definition.scope, self._claimant.host) for job in jobs]
        rows = self._store.ensure(keys) if keys else {}
        with self._board.lock:
            for job, key in zip(jobs, keys, strict=True):
                plan = Plan(job, key, rows.get(key))
                self._board.plans[job.id] = plan
                self._board.dirty.add(job.id)

    def update(self, job_id: str, job: EffectiveJob | None) -> None:
        """Take in a job that changed, is new, or (None) is gone."""
        with self._board.lock:
            plan = self._board.plans.get(job_id)
            if job is None or job.removed:
                if plan is not None:
                    plan.dropped = True
                    del self._board.plans[job_id]
                return
            key = job_key(job.id, job.definition.scope, self._claimant.host)
            if plan is None or plan.key != key:
                if plan is not None:
                    plan.dropped = True
                self._board.plans[job_id] = Plan(job, key)
            else:
                plan.job = job
                plan.looked = None
                plan.row = plan.row if plan.local_runs else None
            self._board.dirty.add(job_id)
        self._board.wake()

    def forget_rows(self) -> None:
        """Read every row again before it is next relied on."""
        with self._board.lock:
            for job_id, plan in self._board.plans.items():
                if not plan.local_runs:
                    plan.row = None
                self._board.dirty.add(job_id)
        self._board.wake()

    def plans(self) -> list[Plan]:
        """Return the plans of the term."""
        with self._board.lock:
            return list(self._board.plans.values())

    @property
    def running(self) -> int:
        """How many runs go on in this process."""
        with self._board.lock:
            return sum(len(plan.local_runs) for plan in self._board.plans.values())

    def seen_held(self, held: Sequence[ClaimRow]) -> None:
        """Compare the rows that are held, as a poll just saw them, with what is believed."""
        by_key: dict[ClaimKey, ClaimRow] = {}
        slots: dict[ClaimKey, set[int]] = {}
        doubted: dict[ClaimKey, ClaimRow] = {}
        for row in held:
            if self._board.doubts(row.holder):
                doubted[row.key.with_slot(0)] = row
            if row.key.slot:
                slots.setdefault(row.key.with_slot(0), set()).add(row.key.slot)
            else:
                by_key[row.key] = row
        stale = False
        with self._board.lock:
            for job_id, plan in self._board.plans.items():
                seen = by_key.get(plan.key)
                if plan.key in doubted and not plan.attempting:
                    plan.adopt = doubted[plan.key]
                    self._board.dirty.add(job_id)
                before, plan.held_slots = plan.held_slots, slots.get(plan.key, set())
                if plan.full_since is not None and plan.held_slots != before:
                    self._board.dirty.add(job_id)
                if plan.attempting or plan.row is None:
                    continue
                if seen is not None:
                    newer = seen.token > plan.row.token
                    other = seen.token == plan.row.token and seen.holder != plan.row.holder
                    # A poll that was answered before our own run ended shows it still.
                    if newer or (other and seen.holder != plan.ended_run):
                        plan.row = seen
                        self._board.dirty.add(job_id)
                elif plan.row.holder is not None and plan.row.holder not in plan.local_runs:
                    plan.row = None
                    self._board.dirty.add(job_id)
                    stale = True
        if stale or self._board.dirty:
            self._board.wake()

    def doubts(self, row: ClaimRow) -> bool:
        """Tell whether a row is held by a claim of this process whose answer was lost: it will be gone on with."""
        if not self._board.doubts(row.holder):
            return False
        key = row.key.with_slot(0)
        with self._board.lock:
            return any(
                plan.key == key and plan.job.schedule is not None and plan.job.broken is None
                for plan in self._board.plans.values()
            )

    def clock_moved(self, moved_ms: float) -> None:
        """Look at every job again when the store's clock stepped."""
        self._board.clock_moved(moved_ms)

    def row_freed(self, key: ClaimKey) -> None:
        """Read a row again whose dead claim was just ended."""
        with self._board.lock:
            for job_id, plan in self._board.plans.items():
                if plan.key == key and not plan.attempting:
                    plan.row = None if not plan.local_runs or plan.row is None else plan.row
                    self._board.dirty.add(job_id)
        self._board.wake()

    def ask(self, request_id: str, job_id: str, revision: int) -> None:
        """Run a job by hand, as somebody asked for in the store."""
        with self._board.lock:
            self._board.requests[request_id] = (job_id, revision)
        self._board.wake()

    def drop_request(self, request_id: str) -> None:
        """Forget a request that somebody else took."""
        self._board.drop_request(request_id)

    def stop(self) -> None:
        """Claim nothing more. Runs that go on are finished under their own claims."""
        self._board.stopped.set()

    # -- the loop -------------------------------------------------------------------------------

    def step(self) -> float:
        """Look at every job whose time has come.

        :returns: seconds until the next is due, at most 60.
        """
        self.last_step = steady_seconds()
        if self._board.stopped.is_set() or not self._clock.known:
            return 60.0
        now_steady = steady_seconds()
        unread: list[Plan] = []
        lookers: list[Plan] = []
        ready: list[tuple[int, Plan, Todo]] = []
        with self._board.lock:
            now = self._clock.now_ms()
            due_ids = self._board.dirty | {
                job_id for job_id, at in self._board.wake_at.items() if at <= now_steady
            }
            self._board.dirty = set()
            for job_id in due_ids:
                self._board.wake_at.pop(job_id, None)
                plan = self._board.plans.get(job_id)
                if plan is None or plan.attempting:
                    continue
                if plan.retry_at > now_steady:
                    self._board.wake_at[job_id] = plan.retry_at
                    continue
                if plan.row is None:
                    plan.attempting = True
                    unread.append(plan)
                    continue
                self._consider(plan, now, now_steady, ready, lookers)
        if unread:
            self._errand(unread, lambda: self._read(unread), wrote=False)
        if lookers:
            self._errand(lookers, lambda: self._read(lookers), wrote=False)
        ready.sort(key=lambda entry: entry[0])
        for _, plan, todo in ready:
            self._begin_todo(plan, todo)
        self._serve_requests()
        with self._board.lock:
            if self._board.dirty:
                return 0.0
            soonest = min(self._board.wake_at.values(), default=now_steady + 60.0)
        return max(0.0, min(60.0, soonest - steady_seconds()))

    def _at(self, plan: Plan, tick: int | None) -> None:
        """Look at the plan again when the store's clock reaches the instant."""
        if tick is not None:
            seconds = self._clock.seconds_until(tick)
            # The two clocks drift apart: over a night by more than a start may be late.
            seconds = seconds if seconds <= 2 * NEAR_SECONDS else seconds - NEAR_SECONDS
            self._board.wake_at[plan.job.id] = steady_seconds() + seconds

    def _consider(
        self,
        plan: Plan,
        now: int,
        now_steady: float,
        ready: list[tuple[int, Plan, Todo]],
        lookers: list[Plan],
    ) -> None:
        job, row = plan.job, plan.row
        assert row is not None
        if job.schedule is None or job.broken is not None or job.removed:
            return
        definition = job.definition
        lease_ms = int((definition.lease or self._lease_seconds) * 1000)
        if plan.adopt is not None:
            ready.append((plan.adopt.held_tick or now, plan, Todo("adopt")))
            return
        if row.resolved > now + CLOCK_WENT_BACK_MS:
            ready.append((now, plan, Todo("reset", resolved=now)))
            return
        fresh = never_claimed(row)
        plan.seen_claimed = plan.seen_claimed or not fresh
        # A row seen claimed before that is fresh again was forgotten by the store: what ran must not run again.
        if (
            row.resolved > job.floor
            and fresh
            and not plan.seen_claimed
            and 0 <= now - job.since < JUST_PINNED_MS
        ):
            # The row was made a little after the definition was pinned: what fell due in between is due.
            ready.append((now, plan, Todo("reset", resolved=job.floor)))
            return
        base = max(row.resolved, job.floor)
        if row.holder is not None:
            # Nothing is settled by a refusal; the poll, or the end of our own run, wakes us.
            if plan.held_from is None:
                plan.held_from = row.since
            return
        if job.paused or base < job.resumed_at:
            upto = self._clock.past_ms() if job.paused else job.resumed_at
            span = job.schedule.span(base, upto) if upto > base else None
            recorded = 0 <= now - plan.paused_recorded < PAUSED_RECORD_MS
            if span is not None and not (job.paused and recorded):
                plan.paused_recorded = now
                ready.append((now, plan, self._skip("paused", span)))
                return
            if job.paused:
                following = job.schedule.next_after(base)
                if following is not None:
                    self._at(plan, max(following, plan.paused_recorded + PAUSED_RECORD_MS) + 50)
                return
            base = max(base, job.resumed_at)
        if row.rerun_tick is not None:
            ready.append((row.rerun_tick, plan, Todo("rerun", tick=row.rerun_tick)))
            return
        if plan.full_since is not None:
            if len(plan.held_slots) >= definition.max_instances:
                return
            span = job.schedule.span(base, self._clock.past_ms())
            plan.full_since = None
            if span is not None:
                ready.append((now, plan, self._skip("max_instances", span)))
                return
        limit = definition.grace
        decision = due(
            job.schedule,
            resolved=base,
            now=now,
            grace=limit,
            coalesce=definition.coalesce,
            lease_ms=lease_ms,
        )
        if decision.missed is not None:
            ready.append((now, plan, self._miss(plan, decision.missed, now)))
            return
        plan.held_from = None
        if decision.tick is None:
            if decision.wait_until is None:
                if job.origin == "store" and not job.paused:
                    plan.attempting = True
                    self._errand([plan], lambda: self._trigger_ended(job), forget=True)
                return
            upcoming = decision.wait_until
            # The estimate is cut to whole milliseconds: the loop may seem to come a little early.
            if upcoming - now > AHEAD_MS + 2 or self._rank(job.id, definition.group) > 0:
                self._at(plan, upcoming - AHEAD_MS if upcoming - now > 2 * AHEAD_MS else upcoming)
                return
            ready.append((upcoming, plan, Todo("run", tick=upcoming, ahead=True)))
            return
        if plan.looked != decision.tick:
            rank = self._rank(job.id, definition.group)
            if rank > 0:
                look_at = decision.tick + LOOK_LATER_MS * min(rank, 3)
                if now < look_at:
                    self._at(plan, look_at)
                    return
                plan.looked = decision.tick
                plan.attempting = True
                lookers.append(plan)
                return
        owed = decision.stood_for > 1 or now - decision.tick > 60_000
        late = definition.grace is None and owed
        ready.append(
            (decision.tick, plan, Todo("run", tick=decision.tick, stood_for=decision.stood_for, late=late))
        )

    @staticmethod
    def _skip(reason: str, span: object) -> Todo:
        first, last, count = span.first, span.last, span.count  # type: ignore[attr-defined]
        return Todo(
            "settle", resolved=last, first=first, count=count, status=RunStatus.SKIPPED, reason=reason
        )

    def _miss(self, plan: Plan, span: object, now: int) -> Todo:
        first, last, count = span.first, span.last, span.count  # type: ignore[attr-defined]
        job = plan.job
        assert job.schedule is not None
        lease_ms = int((job.definition.lease or self._lease_seconds) * 1000)
        grace = grace_ms(job.definition.grace, job.schedule, last, lease_ms) or 0
        status, reason = RunStatus.MISSED, "late"
        if plan.held_from is not None and plan.held_from <= last + grace:
            status, reason = RunStatus.SKIPPED, "held"
        elif self._away(first, last + grace):
            reason = "store_away"
        elif last + grace < self._began_ms:
            reason = "no_owner"
        detail = f"not run within its grace time of {grace / 1000:g} s"
        return Todo(
            "settle",
            resolved=last,
            first=first,
            count=count,
            status=status,
            reason=reason,
            detail=detail,
        )

    # -- doing it -------------------------------------------------------------------------------

    def _errand(
        self,
        plans: Sequence[Plan],
        work: Callable[[], object],
        *,
        forget: bool = False,
        wrote: bool = True,
    ) -> None:
        def body() -> None:
            try:
                if not self._board.stopped.is_set():
                    work()
                    self._trouble(None, wrote=wrote)
                    for plan in plans:
                        plan.failures = 0
            except StoreError as error:
                self._trouble(error, wrote=wrote)
                for plan in plans:
                    self._board.back_off(plan)
            except Exception:
                logger.exception(
                    "work on job(s) %s failed", ", ".join(repr(plan.job.id) for plan in plans[:5])
                )
                for plan in plans:
                    self._board.back_off(plan)
            finally:
                self._board.free(plans, again=not forget)

        if not self._errands.submit(body, self._board.wake):
            with self._board.lock:
                for plan in plans:
                    plan.retry_at = steady_seconds() + 0.02
            self._board.free(plans)

    def _read(self, plans: Sequence[Plan]) -> None:
        rows = self._store.ensure([plan.key for plan in plans])
        with self._board.lock:
            for plan in plans:
                plan.row = rows.get(plan.key)

    def _begin_todo(self, plan: Plan, todo: Todo) -> None:
        with self._board.lock:
            if plan.attempting or plan.dropped or self._board.stopped.is_set():
                return
            plan.attempting = True
        if todo.what in ("settle", "reset"):
            self._errand([plan], lambda: self._attempts.settle(plan, todo))
            return
        lane = self._lanes.get(plan.job.definition.executor)
        if lane is None:
            logger.error(
                "job %r wants executor %r, which SCHEDULER_EXECUTORS does not define: it runs on the default one",
                plan.job.id,
                plan.job.definition.executor,
            )
            lane = self._lanes["default"]
        if todo.late and not self._may_start_late(plan):
            return
        if not lane.submit(lambda: self._attempts.attempt(plan, todo), self._place_free):
            # A claim is made when a thread is free, not before: whoever has one first runs the tick.
            with self._board.lock:
                plan.attempting = False
                self._board.wake_at[plan.job.id] = steady_seconds() + 0.25
                self._waiting.add(plan.job.id)

    def _may_start_late(self, plan: Plan) -> bool:
        now = steady_seconds()
        with self._board.lock:
            if now >= self._next_late:
                self._next_late = now + STAGGER_SECONDS
                return True
            plan.attempting = False
            self._board.wake_at[plan.job.id] = self._next_late
        return False

    def _place_free(self) -> None:
        with self._board.lock:
            self._board.dirty |= self._waiting
            self._waiting = set()
        self._board.wake()

    # -- runs by hand that an owner was asked for ---------------------------------------------------

    def _serve_requests(self) -> None:
        with self._board.lock:
            waiting = list(self._board.requests.items())
        for request_id, (job_id, revision) in waiting:
            with self._board.lock:
                plan = self._board.plans.get(job_id)
                if plan is None or plan.job.broken is not None:
                    # Its definition may be read next; the request is dropped when it is gone from the store.
                    continue
                held = plan.row is None or (
                    plan.row.holder is not None and plan.job.definition.max_instances == 1
                )
                if plan.attempting or held or plan.retry_at > steady_seconds():
                    continue
                plan.attempting = True
            lane = self._lanes.get(plan.job.definition.executor, self._lanes["default"])
            if not lane.submit(partial(self._attempts.by_hand, plan, request_id, revision), self._place_free):
                with self._board.lock:
                    plan.attempting = False
                    self._waiting.add(plan.job.id)
