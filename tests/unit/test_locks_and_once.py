"""lock(), single_task and once in an app: who gets it, who waits, and what becomes of it in trouble."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flask_singlejob import ConfigError, LockHeldError, single_task
from flask_singlejob.clock import steady_seconds
from flask_singlejob.records import ClaimKey
from tests.unit.rig import Host, SteppedClock, TroubledStore, claim_as_stranger, hosts_on, wait_until


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore(clock=SteppedClock())


@pytest.fixture
def clock(store: TroubledStore) -> SteppedClock:
    assert isinstance(store.clock, SteppedClock)
    return store.clock


def at_once(count: int, work: Callable[[int], object]) -> None:
    """Do the work in so many threads that begin together."""
    barrier = threading.Barrier(count)

    def body(number: int) -> None:
        barrier.wait(20)
        work(number)

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def idle(host: Host) -> Host:
    """Return a host that runs no schedule."""
    host.jobs.init_app(host.app)
    return host


# -- lock() ---------------------------------------------------------------------------------------


def test_a_lock_nested_in_one_thread_is_refused_at_once_instead_of_a_deadlock(
    store: TroubledStore, tmp_path: Path
) -> None:
    with hosts_on(store, tmp_path) as make:
        jobs = idle(make("one")).jobs
        began = steady_seconds()
        with jobs.lock("import"), pytest.raises(LockHeldError, match="lock 'import' is held by host 'one'"):
            jobs.lock("import", wait=60).__enter__()
        assert steady_seconds() - began < 30
        with jobs.lock("import"):
            pass


def test_a_waiting_lock_gets_it_when_it_is_given_back(store: TroubledStore, tmp_path: Path) -> None:
    tokens: list[int] = []
    with hosts_on(store, tmp_path) as make:
        one, two = idle(make("one")).jobs, idle(make("two")).jobs

        def wait() -> None:
            with two.lock("import", wait=20) as lease:
                tokens.append(lease.token)

        waiter = threading.Thread(target=wait, daemon=True)
        with one.lock("import") as lease:
            tokens.append(lease.token)
            waiter.start()
            wait_until(lambda: store.calls.count("claim") >= 3, "the other one tries")
            assert len(tokens) == 1
        waiter.join(20)
        with pytest.raises(LockHeldError), one.lock("import"), two.lock("import", wait=0.3):
            pass
    assert len(tokens) == 2
    assert tokens[1] > tokens[0]


def test_a_lock_whose_holder_is_gone_is_free_after_its_lease(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    key = ClaimKey("lock", "import")
    taken = claim_as_stranger(store, key, tick=None, lease_ms=30_000)
    with hosts_on(store, tmp_path) as make:
        jobs = idle(make("one")).jobs
        with pytest.raises(LockHeldError, match=r"held by host 'elsewhere', pid 1, since 20"):
            jobs.lock("import").__enter__()
        clock.ahead_ms += 30_001
        with jobs.lock("import") as lease:
            assert lease.token > taken.row.token


# -- single_task ------------------------------------------------------------------------------------


def test_a_single_task_runs_once_where_many_call_it_and_gives_otherwise_elsewhere(
    store: TroubledStore, tmp_path: Path
) -> None:
    go_on = threading.Event()
    answers: list[str] = []
    with hosts_on(store, tmp_path) as make:
        hosts = [idle(make(name)) for name in ("one", "two")]

        @single_task("import", otherwise=lambda number: f"{number} elsewhere")
        def task(number: int) -> str:
            go_on.wait(20)
            return "here"

        def call(number: int) -> None:
            with hosts[number % 2].app.app_context():
                answers.append(task(number))
            if len(answers) == 7:
                go_on.set()

        at_once(8, call)
    assert answers.count("here") == 1
    assert len([answer for answer in answers if answer.endswith("elsewhere")]) == 7


def test_hold_at_least_keeps_a_short_task_from_running_twice_by_the_stores_clock(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    calls: list[str] = []
    with hosts_on(store, tmp_path) as make:
        one, two = idle(make("one")), idle(make("two"))

        @single_task("short", hold_at_least=50, otherwise="elsewhere")
        def short() -> str:
            calls.append("ran")
            return "here"

        def on(host: Host) -> str:
            with host.app.app_context():
                return str(short())

        assert on(one) == "here"
        # Another host whose clock says it is time comes later, when the task has long been done.
        assert on(two) == "elsewhere"
        clock.ahead_ms += 49_000
        assert on(two) == "elsewhere"
        clock.ahead_ms += 1_500
        assert on(two) == "here"
    assert len(calls) == 2


def test_a_single_task_around_a_view_answers_with_otherwise_while_it_runs(
    store: TroubledStore, tmp_path: Path
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    with hosts_on(store, tmp_path) as make:
        host = idle(make("one"))

        @host.app.post("/import")
        @single_task("import", otherwise=lambda: ("it runs already", 409))
        def view() -> tuple[str, int]:
            inside.set()
            go_on.wait(20)
            return "done", 200

        first: list[int] = []
        thread = threading.Thread(
            target=lambda: first.append(host.app.test_client().post("/import").status_code), daemon=True
        )
        thread.start()
        assert inside.wait(20)
        answer = host.app.test_client().post("/import")
        assert (answer.status_code, answer.text) == (409, "it runs already")
        go_on.set()
        thread.join(20)
    assert first == [200]


def test_an_async_single_task_holds_its_lock_until_it_is_done(store: TroubledStore, tmp_path: Path) -> None:
    async def elsewhere() -> str:
        return "elsewhere"

    with hosts_on(store, tmp_path) as make:
        host = idle(make("one"))

        @single_task("import", otherwise=elsewhere)
        async def task() -> str:
            await asyncio.sleep(0.05)
            return "here"

        async def both() -> list[str]:
            return list(await asyncio.gather(task(), task()))

        with host.app.app_context():
            assert sorted(asyncio.run(both())) == ["elsewhere", "here"]
            assert asyncio.run(task()) == "here"


def test_a_single_task_that_raises_gives_its_lock_back(store: TroubledStore, tmp_path: Path) -> None:
    with hosts_on(store, tmp_path) as make:
        host = idle(make("one"))

        @single_task("import", otherwise="elsewhere")
        def task() -> None:
            raise ValueError("it failed")

        with host.app.app_context():
            for _ in range(2):
                with pytest.raises(ValueError, match="it failed"):
                    task()


def test_a_single_task_with_neither_store_nor_app_says_what_to_give() -> None:
    @single_task("import")
    def task() -> None: ...

    with pytest.raises(ConfigError, match=r"single_task\('import'\) has no store: give store="):
        task()


# -- once ---------------------------------------------------------------------------------------------


def test_a_once_only_task_succeeds_once_among_sixteen_callers_on_two_hosts(
    store: TroubledStore, tmp_path: Path
) -> None:
    ran: list[str] = []
    results: list[bool] = []
    with hosts_on(store, tmp_path) as make:
        calls = []
        for number in range(16):
            host = idle(make(f"host{number % 2}-worker{number}"))

            @host.jobs.once("seed")
            def seed(name: str = host.name) -> None:
                ran.append(name)
                threading.Event().wait(0.1)

            calls.append((host, seed))

        def call(number: int) -> None:
            host, seed = calls[number]
            with host.app.app_context():
                results.append(seed())

        at_once(16, call)
    assert len(ran) == 1
    assert sorted(results) == [False] * 15 + [True]


def test_a_once_only_task_runs_again_for_another_version_only(store: TroubledStore, tmp_path: Path) -> None:
    ran: list[str] = []
    with hosts_on(store, tmp_path) as make:
        for release in ("a", "a", "b"):
            host = make(f"host-{release}-{len(ran)}-{store.calls.count('claim')}")
            host.app.config["RELEASE"] = release

            @host.jobs.once("migrate", version=lambda app: app.config["RELEASE"])
            def migrate() -> None:
                ran.append(release)  # noqa: B023 - called in the loop's own turn

            idle(host)
            with host.app.app_context():
                migrate()
    assert ran == ["a", "b"]


def test_callers_of_a_once_only_task_wait_and_then_are_told_who_has_it(
    store: TroubledStore, tmp_path: Path
) -> None:
    claim_as_stranger(store, ClaimKey("once", "seed"), tick=None, lease_ms=60_000)
    with hosts_on(store, tmp_path) as make:
        host = idle(make("one"))

        @host.jobs.once("seed", wait=0.3)
        def seed() -> None: ...

        began = steady_seconds()
        with host.app.app_context(), pytest.raises(LockHeldError, match="held by host 'elsewhere'"):
            seed()
        assert steady_seconds() - began >= 0.3


def test_a_once_only_task_that_failed_is_tried_again_by_the_lone_owner_with_back_off(
    store: TroubledStore, tmp_path: Path
) -> None:
    began: list[float] = []
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.once("seed")
        def seed() -> None:
            began.append(steady_seconds())
            if len(began) < 3:
                raise ValueError("not yet")

        host.start()
        key = ClaimKey("once", "seed")
        wait_until(lambda: store.ensure([key])[key].resolved > 0, "it is done")
        with host.app.app_context():
            assert seed() is False
    assert len(began) == 3
    assert began[2] - began[1] > began[1] - began[0] > 0.5


def test_a_once_only_task_whose_process_died_is_done_by_the_owner_after_the_lease(
    store: TroubledStore, clock: SteppedClock, tmp_path: Path
) -> None:
    ran: list[bool] = []
    claim_as_stranger(store, ClaimKey("once", "seed"), tick=None, lease_ms=30_000, cause="once")
    with hosts_on(store, tmp_path) as make:
        host = make("one")

        @host.jobs.once("seed", wait=0)
        def seed() -> None:
            ran.append(True)

        host.start()
        threading.Event().wait(0.3)
        assert ran == []
        clock.ahead_ms += 31_000
        wait_until(lambda: ran, "the owner does it")


def test_requests_are_answered_503_until_the_task_before_them_is_done(
    store: TroubledStore, tmp_path: Path
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    with ExitStack() as stack:
        make = stack.enter_context(hosts_on(store, tmp_path))
        hosts = [make(name) for name in ("one", "two")]
        clients: list[Any] = []
        for host in hosts:

            @host.jobs.once("migrate", before_requests=True)
            def migrate() -> None:
                inside.set()
                go_on.wait(20)

            @host.app.get("/")
            def page() -> str:
                return "hello"

            host.jobs.init_app(host.app)
            clients.append(host.app.test_client())
        hosts[0].start()
        assert inside.wait(20)
        for client in clients:
            answer = client.get("/")
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) >= 1
        go_on.set()
        for client in clients:
            wait_until(lambda client=client: client.get("/").status_code == 200, "requests are answered")  # type: ignore[misc]


def test_a_forgotten_task_is_run_again_by_a_living_owner(tmp_path: Path) -> None:
    store = TroubledStore(clock=SteppedClock())
    ran: list[str] = []
    with hosts_on(store, tmp_path) as make:
        host, other = make("one"), make("two")

        @host.jobs.once("seed")
        def seed() -> None:
            ran.append("seed")

        host.start()
        wait_until(lambda: ran, "the task has run")
        wait_until(lambda: store.rows(kind="once")[0].resolved, "it is known to be done")
        other.jobs.init_app(other.app)
        assert other.engine.once.forget("seed") == 1
        wait_until(lambda: len(ran) == 2, "the owner runs it again")
