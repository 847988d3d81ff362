"""What a decorator can know to be wrong is refused where it is written, not at the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flask_singlejob import ConfigError, SingleJob, open_store, single_task


def none() -> None: ...
def one(number: int) -> None: ...
def maybe(number: int = 1) -> None: ...
def by_name(*, number: int) -> None: ...
def by_place(number: int, /) -> None: ...
def any_at_all(*args: Any, **kwargs: Any) -> None: ...
def two(number: int, other: int) -> None: ...


@pytest.mark.parametrize("store", ["foo", "", "oracle://db/jobs", 3, "postgresql://db:port/jobs"])
def test_a_store_that_is_none_is_refused_at_the_decorator(store: Any) -> None:
    with pytest.raises(ConfigError, match=r"single_task\('import'\): store="):
        single_task("import", store=store)


def test_a_store_that_is_refused_keeps_its_password_to_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        single_task("import", store="oracle://user:hunter2@db/jobs")
    assert "hunter2" not in str(caught.value)


def test_a_store_that_was_opened_is_taken() -> None:
    assert single_task("import", store=open_store("memory://"))(none).__name__ == "none"


@pytest.mark.parametrize("junk", [3, None, "one", classmethod(any_at_all)])
def test_what_cannot_be_called_is_refused_by_each_decorator(junk: Any) -> None:
    jobs = SingleJob()
    with pytest.raises(ConfigError, match=r"once\('k'\) decorates a function, not"):
        jobs.once("k")(junk)
    with pytest.raises(ConfigError, match=r"single_task\('k'\) decorates a function, not"):
        single_task("k")(junk)


@pytest.mark.parametrize(
    ("function", "otherwise"),
    [
        (one, none),
        (one, two),
        (none, one),
        (by_name, none),
        (by_place, by_name),
        (two, lambda wrong, names, here: 0),
    ],
)
def test_an_otherwise_that_takes_no_call_of_the_function_is_refused_at_the_decorator(
    function: Callable[..., object], otherwise: Callable[..., object]
) -> None:
    with pytest.raises(TypeError, match=r"single_task\('k'\): otherwise is called with the arguments"):
        single_task("k", otherwise=otherwise)(function)


@pytest.mark.parametrize(
    ("function", "otherwise"),
    [
        (one, lambda other_name: 0),
        (one, any_at_all),
        (one, maybe),
        (maybe, none),
        (maybe, one),
        (one, by_name),  # as a view is called
        (by_name, one),
        (any_at_all, none),
        (any_at_all, one),
        (one, dict),  # a builtin does not tell
        (none, 5),
        (one, None),
    ],
)
def test_an_otherwise_that_takes_some_call_or_is_a_value_is_taken(
    function: Callable[..., object], otherwise: Any
) -> None:
    assert single_task("k", otherwise=otherwise)(function).__name__ == function.__name__
