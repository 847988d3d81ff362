"""What runs() is asked for wrongly is one clear error that names argument, value and cure."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from flask_singlejob import SingleJob, SingleJobError


@pytest.fixture
def jobs(tmp_path: Path) -> SingleJob:
    app = Flask("shop", instance_path=str(tmp_path))
    app.testing = True
    return SingleJob(app)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"status": 3}, ("status=3", "running, succeeded")),
        ({"status": "completed"}, ("status='completed'", "running, succeeded")),
        ({"status": ["failed", 3]}, ("status=", "running, succeeded")),
        ({"limit": 0}, ("limit=0", "a whole number, 1 to")),
        ({"limit": True}, ("limit=True", "a whole number, 1 to")),
        ({"limit": "5"}, ("limit='5'", "a whole number, 1 to")),
        ({"limit": 10**30}, ("limit=1000000000000000000000000000000", "a whole number, 1 to 1000000000")),
        ({"limit": 10**3000}, ("limit=an int of", "a whole number, 1 to")),
        ({"since": timedelta(days=999_999)}, ("since=", "a shorter timedelta")),
        ({"since": timedelta(days=-9_999_999)}, ("since=", "a shorter timedelta")),
        ({"since": datetime(2026, 1, 1)}, ("since=datetime.datetime(2026, 1, 1", "no time zone")),
        ({"since": "yesterday"}, ("since='yesterday'", "a datetime with a time zone, or a timedelta")),
        ({"since": 3}, ("since=3", "a datetime with a time zone, or a timedelta")),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(
    arguments: dict[str, Any], words: tuple[str, ...], jobs: SingleJob
) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        jobs.runs(**arguments)
    assert isinstance(caught.value, SingleJobError)
    for word in words:
        assert word in str(caught.value)


def test_good_arguments_are_taken(jobs: SingleJob) -> None:
    jobs.add_job("x", print, trigger="interval", hours=1)
    jobs.run_job("x")
    for since in (None, timedelta(hours=1), datetime(2020, 1, 1, tzinfo=timezone.utc)):
        for status in (None, "succeeded", ["succeeded", "failed"]):
            assert len(jobs.runs(since=since, status=status, limit=10**9)) == 1
    assert jobs.runs(since=datetime.min.replace(tzinfo=timezone.utc)) != []
