"""Whatever a job or a once-only task is made of: when it is said to have run, its body has."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from flask import Flask, current_app

from flask_singlejob import LockHeldError, SingleJob, single_task


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as decorators do that know nothing of ``async``."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def jobs(ran: list[str]) -> Iterator[SingleJob]:
    async def plain() -> str:
        ran.append(f"plain in {current_app.name}")
        return "done"

    async def fails() -> None:
        raise ValueError("in its body")

    def steps() -> Iterator[None]:
        ran.append("steps")
        yield

    async def flow() -> AsyncIterator[None]:
        ran.append("flow")
        yield

    class Callable_:
        async def __call__(self) -> None:
            ran.append("called")

    app = Flask("bodies")
    app.config["SINGLEJOB_STORE"] = "memory://"
    jobs = SingleJob(app)
    for id, function in {
        "wrapped": traced(plain),
        "twice": traced(traced(plain)),
        "object": Callable_(),
        "lambda": lambda: plain(),
        "fails": traced(fails),
        "steps": traced(steps),
        "flow": traced(flow),
        "expression": lambda: (n for n in range(3)),
    }.items():
        jobs.add_job(id, function, trigger="interval", hours=1)
    with app.app_context():
        yield jobs
    jobs.shutdown(wait=False)


@pytest.mark.parametrize("id", ["wrapped", "twice", "lambda"])
def test_a_coroutine_behind_a_plain_function_is_awaited(jobs: SingleJob, ran: list[str], id: str) -> None:
    run = jobs.run_job(id)
    assert (run.status, ran) == ("succeeded", ["plain in bodies"])


def test_an_object_with_an_async_call_is_awaited(jobs: SingleJob, ran: list[str]) -> None:
    assert jobs.run_job("object").status == "succeeded"
    assert ran == ["called"]


def test_what_a_hidden_coroutine_raises_fails_the_run(jobs: SingleJob) -> None:
    run = jobs.run_job("fails")
    assert run.status == "failed"
    assert "in its body" in str(run.error)


@pytest.mark.parametrize("id", ["steps", "flow"])
def test_a_hidden_generator_fails_the_run_and_says_why(jobs: SingleJob, ran: list[str], id: str) -> None:
    run = jobs.run_job(id)
    assert run.status == "failed"
    assert f"{id}) that nobody goes through: its body never ran" in str(run.error)
    assert ran == []


def test_a_generator_expression_is_a_value(jobs: SingleJob) -> None:
    assert jobs.run_job("expression").status == "succeeded"


def test_a_once_only_task_is_done_only_when_its_body_ran(jobs: SingleJob, ran: list[str]) -> None:
    @jobs.once("seed")
    @traced
    async def seed() -> None:
        ran.append("seeded")

    @jobs.once("steps")
    @traced
    def steps() -> Iterator[None]:
        yield

    assert seed() is True
    assert ran == ["seeded"]
    for _ in range(2):
        with pytest.raises(TypeError, match="its body never ran"):
            steps()


@pytest.mark.parametrize("kind", ["wrapped", "object"])
def test_a_single_task_holds_its_lock_until_a_hidden_coroutine_has_run(jobs: SingleJob, kind: str) -> None:
    seen: list[str] = []

    async def body(*self: Any) -> str:
        with pytest.raises(LockHeldError), jobs.lock("alone"):
            pass
        seen.append("ran")
        return "result"

    function: Any = traced(body) if kind == "wrapped" else type("Kind", (), {"__call__": body})()
    alone = single_task("alone")(function)
    assert asyncio.run(_awaited(alone)) == "result"
    assert seen == ["ran"]
    with jobs.lock("alone"):
        pass


async def _awaited(function: Callable[..., Any]) -> Any:
    return await function()


def test_a_single_task_whose_coroutine_nobody_awaits_does_not_keep_the_lock_for_ever(jobs: SingleJob) -> None:
    async def body() -> None:
        raise AssertionError("nobody awaits it")

    alone = single_task("alone", lease=3)(traced(body))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coroutine = alone()
        del coroutine
        gc.collect()
    with jobs.lock("alone", wait=15):
        pass


def test_a_single_task_of_a_hidden_generator_says_that_its_body_never_ran(jobs: SingleJob) -> None:
    def steps() -> Iterator[None]:
        yield

    with pytest.raises(TypeError, match="its body never ran"):
        single_task("alone")(traced(steps))()
    with jobs.lock("alone"):
        pass


@pytest.mark.parametrize("body_raises", [True, False])
def test_what_leaving_the_context_raises_is_logged_too(
    caplog: pytest.LogCaptureFixture, body_raises: bool
) -> None:
    app = Flask("leaving")
    app.config["SINGLEJOB_STORE"] = "memory://"
    jobs = SingleJob(app)

    @app.teardown_appcontext
    def leave(error: BaseException | None) -> None:
        raise RuntimeError("on the way out")

    def work() -> None:
        if body_raises:
            raise ValueError("in the body")

    jobs.add_job("work", work, trigger="interval", hours=1)
    with app.app_context():
        run = jobs.run_job("work")
        # The block's own context is left without its teardown.
        app.teardown_appcontext_funcs.clear()
    jobs.shutdown(wait=False)
    assert run.status == "failed"
    told = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert told == (["in the body"] if body_raises else []) + ["on the way out"]
