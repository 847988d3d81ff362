"""A job of the code that was removed, and an id of it that is used again."""

from __future__ import annotations

import pytest
from apscheduler.jobstores.base import ConflictingIdError
from flask import Flask

from flask_singlejob import SingleJob
from flask_singlejob.testing import run_due


def nothing() -> None:
    """Do nothing."""


def test_the_id_of_a_removed_defined_job_may_be_added_again() -> None:
    app = Flask("readding")
    app.testing = True
    jobs = SingleJob(app)
    with app.app_context():
        jobs.add_job("report", nothing, trigger="interval", hours=1)
        jobs.remove_job("report")
        assert jobs.get_job("report") is None
        jobs.register(nothing, "nothing")
        jobs.add_job("report", "nothing", trigger="interval", hours=2, persist=True)
        job = jobs.get_job("report")
        assert job is not None
        assert "2:00:00" in str(job.trigger)
        with pytest.raises(ConflictingIdError):
            jobs.add_job("report", "nothing", trigger="interval", hours=3, persist=True)


def other(number: int = 1) -> None:
    """Do nothing either."""


@pytest.fixture
def app() -> Flask:
    app = Flask("readding")
    app.testing = True
    return app


@pytest.mark.parametrize("trigger", [{"trigger": "interval", "hours": 1}, {"trigger": "cron", "hour": 3}])
def test_adding_a_job_equal_to_one_of_the_code_in_a_request_is_no_error(
    app: Flask, trigger: dict[str, object]
) -> None:
    jobs = SingleJob(app)
    options = {**trigger, "args": [5], "max_instances": 2, "lease": 20}
    jobs.add_job("report", other, **options)
    run_due(app, 0)
    with app.test_request_context():
        before = jobs.get_job("report")
        assert before is not None
        for _ in range(2):
            again = jobs.add_job("report", other, **options)
            assert (again.id, again.next_run_time) == ("report", before.next_run_time)
        assert jobs.add_job("report", f"{__name__}:other", **options).args == (5,)
        assert jobs.status()["jobs"][0]["origin"] == "code"
        for change in ({"args": [6]}, {"max_instances": 1}, {"lease": 21}, {"name": "n"}, {"scope": "host"}):
            with pytest.raises(ConflictingIdError):
                jobs.add_job("report", other, **{**options, **change})
        with pytest.raises(ConflictingIdError):
            jobs.add_job("report", nothing, **{**options, "args": []})
        with pytest.raises(ConflictingIdError):
            jobs.add_job("report", other, trigger="interval", minutes=7, args=[5], max_instances=2, lease=20)


def test_a_job_of_the_code_that_cannot_be_stored_may_be_added_again_too(app: Flask) -> None:
    jobs = SingleJob(app)
    jobs.add_job("each", lambda: None, trigger="interval", hours=1, scope="worker")
    found = jobs.get_job("each")
    assert found is not None
    with app.test_request_context():
        assert jobs.add_job("each", found.func, trigger="interval", hours=1, scope="worker").id == "each"


def test_replacing_by_an_equal_job_takes_back_a_change_and_starts_no_new_interval(app: Flask) -> None:
    jobs = SingleJob(app)
    jobs.add_job("report", other, trigger="interval", hours=1)
    run_due(app, 0)
    with app.test_request_context():
        before = jobs.get_job("report")
        assert before is not None
        same = jobs.add_job("report", other, trigger="interval", hours=1, replace_existing=True)
        assert same.trigger.start_date == before.trigger.start_date
        jobs.modify_job("report", args=[7])
        assert jobs.add_job("report", other, trigger="interval", hours=1).args == (7,)
        taken_back = jobs.add_job("report", other, trigger="interval", hours=1, replace_existing=True)
        assert taken_back.args == ()
