"""Leases when threads die, answers are lost or late, and holders stand still between any two steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob import LeaseLostError, LockHeldError, current_run, lease_lost, run_overran
from flask_singlejob.clock import steady_seconds
from flask_singlejob.errors import StoreError
from flask_singlejob.lease import Keeper, Lease
from flask_singlejob.records import ClaimKey, ClaimRequest, ClaimRow, RunStatus, new_id
from tests.unit.rig import Host, SteppedClock, TroubledStore, hosts_on, wait_until

LOCK = ClaimKey("lock", "import")


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore(clock=SteppedClock())


def take(store: TroubledStore, keeper: Keeper, *, lease_seconds: float = 0.6, **options: Any) -> Lease:
    """Take the lock in a keeper's care."""
    sent = steady_seconds()
    outcome = store.claim(LOCK, ClaimRequest(holder=new_id(), lease_ms=int(lease_seconds * 1000)))
    assert outcome.won
    holder = outcome.row.holder
    assert holder is not None
    return keeper.hold(LOCK, holder, outcome.row.token, lease_seconds=lease_seconds, sent=sent, **options)


def row(store: TroubledStore, key: ClaimKey = LOCK) -> ClaimRow:
    return store.ensure([key])[key]


# -- renewing -------------------------------------------------------------------------------------


