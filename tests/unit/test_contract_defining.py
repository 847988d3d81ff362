"""What a job, a task or a lock is made of: options that meet, functions that cannot be meant, and whose they are."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from flask_singlejob import (
    ConfigError,
    JobDefinitionError,
    LockHeldError,
    SingleJob,
    current_run,
    single_task,
)
from flask_singlejob.definitions import Definition
from flask_singlejob.engine_access import engine_of
from flask_singlejob.stores.memory import MemoryStore


def work() -> None:
    """Do nothing."""


def pages() -> Iterator[int]:
    yield 1


async def pages_later() -> AsyncIterator[int]:
    yield 1


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Flask]:
    """Return what makes an app over a store of its own."""

    def make_app(name: str = "app", **config: Any) -> Flask:
        app = Flask(name, instance_path=str(tmp_path))
        app.config.update(TESTING=True, SINGLEJOB_STORE="memory://", **config)
        return app

    return make_app


def defined(app: Flask, id: str) -> Definition:
    engine = engine_of(app)
    assert engine is not None
    return engine.catalog.defined[id]


# -- the constructor ------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", ["app", 5, object()])
def test_what_is_neither_app_nor_scheduler_is_refused(junk: object, make: Callable[..., Flask]) -> None:
    with pytest.raises(ConfigError, match=r"takes an app"):
        SingleJob(junk)
    with pytest.raises(ConfigError, match=r"takes an app"):
        SingleJob(make(), scheduler=junk)


def test_two_apps_at_once_are_refused_with_the_cure(make: Callable[..., Flask]) -> None:
    with pytest.raises(ConfigError, match=r"init_app\(app\) with each"):
        SingleJob(make(), make())


# -- options and SCHEDULER_JOB_DEFAULTS -----------------------------------------------------------


def test_an_option_given_as_its_default_beats_scheduler_job_defaults(make: Callable[..., Flask]) -> None:
    other = {
        "scope": "host",
        "group": "g",
        "rerun_lost": True,
        "max_attempts": 5,
        "lease": 9,
        "max_runtime": 4,
        "catch_up": True,
    }
    jobs = SingleJob()
    jobs.task("interval", "silent", hours=1)(work)
    jobs.task(
        "interval",
        "told",
        hours=1,
        scope="cluster",
        group="default",
        rerun_lost=False,
        max_attempts=3,
        lease=None,
        max_runtime=None,
        catch_up=False,
    )(work)
    app = make(SCHEDULER_JOB_DEFAULTS=other)
    jobs.init_app(app)
    silent, told = defined(app, "silent"), defined(app, "told")
    assert (silent.scope, silent.group, silent.rerun_lost, silent.max_attempts) == ("host", "g", True, 5)
    assert (silent.lease, silent.max_runtime, silent.grace) == (9.0, 4.0, None)
    assert (told.scope, told.group, told.rerun_lost, told.max_attempts) == ("cluster", "default", False, 3)
    assert (told.lease, told.max_runtime, told.grace) == (None, None, "default")


@pytest.mark.parametrize("option", [{"max_attempts": 3.0}, {"rerun_lost": 0}, {"group": None}])
def test_what_only_equals_a_default_is_checked_like_anything_else(option: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError, match=next(iter(option))):
        SingleJob().task("interval", "x", hours=1, **option)(work)


def test_a_jobs_own_options_beat_a_catch_up_of_the_defaults(make: Callable[..., Flask]) -> None:
    app = make(SCHEDULER_JOB_DEFAULTS={"catch_up": True})
    jobs = SingleJob(app)
    jobs.add_job("late", work, trigger="interval", hours=1, misfire_grace_time=5)
    jobs.add_job("each", work, trigger="interval", hours=1, coalesce=False)
    assert (defined(app, "late").grace, defined(app, "late").coalesce) == (5, True)
    assert (defined(app, "each").grace, defined(app, "each").coalesce) == (None, False)


@pytest.mark.parametrize("other", [{"misfire_grace_time": 5}, {"coalesce": False}])
def test_defaults_that_contradict_each_other_are_refused(
    make: Callable[..., Flask], other: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=rf"SCHEDULER_JOB_DEFAULTS.*{next(iter(other))}"):
        SingleJob(make(SCHEDULER_JOB_DEFAULTS={"catch_up": True, **other}))


@pytest.mark.parametrize("lease", [86_401, 1e300, float("inf"), timedelta(days=2)])
def test_a_lease_that_would_block_for_ever_is_refused(lease: Any, make: Callable[..., Flask]) -> None:
    with pytest.raises(JobDefinitionError, match="lease must be at least 1 s and at most 86400 s"):
        SingleJob().task("interval", "x", hours=1, lease=lease)(work)
    with pytest.raises(ConfigError, match="lease must be seconds"):
        single_task("x", lease=lease)
    with pytest.raises(ConfigError, match="lease must be seconds"), SingleJob(make()).lock("x", lease=lease):
        pass


def test_an_executor_that_nobody_configured_is_refused_with_those_that_are(
    make: Callable[..., Flask],
) -> None:
    jobs = SingleJob()
    jobs.task("interval", "x", hours=1, executor="pool")(work)
    with pytest.raises(JobDefinitionError, match=r"'pool' \(known: default, other\)"):
        jobs.init_app(make(SCHEDULER_EXECUTORS={"other": {"type": "threadpool"}}))
    app = make(SCHEDULER_EXECUTORS={"pool": {"type": "threadpool"}})
    jobs.init_app(app)
    assert defined(app, "x").executor == "pool"


# -- functions ------------------------------------------------------------------------------------


def test_a_decorator_without_parentheses_is_refused_instead_of_defining_nothing() -> None:
    with pytest.raises(JobDefinitionError, match=r"write @jobs\.task"):
        SingleJob().task(work)
    with pytest.raises(ConfigError, match=r"the key of once\(\)"):
        SingleJob().once(work)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a lock's name"):
        single_task(work)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [pages, pages_later])
def test_a_generator_function_is_refused_since_a_call_of_it_runs_nothing(function: Any) -> None:
    with pytest.raises(JobDefinitionError, match="generator function"):
        SingleJob().task("interval", "x", hours=1)(function)
    with pytest.raises(ConfigError, match="generator function"):
        SingleJob().once("x")(function)
    with pytest.raises(ConfigError, match="generator function"):
        single_task("x")(function)


def test_one_function_may_be_several_jobs_also_when_it_is_nested(make: Callable[..., Flask]) -> None:
    app = make()
    jobs = SingleJob()

    def create() -> Callable[[], None]:
        def nested() -> None: ...

        jobs.init_app(app)
        jobs.add_job("one", nested, trigger="interval", hours=1)
        jobs.add_job("two", nested, trigger="interval", hours=2)
        jobs.task("interval", "three", hours=3)(nested)
        jobs.add_job("one", nested, trigger="interval", hours=4)
        return nested

    function = create()
    assert {defined(app, id).func for id in ("one", "two", "three")} == {function}
    assert sorted(job.id for job in jobs.get_jobs()) == ["one", "three", "two"]
    assert defined(app, "one").fields["seconds"] == 4 * 3600


def test_a_job_that_this_process_removed_comes_back_when_it_adds_it_again(make: Callable[..., Flask]) -> None:
    jobs, other = SingleJob(), SingleJob()
    app, another = (make(SINGLEJOB_CLUSTER="shared", SINGLEJOB_HOST_ID=name) for name in "ab")
    app.config["SINGLEJOB_STORE"] = another.config["SINGLEJOB_STORE"] = MemoryStore()
    jobs.init_app(app)
    other.init_app(another)
    for each in (jobs, other):
        each.add_job("x", work, trigger="interval", hours=1)
    jobs.remove_job("x")
    assert other.get_job("x") is None
    # Code that only says again what it said is no wish to undo another's removal.
    other.add_job("x", work, trigger="interval", hours=1)
    assert other.get_job("x") is None
    jobs.add_job("x", work, trigger="interval", hours=1)
    assert jobs.get_job("x") is not None
    assert other.get_job("x") is not None


def test_a_function_made_beside_its_singlejob_is_for_all_its_apps(make: Callable[..., Flask]) -> None:
    jobs = SingleJob()
    ran: list[str] = []

    @jobs.task("interval", "before", hours=1)
    def before() -> None:
        ran.append("before")

    class Shelf:
        @staticmethod
        def method() -> None:
            """Do nothing."""

    jobs.task("interval", "method", hours=1)(Shelf.method)

    @jobs.once("seed")
    def seed() -> None:
        ran.append("seed")

    apps = [make("a"), make("b")]
    for app in apps:
        jobs.init_app(app)

    @jobs.task("interval", "after", hours=1)
    def after() -> None:
        ran.append("after")

    for app in apps:
        with app.app_context():
            assert sorted(job.id for job in jobs.get_jobs()) == ["after", "before", "method"]
            jobs.run_job("before")
            jobs.run_job("after")
            assert seed() is True
            assert seed() is False
    assert sorted(ran) == sorted(["before", "after", "seed"] * 2)


def test_nested_functions_of_two_tests_may_have_one_name(make: Callable[..., Flask]) -> None:
    jobs = SingleJob()

    def first() -> Flask:
        @jobs.task("interval", "tick", hours=1)
        def tick() -> None: ...

        app = make("a")
        jobs.init_app(app)
        return app

    def second() -> Flask:
        @jobs.task("interval", "tick", hours=2)
        def tick() -> None: ...

        app = make("b")
        jobs.init_app(app)
        return app

    apps = [first(), second()]
    assert [defined(app, "tick").fields["seconds"] for app in apps] == [3600, 7200]


def test_a_nested_function_in_the_place_of_another_of_the_same_app_is_refused(
    make: Callable[..., Flask],
) -> None:
    jobs = SingleJob()
    app = make()
    jobs.init_app(app)

    def create(number: int) -> None:
        if number == 1:

            @jobs.task("interval", "tick", hours=1)
            def one() -> None: ...
        else:

            @jobs.task("interval", "tick", hours=1)
            def two() -> None: ...

    create(1)
    with pytest.raises(JobDefinitionError, match=r"one.*two"):
        create(2)
    with app.app_context(), pytest.raises(JobDefinitionError, match=r"one.*two"):
        create(2)


def test_two_functions_of_one_id_are_refused_before_there_is_an_app_unless_one_replaces_the_other(
    make: Callable[..., Flask],
) -> None:
    jobs = SingleJob()

    @jobs.task("interval", "tick", hours=1)
    def one() -> None: ...

    with pytest.raises(JobDefinitionError, match=r"one.*two"):

        @jobs.task("interval", "tick", hours=2)
        def two() -> None: ...

    app = make()
    jobs.init_app(app)
    assert defined(app, "tick").func is one
    other = SingleJob()
    other.task("interval", "tick", hours=1)(one)
    other.task("interval", "tick", hours=1, replace_existing=True)(work)
    app = make()
    other.init_app(app)
    assert defined(app, "tick").func is work


def test_an_app_given_to_the_constructor_lives_as_long_as_its_singlejob(make: Callable[..., Flask]) -> None:
    jobs = SingleJob(make())
    gc.collect()
    assert jobs.app is not None
    assert jobs.get_jobs() == []


class Kept(SingleJob):
    """A subclass with a constructor of its own."""

    def __init__(self) -> None:
        super().__init__()


def test_a_subclass_with_its_own_constructor_is_made_where_it_is_called(make: Callable[..., Flask]) -> None:
    jobs = Kept()

    @jobs.task("interval", "x", hours=1)
    def nested() -> None: ...

    for app in (make("a"), make("b")):
        jobs.init_app(app)
        with app.app_context():
            assert jobs.get_job("x") is not None


# -- current_run and Lease ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "job_id",
        "scheduled_at",
        "cause",
        "token",
        "scope",
        "host",
        "attempt",
        "check",
        "extend",
        "progress",
        "x",
    ],
)
def test_outside_a_run_each_attribute_of_current_run_raises(name: str) -> None:
    with pytest.raises(RuntimeError, match="outside of a run"):
        getattr(current_run, name)
    assert not current_run


def test_within_a_run_current_run_takes_durations_and_numbers(make: Callable[..., Flask]) -> None:
    app = make()
    jobs = SingleJob(app)
    seen: list[Any] = []

    @jobs.task("interval", "x", hours=1)
    def nested() -> None:
        current_run.check()
        current_run.extend(50)
        current_run.extend(timedelta(minutes=2))
        current_run.progress(1, total=3, note="one")
        current_run.progress(0.5)
        for wrong in ("1", None, True, float("nan")):
            with pytest.raises(TypeError):
                current_run.progress(wrong)
        with pytest.raises(TypeError):
            current_run.progress(1, total=object())
        with pytest.raises(AttributeError):
            _ = current_run.nothing
        seen.append(current_run.id)

    run = jobs.run_job("x")
    assert run is not None
    assert (run.status, seen) == ("succeeded", [run.id])


def test_a_lease_is_extended_by_a_timedelta_too(make: Callable[..., Flask]) -> None:
    jobs = SingleJob(make())
    with jobs.lock("x") as lease:
        lease.extend(timedelta(seconds=90))
        for wrong in (timedelta(0), -1, "5", None, True):
            with pytest.raises(ValueError, match="positive number of seconds or a timedelta"):
                lease.extend(wrong)  # type: ignore[arg-type]
        with pytest.raises(LockHeldError), jobs.lock("x"):
            pass
