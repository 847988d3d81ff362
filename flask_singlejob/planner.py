"""The due ticks of an owner's jobs: computed from the last settled tick, claimed, and handed to the runner.

Owns when to try what. Its loop never calls the store, so it cannot get stuck in one: every call is made
on a lane's thread. Whether a tick is due, and whose it is, the store alone decides, in the claim.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from .catalog import EffectiveJob
from .claims import (
    CLOCK_WENT_BACK_MS,
    Claimant,
    job_key,
    never_claimed,
    settle_unrun,
    unrun_record,
)
from .clock import StoreClock, steady_seconds
from .errors import StoreError
from .lanes import Lane
from .records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow, RunStatus, new_id
from .runner import Observer, Runner
from .stores.base import Store
from .ticks import due, grace_ms

__all__ = ["Plan", "Planner"]

logger = logging.getLogger(__name__)

#: A paused job's ticks are recorded as skipped this often at most.
PAUSED_RECORD_MS = 5_000
#: With more hosts than so many, one host tries a tick first and the others look a little later.
FEW_HOSTS = 2
LOOK_LATER_MS = 200
#: Work on the store that is no run of a job does not wait for a place of an executor.
ERRAND_PLACES = 4
#: A row that is younger than its definition by no more than this starts where the definition does.
JUST_PINNED_MS = 120_000
#: Late ticks of many jobs after a long time without owner are started this far apart.
STAGGER_SECONDS = 0.1


@dataclass
class Plan:
    """What the owner of this term knows of one job."""

    job: EffectiveJob
    key: ClaimKey
    row: ClaimRow | None = None
    attempting: bool = False
    local_runs: set[str] = field(default_factory=set)
    retry_at: float = 0.0
    failures: int = 0
    held_from: int | None = None
    full_since: int | None = None
    paused_recorded: int = 0
    looked: int | None = None
    held_slots: set[int] = field(default_factory=set)
    dropped: bool = False
    seen_claimed: bool = False


@dataclass(frozen=True)
class _Todo:
    """One thing to do for a plan: on a lane (a claim) or as an errand (a write that starts no run)."""

    what: str
    tick: int = 0
    stood_for: int = 1
    resolved: int = 0
    first: int = 0
    count: int = 0
    status: RunStatus = RunStatus.MISSED
    reason: str = ""
    detail: str | None = None
    late: bool = False


class Planner:
    """Decides, for each job of one term of ownership, what is next, and has it done.

    :param wake: makes the scheduler's loop call :meth:`step` now.
    :param trouble: is told of each failed call to the store and, with None, of each good one.
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
        trouble: Callable[[StoreError | None], None],
        away: Callable[[int, int], bool],
        call: Callable[[EffectiveJob], Callable[..., object]],
        rank: Callable[[str, str], int] = lambda job_id, group: 0,
        trigger_ended: Callable[[EffectiveJob], None] = lambda job: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._observer = observer
        self._claimant = claimant
        self._lanes = lanes
        self._errands = Lane("errand", ERRAND_PLACES)
        self._lease_seconds = lease_seconds
        self._wake = wake
        self._trouble = trouble
        self._away = away
        self._call = call
        self._rank = rank
        self._trigger_ended = trigger_ended
        self._lock = threading.RLock()
        self._plans: dict[str, Plan] = {}
        self._dirty: set[str] = set()
        self._waiting: set[str] = set()
        self._wake_at: dict[str, float] = {}
        self._stopped = threading.Event()
        self._began_ms = 0
        self._next_late = 0.0
        self.requests: dict[str, tuple[str, int]] = {}
        self.last_step = steady_seconds()

    # -- the jobs -------------------------------------------------------------------------------

    def begin(self, jobs: Sequence[EffectiveJob]) -> None:
        """Take over the jobs of the term; their rows are read in one go."""
        self._began_ms = self._clock.now_ms()
        keys = [job_key(job.id, job.definition.scope, self._claimant.host) for job in jobs]
        rows = self._store.ensure(keys) if keys else {}
        with self._lock:
            for job, key in zip(jobs, keys, strict=True):
                plan = Plan(job, key, rows.get(key))
                self._plans[job.id] = plan
                self._dirty.add(job.id)

    def update(self, job_id: str, job: EffectiveJob | None) -> None:
        """Take in a job that changed, is new, or (None) is gone."""
        with self._lock:
            plan = self._plans.get(job_id)
            if job is None or job.removed:
                if plan is not None:
                    plan.dropped = True
                    del self._plans[job_id]
                return
            key = job_key(job.id, job.definition.scope, self._claimant.host)
            if plan is None or plan.key != key:
                self._plans[job_id] = Plan(job, key)
            else:
                plan.job = job
                plan.looked = None
                plan.row = plan.row if plan.local_runs else None
            self._dirty.add(job_id)
        self._wake()

    def forget_rows(self) -> None:
        """Read every row again before it is next relied on."""
        with self._lock:
            for job_id, plan in self._plans.items():
                if not plan.local_runs:
                    plan.row = None
                self._dirty.add(job_id)
        self._wake()

    def plans(self) -> list[Plan]:
        """Return the plans of the term."""
        with self._lock:
            return list(self._plans.values())

    @property
    def running(self) -> int:
        """How many runs go on in this process."""
        with self._lock:
            return sum(len(plan.local_runs) for plan in self._plans.values())

    def seen_held(self, held: Sequence[ClaimRow]) -> None:
        """Compare the rows that are held, as a poll just saw them, with what is believed."""
        by_key: dict[ClaimKey, ClaimRow] = {}
        slots: dict[ClaimKey, set[int]] = {}
        for row in held:
            if row.key.slot:
                slots.setdefault(row.key.with_slot(0), set()).add(row.key.slot)
            else:
                by_key[row.key] = row
        stale = False
        with self._lock:
            for job_id, plan in self._plans.items():
                seen = by_key.get(plan.key)
                before, plan.held_slots = plan.held_slots, slots.get(plan.key, set())
                if plan.full_since is not None and plan.held_slots != before:
                    self._dirty.add(job_id)
                if plan.attempting or plan.row is None:
                    continue
                if seen is not None:
                    newer = seen.token > plan.row.token
                    if newer or (seen.token == plan.row.token and seen.holder != plan.row.holder):
                        plan.row = seen
                        self._dirty.add(job_id)
                elif plan.row.holder is not None and plan.row.holder not in plan.local_runs:
                    plan.row = None
                    self._dirty.add(job_id)
                    stale = True
        if stale or self._dirty:
            self._wake()

    def row_freed(self, key: ClaimKey) -> None:
        """Read a row again whose dead claim was just ended."""
        with self._lock:
            for job_id, plan in self._plans.items():
                if plan.key == key and not plan.attempting:
                    plan.row = None if not plan.local_runs or plan.row is None else plan.row
                    self._dirty.add(job_id)
        self._wake()

    def ask(self, request_id: str, job_id: str, revision: int) -> None:
        """Run a job by hand, as somebody asked for in the store."""
        with self._lock:
            self.requests[request_id] = (job_id, revision)
        self._wake()

    def drop_request(self, request_id: str) -> None:
        """Forget a request that somebody else took."""
        with self._lock:
            self.requests.pop(request_id, None)

    def stop(self) -> None:
        """Claim nothing more. Runs that go on are finished under their own claims."""
        self._stopped.set()

    # -- the loop -------------------------------------------------------------------------------

    def step(self) -> float:
        """Look at every job whose time has come.

        :returns: seconds until the next is due, at most 60.
        """
        self.last_step = steady_seconds()
        if self._stopped.is_set() or not self._clock.known:
            return 60.0
        now_steady = steady_seconds()
        unread: list[Plan] = []
        lookers: list[Plan] = []
        ready: list[tuple[int, Plan, _Todo]] = []
        with self._lock:
            now = self._clock.now_ms()
            due_ids = self._dirty | {job_id for job_id, at in self._wake_at.items() if at <= now_steady}
            self._dirty = set()
            for job_id in due_ids:
                self._wake_at.pop(job_id, None)
                plan = self._plans.get(job_id)
                if plan is None or plan.attempting:
                    continue
                if plan.retry_at > now_steady:
                    self._wake_at[job_id] = plan.retry_at
                    continue
                if plan.row is None:
                    plan.attempting = True
                    unread.append(plan)
                    continue
                self._consider(plan, now, now_steady, ready, lookers)
        if unread:
            self._errand(unread, lambda: self._read(unread))
        if lookers:
            self._errand(lookers, lambda: self._read(lookers, looked=True))
        ready.sort(key=lambda entry: entry[0])
        for _, plan, todo in ready:
            self._begin_todo(plan, todo)
        self._serve_requests()
        with self._lock:
            if self._dirty:
                return 0.0
            soonest = min(self._wake_at.values(), default=now_steady + 60.0)
        return max(0.0, min(60.0, soonest - steady_seconds()))

    def _at(self, plan: Plan, tick: int | None, now: int) -> None:
        """Look at the plan again when the store's clock reaches the instant."""
        if tick is not None:
            self._wake_at[plan.job.id] = steady_seconds() + max(0, tick - now) / 1000

    def _consider(
        self,
        plan: Plan,
        now: int,
        now_steady: float,
        ready: list[tuple[int, Plan, _Todo]],
        lookers: list[Plan],
    ) -> None:
        job, row = plan.job, plan.row
        assert row is not None
        if job.schedule is None or job.broken is not None or job.removed:
            return
        definition = job.definition
        lease_ms = int((definition.lease or self._lease_seconds) * 1000)
        if row.resolved > now + CLOCK_WENT_BACK_MS:
            ready.append((now, plan, _Todo("reset", resolved=now)))
            return
        fresh = never_claimed(row)
        plan.seen_claimed = plan.seen_claimed or not fresh
        # A row seen claimed before that is fresh again was forgotten by the store: what ran must not run again.
        if (
            row.resolved > job.floor
            and fresh
            and not plan.seen_claimed
            and 0 <= now - job.floor < JUST_PINNED_MS
        ):
            # The row was made a little after the definition was pinned: what fell due in between is due.
            ready.append((now, plan, _Todo("reset", resolved=job.floor)))
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
            if span is not None and (not job.paused or now - plan.paused_recorded >= PAUSED_RECORD_MS):
                plan.paused_recorded = now
                ready.append((now, plan, self._skip("paused", span)))
                return
            if job.paused:
                following = job.schedule.next_after(base)
                if following is not None:
                    self._at(plan, max(following, plan.paused_recorded + PAUSED_RECORD_MS) + 50, now)
                return
            base = max(base, job.resumed_at)
        if row.rerun_tick is not None:
            ready.append((row.rerun_tick, plan, _Todo("rerun", tick=row.rerun_tick)))
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
            self._at(plan, decision.wait_until, now)
            return
        if plan.looked != decision.tick:
            rank = self._rank(job.id, definition.group)
            if rank > 0:
                look_at = decision.tick + LOOK_LATER_MS * min(rank, 3)
                if now < look_at:
                    self._at(plan, look_at, now)
                    return
                plan.looked = decision.tick
                plan.attempting = True
                lookers.append(plan)
                return
        late = decision.stood_for > 0 and definition.grace is None and now - decision.tick > 60_000
        ready.append(
            (decision.tick, plan, _Todo("run", tick=decision.tick, stood_for=decision.stood_for, late=late))
        )

    @staticmethod
    def _skip(reason: str, span: object) -> _Todo:
        first, last, count = span.first, span.last, span.count  # type: ignore[attr-defined]
        return _Todo(
            "settle", resolved=last, first=first, count=count, status=RunStatus.SKIPPED, reason=reason
        )

    def _miss(self, plan: Plan, span: object, now: int) -> _Todo:
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
        return _Todo(
            "settle",
            resolved=last,
            first=first,
            count=count,
            status=status,
            reason=reason,
            detail=detail,
        )

    # -- doing it -------------------------------------------------------------------------------

    def _errand(self, plans: Sequence[Plan], work: Callable[[], object], *, forget: bool = False) -> None:
        def body() -> None:
            try:
                if not self._stopped.is_set():
                    work()
                    self._trouble(None)
                    for plan in plans:
                        plan.failures = 0
            except StoreError as error:
                self._trouble(error)
                for plan in plans:
                    self._back_off(plan)
            except Exception:
                logger.exception(
                    "work on job(s) %s failed", ", ".join(repr(plan.job.id) for plan in plans[:5])
                )
                for plan in plans:
                    self._back_off(plan)
            finally:
                self._free(plans, again=not forget)

        if not self._errands.submit(body, self._wake):
            with self._lock:
                for plan in plans:
                    plan.retry_at = steady_seconds() + 0.02
            self._free(plans)

    def _free(self, plans: Sequence[Plan], *, again: bool = True) -> None:
        with self._lock:
            for plan in plans:
                plan.attempting = False
                if again and self._plans.get(plan.job.id) is plan:
                    self._dirty.add(plan.job.id)

    def _back_off(self, plan: Plan) -> None:
        plan.failures += 1
        pause = min(2.0, 0.1 * 2 ** min(plan.failures, 6)) * random.uniform(0.75, 1.25)
        plan.retry_at = steady_seconds() + pause
        plan.row = None

    def _read(self, plans: Sequence[Plan], *, looked: bool = False) -> None:
        rows = self._store.ensure([plan.key for plan in plans])
        with self._lock:
            for plan in plans:
                plan.row = rows.get(plan.key)

    def _begin_todo(self, plan: Plan, todo: _Todo) -> None:
        with self._lock:
            if plan.attempting or plan.dropped or self._stopped.is_set():
                return
            plan.attempting = True
        if todo.what in ("settle", "reset"):
            self._errand([plan], lambda: self._settle(plan, todo))
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
        if not lane.submit(lambda: self._attempt(plan, todo), self._place_free):
            # A claim is made when a thread is free, not before: whoever has one first runs the tick.
            with self._lock:
                plan.attempting = False
                self._wake_at[plan.job.id] = steady_seconds() + 0.25
                self._waiting.add(plan.job.id)

    def _may_start_late(self, plan: Plan) -> bool:
        now = steady_seconds()
        with self._lock:
            if now >= self._next_late:
                self._next_late = now + STAGGER_SECONDS
                return True
            plan.attempting = False
            self._wake_at[plan.job.id] = self._next_late
        return False

    def _place_free(self) -> None:
        with self._lock:
            self._dirty |= self._waiting
            self._waiting = set()
        self._wake()

    def _settle(self, plan: Plan, todo: _Todo) -> None:
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

    def _attempt(self, plan: Plan, todo: _Todo) -> None:
        """Claim one tick and run it, on a lane's thread."""
        won: tuple[ClaimRow, float] | None = None
        try:
            won = self._claim(plan, todo)
            self._trouble(None)
            plan.failures = 0
        except StoreError as error:
            self._trouble(error)
            self._back_off(plan)
        finally:
            if won is None:
                self._free([plan])
        if won is not None:
            self._perform(plan, *won)

    def _request(self, plan: Plan, todo: _Todo, slot: int) -> ClaimRequest:
        definition = plan.job.definition
        assert plan.row is not None
        rerun = todo.what == "rerun"
        info = self._claimant.info(
            cause="rerun" if rerun else "schedule",
            scope=definition.scope,
            attempt=plan.row.rerun_attempt + 1 if rerun else 1,
            stood_for=todo.stood_for,
            **(
                {"rerun_lost": True, "max_attempts": definition.max_attempts} if definition.rerun_lost else {}
            ),
        )
        return ClaimRequest(
            holder=new_id(),
            lease_ms=int((definition.lease or self._lease_seconds) * 1000),
            tick=todo.tick,
            seen_resolved=None if rerun else plan.row.resolved,
            rerun=rerun,
            slot=slot,
            info=info,
        )

    def _claim(self, plan: Plan, todo: _Todo) -> tuple[ClaimRow, float] | None:
        """Try to take a tick.

        :returns: the row as claimed and when the claim was sent; None when it is not ours.
        """
        if self._stopped.is_set() or plan.dropped or plan.row is None:
            return None
        definition = plan.job.definition
        slots = range(1, definition.max_instances + 1) if definition.max_instances > 1 else (0,)
        free = [slot for slot in slots if slot not in plan.held_slots] or list(slots)
        for slot in free:
            sent = steady_seconds()
            outcome = self._store.claim(plan.key, self._request(plan, todo, slot))
            self._clock.sync(outcome.now, sent, steady_seconds())
            if outcome.won:
                self._took(plan, todo, outcome.row)
                return outcome.row, sent
            if not self._still_open(plan, todo, outcome):
                break
        self._refused(plan, todo, outcome)
        return None

    def _took(self, plan: Plan, todo: _Todo | None, row: ClaimRow) -> None:
        """Take in that this process holds the row, or one of its slots."""
        assert row.holder is not None
        with self._lock:
            plan.local_runs.add(row.holder)
            plan.attempting = False
            if not row.key.slot:
                plan.row = row
                return
            plan.held_slots.add(row.key.slot)
            if todo is not None and plan.row is not None:
                settled = plan.row.resolved if todo.what == "rerun" else todo.tick
                plan.row = replace(plan.row, resolved=settled, token=row.token, rerun_tick=None, streak=None)
            self._dirty.add(plan.job.id)
        # A further run may follow at once. Otherwise the loop is not woken: nothing delays the job's start.
        self._wake()

    def _perform(self, plan: Plan, row: ClaimRow, sent: float, *, by_hand: bool = False) -> None:
        """Run what was claimed, on this thread."""
        job = plan.job
        definition = job.definition
        run_id = row.holder
        assert run_id is not None

        def freed(left: ClaimRow | None) -> None:
            with self._lock:
                plan.local_runs.discard(run_id)
                if row.key.slot:
                    plan.held_slots.discard(row.key.slot)
                    if left is None:
                        plan.row = None
                elif plan.row is not None and plan.row.holder == run_id:
                    plan.row = left
                self._dirty.add(job.id)
            self._wake()

        delay = None
        if definition.jitter and not by_hand:
            seconds = random.uniform(0, definition.jitter)

            def delay() -> None:
                self._stopped.wait(seconds)

        self._runner.perform(
            row,
            self._call(job),
            definition.args,
            definition.kwargs,
            sent=sent,
            lease_seconds=definition.lease or self._lease_seconds,
            max_runtime=definition.max_runtime,
            schedule=job.schedule if definition.max_instances == 1 and not by_hand else None,
            delay=delay,
            freed=freed,
        )

    @staticmethod
    def _still_open(plan: Plan, todo: _Todo, outcome: ClaimOutcome) -> bool:
        """Tell whether only the slot can have been the reason of a refusal."""
        assert plan.row is not None
        main = outcome.row
        if todo.what == "rerun":
            return main.rerun_tick == todo.tick and main.holder is None
        return (
            main.resolved == plan.row.resolved
            and main.holder is None
            and main.rerun_tick is None
            and todo.tick <= outcome.now
            and main.hold_until <= outcome.now
        )

    def _refused(self, plan: Plan, todo: _Todo, outcome: ClaimOutcome) -> None:
        row = outcome.row
        still_open = self._still_open(plan, todo, outcome)
        plan.row = row
        if todo.what == "run" and todo.tick > outcome.now and row.resolved < todo.tick:
            # An early timer, or a host whose clock runs ahead: the store has not reached the tick.
            plan.retry_at = steady_seconds() + (todo.tick - outcome.now) / 1000
        elif still_open and plan.job.definition.max_instances > 1:
            plan.full_since = outcome.now
            plan.held_slots = set(range(1, plan.job.definition.max_instances + 1))
        elif still_open or row.hold_until > outcome.now:
            plan.retry_at = steady_seconds() + random.uniform(0.02, 0.08)

    # -- runs by hand that an owner was asked for ---------------------------------------------------

    def _serve_requests(self) -> None:
        with self._lock:
            waiting = list(self.requests.items())
        for request_id, (job_id, revision) in waiting:
            with self._lock:
                plan = self._plans.get(job_id)
                if plan is None or plan.job.broken is not None:
                    self.requests.pop(request_id, None)
                    continue
                held = plan.row is None or (
                    plan.row.holder is not None and plan.job.definition.max_instances == 1
                )
                if plan.attempting or held or plan.retry_at > steady_seconds():
                    continue
                plan.attempting = True
            lane = self._lanes.get(plan.job.definition.executor, self._lanes["default"])
            if not lane.submit(partial(self._by_hand, plan, request_id, revision), self._place_free):
                with self._lock:
                    plan.attempting = False
                    self._waiting.add(plan.job.id)

    def _by_hand(self, plan: Plan, request_id: str, revision: int) -> None:
        """Claim a job by hand for a request, take the request, and run it, on a lane's thread."""
        won: tuple[ClaimRow, float] | None = None
        try:
            won = self._claim_by_hand(plan, request_id, revision)
            self._trouble(None)
        except StoreError as error:
            self._trouble(error)
            self._back_off(plan)
        finally:
            if won is None:
                self._free([plan])
        if won is not None:
            self._perform(plan, *won, by_hand=True)

    def _claim_by_hand(self, plan: Plan, request_id: str, revision: int) -> tuple[ClaimRow, float] | None:
        if self._stopped.is_set() or plan.dropped:
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
        taken = self._store.delete("request", request_id, expect=revision)
        self.drop_request(request_id)
        if not taken:
            # Another owner took the request first: give the claim back, nothing happened.
            self._store.release(row.key, row.holder, row.token)
            plan.row = None
            return None
        self._took(plan, None, row)
        return row, sent
