"""A job of the code that was removed, and an id of it that is used again."""

from __future__ import annotations

import pytest
from apscheduler.jobstores.base import ConflictingIdError
from flask import Flask

from flask_singlejob import SingleJob


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
