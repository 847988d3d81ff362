"""One id for two functions is an error, however alike they look; the same function again is none."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from flask_singlejob import JobDefinitionError, SingleJob

SOURCE = """
@jobs.task("interval", hours=1)
def report():
    return 1


@jobs.task("interval", hours=1)
def report():
    return 2
"""


def undressed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function and forget its name, as careless decorators do."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def first() -> None: ...


def second() -> None: ...


class Base:
    def run(self) -> None: ...


class Left(Base): ...


class Right(Base): ...


def test_a_function_that_was_copied_and_not_renamed_is_refused() -> None:
    module = types.ModuleType("copied")
    module.jobs = SingleJob()  # type: ignore[attr-defined]
    with pytest.raises(JobDefinitionError, match=r"'copied\.report'.*copied\.py:2.*copied\.py:7"):
        exec(compile(SOURCE, "copied.py", "exec"), module.__dict__)


@pytest.mark.parametrize(
    ("one", "other"),
    [(undressed(first), undressed(second)), (Left().run, Right().run)],
    ids=["under a decorator that forgets names", "methods of two classes"],
)
def test_two_functions_of_one_name_and_id_are_refused(one: Any, other: Any) -> None:
    jobs = SingleJob()
    jobs.task("interval", id="x", hours=1)(one)
    with pytest.raises(JobDefinitionError, match="defined twice"):
        jobs.task("interval", id="x", hours=1)(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(undressed(first), undressed(first)), (Left().run, Left().run), (first, first)],
    ids=["under a decorator that forgets names", "methods of two objects", "a function"],
)
def test_the_same_function_again_is_no_error(one: Any, other: Any) -> None:
    jobs = SingleJob()
    for function in (one, other):
        jobs.task("interval", id="x", hours=1)(function)


def test_a_factory_that_is_called_again_defines_the_same() -> None:
    jobs = SingleJob()

    def create_app() -> Flask:
        app = Flask("again")
        app.config["SINGLEJOB_STORE"] = "memory://"

        @jobs.task("interval", id="nested", hours=1)
        def nested() -> str:
            return app.name

        jobs.init_app(app)
        return app

    for _ in range(3):
        create_app()