def test_a_renewal_that_raises_once_is_tried_again_before_the_lease_ends(store: TroubledStore) -> None:
    keeper = Keeper(lambda: store)
    lost: list[Lease] = []
    lease = take(store, keeper, lease_seconds=1.5, on_lost=lost.append)
    token = lease.token

    def once(found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        del store.around["renew"]
        raise StoreError("the store is away for a moment, as the test wants it")

    store.around["renew"] = once
    end = steady_seconds() + 3.0
    while steady_seconds() < end:
        lease.check()
        assert row(store).token == token
        threading.Event().wait(0.05)
    assert keeper.failed_renewals == 1
    assert lost == []
    assert keeper.finish(lease)


def test_a_renewal_slower_than_the_lease_loses_it_and_the_holder_is_told(store: TroubledStore) -> None:
    keeper = Keeper(lambda: store)
    go_on = threading.Event()
    lost = threading.Event()
    lease = take(store, keeper, on_lost=lambda lease: lost.set())

    def slow(found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        go_on.wait(20)
        return found(*args, **kwargs)

    store.around["renew"] = slow
    wait_until(lambda: lease.lost, "the holder knows without an answer")
    with pytest.raises(LeaseLostError, match=r"lock 'import' \(token \d+\) is lost"):
        lease.check()
    go_on.set()
    assert lost.wait(20)
    assert not keeper.finish(lease)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("killed", ["by an exception that is none of Exception's", "in silence"])
def test_leases_are_renewed_on_although_the_keepers_thread_was_killed(
    store: TroubledStore, killed: str, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Keeper(lambda: store)
    lease = take(store, keeper, lease_seconds=3.0)
    thread = keeper._thread
    assert thread is not None
    if killed == "in silence":
        keeper._thread = threading.Thread(target=lambda: None)
        keeper.look_after()
    else:

        def end_thread(found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            del store.around["renew"]
            raise SystemExit

        store.around["renew"] = end_thread
        thread.join(20)
    wait_until(lambda: keeper._thread not in (thread, None), "another thread renews")
    assert "another one" in caplog.text
    first = row(store).expires or 0
    wait_until(lambda: (row(store).expires or 0) > first + 500, "the lease was renewed")
    lease.check()
    assert keeper.finish(lease)


def test_an_extension_is_not_shortened_by_a_renewal(store: TroubledStore) -> None:
    keeper = Keeper(lambda: store)
    lease = take(store, keeper)
    lease.extend(60)
    extended = row(store).expires or 0
    assert extended > store.poll().now + 59_000
    keeper.renew(lease)
    assert (row(store).expires or 0) >= extended
    assert keeper.finish(lease)
    with pytest.raises(ValueError, match="positive number"):
        lease.extend(0)


def test_a_lease_is_counted_from_before_its_request_went_out(store: TroubledStore) -> None:
    keeper = Keeper(lambda: store, idle_seconds=0)
    sent = steady_seconds() - 10
    outcome = store.claim(LOCK, ClaimRequest(holder=new_id(), lease_ms=8_000))
    assert outcome.row.holder is not None
    store.failing |= {"renew"}
    lease = keeper.hold(LOCK, outcome.row.holder, outcome.row.token, lease_seconds=8.0, sent=sent)
    # In the store it has 8 s; the answer took 10, so here it is over.
    assert lease.lost


# -- stale holders ----------------------------------------------------------------------------------


def test_a_holder_frozen_between_claim_and_anything_else_writes_nothing_afterwards(
    store: TroubledStore,
) -> None:
    clock = store.clock
    assert isinstance(clock, SteppedClock)
    stale = store.claim(LOCK, ClaimRequest(holder=new_id(), lease_ms=1_000))
    holder, token = stale.row.holder or "", stale.row.token
    clock.ahead_ms += 2_000
    before = row(store)
    # Nobody took it yet, and still nothing is his to write.
    assert store.renew(LOCK, holder, token, 1_000) is None
    assert not store.release(LOCK, holder, token)
    assert row(store) == before
    assert store.expire(LOCK, holder, token)
    newer = store.claim(LOCK, ClaimRequest(holder=new_id(), lease_ms=1_000))
    assert newer.won
    assert newer.row.token > token
    writes: list[Callable[[], bool]] = [
        lambda: store.renew(LOCK, holder, token, 1_000) is None,
        lambda: not store.release(LOCK, holder, token, done=True),
        lambda: not store.expire(LOCK, holder, token, forced=True),
        # By the new token too: who holds it is part of every write.
        lambda: store.renew(LOCK, holder, newer.row.token, 1_000) is None,
        lambda: not store.release(LOCK, newer.row.holder or "", token),
    ]
    for write in writes:
        assert write()
        assert row(store) == newer.row


@pytest.mark.parametrize("step", ["claim", "renew", "release"])
def test_a_host_that_stands_still_in_a_step_for_two_leases_harms_no_later_run(
    store: TroubledStore, tmp_path: Path, step: str
) -> None:
    """One host is stopped just before or after a step; the other one runs on, and what it wrote stays."""
    stuck, go_on = threading.Event(), threading.Event()
    held: list[str] = []
    ran: list[tuple[str, int, int]] = []
    with hosts_on(store, tmp_path) as make:
        hosts = [make(name, SINGLEJOB_LEASE=1) for name in ("one", "two")]
        for host in hosts:

            @host.jobs.task("interval", seconds=0.5, id="job")
            def job() -> None:
                tick = int(current_run.scheduled_at.timestamp() * 1000)
                ran.append((str(current_run.host), current_run.token or 0, tick))
                if step == "renew" and not held:
                    go_on.wait(60)

        def stand_still(
            verb: str, found: Callable[..., Any], key: ClaimKey, *args: Any, **kwargs: Any
        ) -> Any:
            holder = args[0] if verb != "claim" else args[0].holder
            if held or verb != step:
                if holder in held:
                    go_on.wait(60)
                return found(key, *args, **kwargs)
            answer = found(key, *args, **kwargs) if verb == "claim" else None
            if answer is not None and not answer.won:
                return answer
            held.append(holder)
            stuck.set()
            go_on.wait(60)
            return answer if verb == "claim" else found(key, *args, **kwargs)

        one, two = hosts
        one.start()
        for verb in ("claim", "renew", "release"):
            store.around[verb] = partial(stand_still, verb)
        wait_until(stuck.is_set, "host one stands still")
        token = row(store, ClaimKey("job", "job")).token
        two.start()
        wait_until(lambda: [run for run in ran if run[0] == "two"], "the other host runs the job", seconds=30)
        lost = wait_until(lambda: store.runs("job", status=[RunStatus.LOST]), "the lost run is recorded")
        after = row(store, ClaimKey("job", "job"))
        go_on.set()
        seen = len(ran)
        wait_until(lambda: len(ran) >= seen + 3, "ticks go on")
    assert [run.id for run in lost] == held
    assert after.token > token
    tokens = [later for _, later, _ in ran]
    assert tokens == sorted(set(tokens))
    # A claim whose answer comes after its lease begins nothing any more.
    assert (token in tokens) == (step != "claim")
    ticks = [tick for _, _, tick in ran]
    assert len(ticks) == len(set(ticks))
    # Its run is in the history once, as lost, and never as anything else.
    assert [str(run.status) for run in store.runs("job", limit=10_000) if run.id == held[0]] == ["lost"]


def test_a_job_that_kept_the_processor_longer_than_its_lease_is_recorded_as_lost_by_its_own_end(
    store: TroubledStore, tmp_path: Path
) -> None:
    """As with a thread that never lets the GIL go: no renewal got through, nobody else was there to see it."""
    heard: list[str] = []

    def on_lost(app: Any, *, run: Any, **extra: Any) -> None:
        heard.append(run.id)

    clock = store.clock
    assert isinstance(clock, SteppedClock)
    with hosts_on(store, tmp_path) as make, lease_lost.connected_to(on_lost):
        host = make("one", SINGLEJOB_LEASE=30)

        @host.jobs.task("date", id="job")
        def job() -> None:
            clock.ahead_ms += 31_000

        host.start()
        runs = wait_until(lambda: store.runs("job"), "the run is recorded")
        wait_until(lambda: heard, "the loss is told")
    assert [(str(run.status), run.reason) for run in runs] == [("lost", "lease_ended")]
    assert heard == [runs[0].id]


# -- unlock -----------------------------------------------------------------------------------------


def test_unlock_grows_the_token_and_the_former_holder_writes_nothing_back(
    store: TroubledStore, tmp_path: Path
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    told: list[bool] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one", SINGLEJOB_LEASE=1)

        @host.jobs.task("date", id="job")
        def job() -> None:
            begun.set()
            go_on.wait(20)
            with suppress(LeaseLostError):
                current_run.check()
                told.append(False)
                return
            told.append(True)

        host.start()
        assert begun.wait(20)
        key = ClaimKey("job", "job")
        before = row(store, key)
        assert [freed.holder for freed in host.engine.manager.unlock("job")] == [before.holder]
        after = row(store, key)
        assert after.holder is None
        assert after.token > before.token
        again = store.claim(key, ClaimRequest(holder=new_id(), lease_ms=60_000))
        assert again.won
        assert again.row.token > after.token
        wait_until(lambda: not host.engine.keeper.held, "the holder was told by its next renewal")
        go_on.set()
        wait_until(lambda: told, "the job ended")
        wait_until(
            lambda: host.engine.term and host.engine.term.planner.running == 0, "its end was dealt with"
        )
        kept = row(store, key)
    assert told == [True]
    assert (kept.holder, kept.token) == (again.row.holder, again.row.token)
    assert [(str(run.status), run.reason) for run in store.runs("job")] == [("lost", "unlocked")]


# -- answers that are lost -----------------------------------------------------------------------------


@pytest.mark.parametrize("instances", [1, 2])
def test_a_claim_whose_answer_was_lost_is_gone_on_with_and_its_tick_runs_once(
    store: TroubledStore, tmp_path: Path, instances: int
) -> None:
    ticks: list[int] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("date", id="job", max_instances=instances)
        def job() -> None:
            ticks.append(int(current_run.scheduled_at.timestamp() * 1000))

        store.lose_answers("claim")
        host.start()
        wait_until(lambda: store.runs("job"), "the run is recorded")
    assert len(ticks) == 1
    assert [str(run.status) for run in store.runs("job")] == ["succeeded"]
    assert [run.cause for run in store.runs("job")] == ["schedule"]


def test_a_tick_whose_claim_was_lost_for_longer_than_its_lease_runs_all_the_same(
    store: TroubledStore, tmp_path: Path
) -> None:
    ticks: list[int] = []
    clock = store.clock
    assert isinstance(clock, SteppedClock)
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("date", id="job")
        def job() -> None:
            ticks.append(int(current_run.scheduled_at.timestamp() * 1000))

        def lose(found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            del store.around["claim"]
            found(*args, **kwargs)
            clock.ahead_ms += 40_000
            raise StoreError("the answer was lost, as the test wants it")

        store.around["claim"] = lose
        host.start()
        wait_until(lambda: store.runs("job"), "the run is recorded")
    assert len(ticks) == 1
    assert [str(run.status) for run in store.runs("job")] == ["succeeded"]


def test_a_release_whose_answer_was_lost_is_no_lost_lease(store: TroubledStore, tmp_path: Path) -> None:
    heard: list[str] = []

    def on_lost(app: Any, *, run: Any, **extra: Any) -> None:
        heard.append(run.id)

    with hosts_on(store, tmp_path) as make, lease_lost.connected_to(on_lost):
        host = make("one")

        @host.jobs.task("date", id="job")
        def job() -> None:
            store.lose_answers("release")

        host.start()
        wait_until(lambda: store.runs("job"), "the run is recorded")
        wait_until(lambda: not host.engine.keeper.held, "its end was dealt with")
        store.lose_answers("release")
        with host.jobs.lock("import"):
            pass
        wait_until(lambda: not host.engine.keeper.held, "the lock's end was dealt with")
    assert heard == []
    assert [str(run.status) for run in store.runs("job")] == ["succeeded"]


# -- hung and overlong jobs ------------------------------------------------------------------------------


def test_an_overlong_job_is_free_for_its_next_tick_after_max_runtime(
    store: TroubledStore, tmp_path: Path
) -> None:
    overran: list[Any] = []
    go_on = threading.Event()
    ticks: list[int] = []
    errors: list[str] = []

    def on_overran(app: Any, *, run: Any, **extra: Any) -> None:
        overran.append(run)

    with hosts_on(store, tmp_path) as make, run_overran.connected_to(on_overran):
        host = make("one")

        @host.jobs.task("interval", seconds=0.5, id="job", max_runtime=0.7)
        def job() -> None:
            ticks.append(int(current_run.scheduled_at.timestamp() * 1000))
            if len(ticks) == 1:
                go_on.wait(20)
                try:
                    current_run.check()
                except LeaseLostError as error:
                    errors.append(str(error))

        host.start()
        wait_until(lambda: len(ticks) >= 3, "later ticks run although the first run hangs")
        go_on.set()
        wait_until(lambda: errors, "the run is told")
        (first,) = [run for run in store.runs("job") if run.reason == "max_runtime"]
        (skipped,) = store.runs("job", status=[RunStatus.SKIPPED])
    assert len(overran) == 1
    assert first.status is RunStatus.FAILED
    assert int(first.scheduled_at.timestamp() * 1000) == ticks[0]
    assert skipped.reason == "held"
    assert skipped.count >= 1
    assert "max_runtime of 0.7 s" in errors[0]
    assert len(set(ticks)) == len(ticks)


def test_an_overlong_run_whose_end_the_store_does_not_take_at_once_is_recorded_later(
    store: TroubledStore, tmp_path: Path
) -> None:
    go_on = threading.Event()
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("date", id="job", max_runtime=0.3)
        def job() -> None:
            store.failing |= {"release"}
            go_on.wait(20)

        host.start()
        wait_until(lambda: store.calls.count("release") >= 2, "its end is tried again")
        store.failing.clear()
        runs = wait_until(lambda: store.runs("job"), "its end is recorded")
        go_on.set()
    assert [(str(run.status), run.reason) for run in runs] == [("failed", "max_runtime")]


def test_a_hung_job_harms_no_other(store: TroubledStore, tmp_path: Path) -> None:
    go_on = threading.Event()
    ran: list[str] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.2, id="hung")
        def hung() -> None:
            ran.append("hung")
            go_on.wait(20)

        @host.jobs.task("interval", seconds=0.2, id="other")
        def other() -> None:
            ran.append("other")

        host.start()
        wait_until(lambda: ran.count("other") >= 6, "the other job goes on")
        with pytest.raises(LockHeldError, match="job 'hung' is held by host 'one'"):
            host.jobs.run_job("hung")
        go_on.set()
        skipped = wait_until(lambda: store.runs("hung", status=[RunStatus.SKIPPED]), "the skipped record")
        host.stop()
    assert skipped[-1].reason == "held"
    assert skipped[-1].count >= 3


# -- code that cannot be called -----------------------------------------------------------------------------


def test_a_job_that_cannot_even_be_called_fails_and_runs_at_its_next_tick(
    store: TroubledStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.task("interval", seconds=0.3, id="job")
        def job() -> None: ...

        def refuse(function: Any) -> Any:
            raise RuntimeError("this app cannot call it")

        host.jobs.init_app(host.app)
        monkeypatch.setattr(host.app, "ensure_sync", refuse)
        _go(host)
        wait_until(lambda: len(store.runs("job", status=[RunStatus.FAILED])) >= 2, "it fails twice")
    assert "this app cannot call it" in (store.runs("job", status=[RunStatus.FAILED])[0].error or "")


def _go(host: Host) -> None:
    host.jobs.start(force=True)
    wait_until(lambda: host.engine.term is not None and host.engine.term.loaded, "it schedules")
