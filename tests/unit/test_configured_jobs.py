"""Jobs of the configuration that are wrong are named by key and entry; options that a scope has no use for are refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from flask import Flask

from flask_singlejob import ConfigError, JobDefinitionError, Run, SingleJob

GOOD = {"id": "good", "func": f"{__name__}:work", "trigger": "interval", "seconds": 3}


def work() -> None:
    """Do nothing."""


@pytest.fixture
def app() -> Flask:
    app = Flask("configured")
    app.testing = True
    return app


@pytest.mark.parametrize("key", ["JOBS", "SCHEDULER_JOBS"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"func": f"{__name__}:nope"}, f"module {__name__!r} has no nope"),
        ({"func": "no_such_module:x"}, "this process has no module 'no_such_module'"),
        ({"func": 3}, "func must be a callable"),
        ({"trigger": "date"}, "seconds=3 is no option of the trigger 'date'"),
        ({"scope": "x"}, "scope must be one of"),
        ({"lease": "soon"}, "lease must be seconds"),
        ({"executor": "gpu"}, "no executor is named 'gpu'"),
    ],
)
def test_a_wrong_job_of_the_configuration_is_named_by_key_and_entry(
    app: Flask, key: str, change: dict[str, Any], said: str
) -> None:
    app.config[key] = [GOOD, {**GOOD, "id": "a", **change}]
    with pytest.raises(JobDefinitionError) as caught:
        SingleJob(app)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).startswith(f"{key}[1] (id 'a'): {said}")


def test_an_entry_without_id_function_or_use_is_named_too(app: Flask) -> None:
    entries: list[tuple[dict[Any, Any], str]] = [
        (
            {"func": "no_such_module:x", "trigger": "interval", "seconds": 3},
            r"^JOBS\[0\]: this process has no",
        ),
        ({"id": "a", "trigger": "interval", "seconds": 3}, r"^JOBS\[0\] has no 'func'"),
        ({**GOOD, "persist": True}, r"^JOBS\[0\] has 'persist'"),
        ({**GOOD, 5: 6}, r"^JOBS\[0\] \(id 'good'\): .*strings"),
        ({**GOOD, "id": ["a"]}, r"^JOBS\[0\] \(id \['a'\]\): "),
    ]
    for entry, said in entries:
        app.config["JOBS"] = [entry]
        with pytest.raises(ConfigError, match=said):
            SingleJob(app)
        app = Flask("configured")
        app.testing = True


def test_a_job_of_every_worker_cannot_have_what_needs_a_claim(app: Flask) -> None:
    jobs = SingleJob(app)
    options: list[dict[str, Any]] = [{"max_runtime": 5}, {"lease": 5}, {"rerun_lost": True}]
    for option in options:
        (name,) = option
        with pytest.raises(JobDefinitionError, match=f"{name} has no meaning with scope='worker'"):
            jobs.task("interval", "each", minutes=1, scope="worker", **option)(work)
    jobs.task("interval", "each", minutes=1, scope="worker", max_runtime=None)(work)
    for option in options:
        with app.test_request_context(), pytest.raises(JobDefinitionError, match="has no meaning"):
            jobs.modify_job("each", **option)


def test_a_default_of_all_jobs_that_needs_a_claim_leaves_the_jobs_of_every_worker_alone(app: Flask) -> None:
    app.config["SCHEDULER_JOB_DEFAULTS"] = {"max_runtime": 60}
    jobs = SingleJob(app)
    jobs.task("interval", "each", minutes=1, scope="worker")(work)
    assert jobs.get_job("each") is not None


# -- what help and type checkers see ------------------------------------------------------------------


def test_help_shows_the_arguments_as_they_are_meant() -> None:
    assert list(inspect.signature(SingleJob).parameters) == ["app", "scheduler", "store"]
    shown = inspect.signature(SingleJob.task).parameters
    assert shown["scope"].default == "cluster"
    assert shown["max_attempts"].default == 3
    assert "<default>" not in str(inspect.signature(SingleJob.task))
    assert "self" not in inspect.signature(SingleJob().task).parameters


def status_by_hand(jobs: SingleJob) -> str:
    return jobs.run_job("work").status.value


def run_or_not(jobs: SingleJob, wait: bool) -> Run | None:
    return jobs.run_job("work", wait=wait)


def test_run_job_is_a_run_to_a_type_checker_unless_it_is_handed_over(app: Flask) -> None:
    jobs = SingleJob(app)
    jobs.task("interval", "work", minutes=1)(work)
    assert status_by_hand(jobs) == "succeeded"  # mypy looks at the function, not at what it returns here
    assert run_or_not(jobs, wait=False) is None
