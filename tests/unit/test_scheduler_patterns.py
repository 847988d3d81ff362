"""A scheduler given to SingleJob is held to what the SCHEDULER_* keys are held to, at start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask

from flask_singlejob import ConfigError, SingleJob


@pytest.fixture
def app() -> Flask:
    app = Flask("patterns")
    app.testing = True
    return app


def background(**options: Any) -> BackgroundScheduler:
    return BackgroundScheduler(**options)


def test_a_persistent_job_store_of_the_scheduler_is_refused_with_the_way_to_import_it(
    app: Flask, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    for pattern in (
        background(jobstores={"default": {"type": "sqlalchemy", "url": url}}),
        background(jobstores={"default": SQLAlchemyJobStore(url)}),
        lambda: background(jobstores={"default": SQLAlchemyJobStore(url)}),
    ):
        with pytest.raises(ConfigError, match=r"job store 'default'.*Leave it out.*import-jobs URL"):
            SingleJob(pattern, app)
    late = background()
    jobs = SingleJob(late)
    late.add_jobstore(SQLAlchemyJobStore(url), "old")
    with pytest.raises(ConfigError, match="job store 'old'"):
        jobs.init_app(app)


def test_a_process_pool_of_the_scheduler_is_refused_as_the_key_refuses_it(app: Flask) -> None:
    added = background()
    added.add_executor(ProcessPoolExecutor(1), "cpu")
    for pattern, alias in (
        (background(executors={"default": {"type": "processpool", "max_workers": 1}}), "default"),
        (added, "cpu"),
        (lambda: added, "cpu"),
    ):
        with pytest.raises(ConfigError, match=rf"executor '{alias}' is a process pool.*threadpool"):
            SingleJob(app, scheduler=pattern)


def test_a_scheduler_that_was_refused_leaves_the_app_as_it_was(app: Flask) -> None:
    with pytest.raises(ConfigError):
        SingleJob(app, background(executors={"default": {"type": "processpool"}}))
    SingleJob(
        app, background(jobstores={"default": MemoryJobStore()}, executors={"a": ThreadPoolExecutor(3)})
    )


@pytest.mark.parametrize("junk", [lambda: 3, lambda: None, int, lambda: int])
def test_what_makes_no_scheduler_is_refused_at_start(app: Flask, junk: Any) -> None:
    with pytest.raises(ConfigError, match="scheduler"):
        SingleJob(app, junk)


def test_a_scheduler_of_another_event_loop_is_refused_at_start(app: Flask) -> None:
    with pytest.raises(ConfigError, match=r"AsyncIOScheduler.*BackgroundScheduler"):
        SingleJob(app, AsyncIOScheduler)


def test_job_defaults_that_no_job_can_have_are_refused_at_start(app: Flask) -> None:
    with pytest.raises(ConfigError, match=r"BackgroundScheduler.*misfire_grace_time"):
        SingleJob(app, background(job_defaults={"misfire_grace_time": 0}))


class WithStore(BackgroundScheduler):  # type: ignore[misc]
    """A class that brings a persistent job store along."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_jobstore("sqlalchemy", "old", url="sqlite://")


class WithPool(BackgroundScheduler):  # type: ignore[misc]
    """A class that brings a process pool along."""

    def __init__(self, **options: Any) -> None:
        super().__init__(executors={"cpu": {"type": "processpool"}}, **options)


class WithArgument(BackgroundScheduler):  # type: ignore[misc]
    """A class that cannot be made again without its argument."""

    def __init__(self, colour: str, **options: Any) -> None:
        super().__init__(**options)


class WithThreads(BackgroundScheduler):  # type: ignore[misc]
    """A class that brings along what may be."""

    def __init__(self, **options: Any) -> None:
        super().__init__(executors={"slow": {"type": "threadpool", "max_workers": 1}}, **options)
        self.add_jobstore("memory")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (WithStore, r"^scheduler=WithStore: .*job store 'old'"),
        (WithPool, "executor 'cpu' is a process pool"),
        (lambda: WithArgument("red"), "WithArgument.*colour"),
    ],
)
def test_what_a_class_of_the_users_own_does_when_it_is_made_is_seen_at_start(
    app: Flask, given: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        SingleJob(app, given)


def test_a_class_of_the_users_own_may_bring_thread_pools_and_memory(app: Flask) -> None:
    jobs = SingleJob(app, WithThreads)
    assert isinstance(jobs.scheduler, WithThreads)
    assert not SingleJob(Flask("other"), WithThreads()).is_owner


def test_an_executor_added_later_is_refused_with_the_key_that_makes_one(app: Flask) -> None:
    jobs = SingleJob(app)
    for executor in (ProcessPoolExecutor(1), ThreadPoolExecutor(1), "threadpool"):
        with pytest.raises(ConfigError, match=r"SCHEDULER_EXECUTORS\['cpu'\]"):
            jobs.scheduler.add_executor(executor, "cpu")


def test_setting_up_an_app_without_a_scheduler_imports_no_executor_and_no_database() -> None:
    code = (
        "import sys; from flask import Flask; from flask_singlejob import SingleJob; app = Flask('light'); "
        "app.testing = True; before = set(sys.modules); SingleJob(app); "
        "new = set(sys.modules) - before; "
        "print([m for m in new if m.startswith(('sqlalchemy', 'apscheduler.executors'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
