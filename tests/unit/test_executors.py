"""What SCHEDULER_EXECUTORS may say is checked when the app is made, not when a worker is elected."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from flask_singlejob import ConfigError, SingleJob


def make(executors: Any) -> SingleJob:
    app = Flask("executors")
    app.config.update(SINGLEJOB_STORE="memory://", SCHEDULER_EXECUTORS=executors)
    return SingleJob(app)


@pytest.mark.parametrize("size", ["x", 0, -1, 2.5, True, [4], float("inf"), float("nan")])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"SCHEDULER_EXECUTORS.*'cpu'.*max_workers must be a whole number"):
        make({"cpu": {"type": "threadpool", "max_workers": size}})


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SCHEDULER_EXECUTORS.*'default'.*unknown option 'max_worker'"):
        make({"default": {"type": "threadpool", "max_worker": 2}})


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "threadpool"},
        {"type": "threadpool", "max_workers": 3},
        {"type": "threadpool", "max_workers": None},
        {"type": "threadpool", "max_workers": "3"},
        {"class": "apscheduler.executors.pool:ThreadPoolExecutor", "max_workers": 3},
    ],
)
def test_a_thread_pool_is_accepted(spec: dict[str, Any]) -> None:
    jobs = make({"default": spec})
    jobs.add_job("one", print, trigger="interval", hours=1, executor="default")
