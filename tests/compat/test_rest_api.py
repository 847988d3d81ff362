"""The REST API as clients of Flask-APScheduler know it: addresses, methods, endpoint names and JSON."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from flask import Flask, url_for
from flask.testing import FlaskClient
from flask_apscheduler.auth import HTTPBasicAuth
from werkzeug.routing import BuildError

from flask_singlejob import SingleJob

from .conftest import MakeApp

LATER = (datetime.now(timezone.utc) + timedelta(days=30)).replace(microsecond=0)
calls: list[object] = []


def note(value: object = 0) -> None:
    """Note a call."""
    calls.append(value)


def serving(app: Flask, **attributes: object) -> tuple[SingleJob, FlaskClient]:
    """Return the extension, set up as Flask-APScheduler's users do, and a client."""
    jobs = SingleJob()
    jobs.api_enabled = True
    for name, value in attributes.items():
        setattr(jobs, name, value)
    jobs.register(note)
    jobs.init_app(app)
    jobs.start()
    return jobs, app.test_client()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """Return a client of an app that is open to anybody."""
    return serving(app)[1]


def send(client: FlaskClient, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request without any content type, as plain clients do; return status and what the JSON says."""
    answer = client.open("/scheduler" + path, method=method, data=None if body is None else json.dumps(body))
    return answer.status_code, answer.get_json() if answer.data else None


def add(client: FlaskClient, **fields: object) -> Any:
    """Add an interval job, return what the answer shows."""
    job = {"id": "note", "func": f"{__name__}:note", "trigger": "interval", "minutes": 10, **fields}
    given = {name: value for name, value in job.items() if value is not None}
    status, shown = send(client, "POST", "/jobs", given)
    assert status == 200, shown
    return shown


def test_the_information_tells_host_and_state(client: FlaskClient) -> None:
    status, info = send(client, "GET", "")
    assert status == 200
    assert info["current_host"]
    assert info["allowed_hosts"] == ["*"]
    assert info["running"] is True


def test_an_added_job_is_shown_as_given(client: FlaskClient) -> None:
    shown = add(client, trigger="date", minutes=None, run_date=LATER.isoformat())
    expected = {
        "id": "note",
        "name": "note",
        "func": f"{__name__}:note",
        "args": [],
        "kwargs": {},
        "trigger": "date",
    }
    assert {key: shown[key] for key in expected} == expected
    for name in ("run_date", "next_run_time"):
        assert datetime.fromisoformat(shown[name]) == LATER


def test_the_offset_of_a_run_date_stays_what_it_was(client: FlaskClient) -> None:
    for id, given in (("later", "2099-12-01T12:30:01-06:00"), ("past", "2025-12-01T12:30:01-06:00")):
        shown = add(client, id=id, trigger="date", minutes=None, run_date=given)
        assert (shown["trigger"], shown["run_date"]) == ("date", given)


def test_another_job_under_a_taken_id_conflicts(client: FlaskClient) -> None:
    add(client)
    status, answer = send(
        client,
        "POST",
        "/jobs",
        {"id": "note", "func": f"{__name__}:note", "trigger": "date", "run_date": LATER.isoformat()},
    )
    assert (status, answer) == (409, {"error_message": "Job note already exists."})


def test_one_job_and_all_are_listed(client: FlaskClient) -> None:
    added = add(client)
    assert send(client, "GET", "/jobs/note") == (200, added)
    assert send(client, "GET", "/jobs") == (200, [added])


def test_an_interval_and_a_cron_job_show_their_triggers_fields(client: FlaskClient) -> None:
    shown = add(client, id="interval", weeks=1, days=2, hours=3, minutes=4, seconds=5)
    units = {"weeks": 1, "days": 2, "hours": 3, "minutes": 4, "seconds": 5}
    assert {unit: shown[unit] for unit in units} == units
    shown = add(
        client,
        id="cron",
        trigger="cron",
        minutes=None,
        hour="*/2",
        day_of_week="mon-fri",
        misfire_grace_time=99,
    )
    assert {key: shown[key] for key in ("hour", "day_of_week", "misfire_grace_time", "max_instances")} == {
        "hour": "*/2",
        "day_of_week": "mon-fri",
        "misfire_grace_time": 99,
        "max_instances": 1,
    }


def test_a_change_gives_arguments_and_a_trigger(client: FlaskClient) -> None:
    add(client)
    begin = (LATER + timedelta(days=1)).date().isoformat()
    status, shown = send(
        client, "PATCH", "/jobs/note", {"args": [1], "trigger": "cron", "minute": "*/1", "start_date": begin}
    )
    assert status == 200
    assert (shown["id"], shown["args"], shown["trigger"], shown["minute"]) == ("note", [1], "cron", "*/1")
    assert shown["start_date"] == shown["next_run_time"]
    assert shown["start_date"].startswith(f"{begin}T00:00:00")


def test_pause_and_resume_show_in_the_next_run_time(client: FlaskClient) -> None:
    add(client)
    status, shown = send(client, "POST", "/jobs/note/pause")
    assert (status, shown["next_run_time"]) == (200, None)
    status, shown = send(client, "POST", "/jobs/note/resume")
    assert status == 200
    assert shown["next_run_time"]


def test_a_run_is_waited_for_and_the_job_shown(client: FlaskClient) -> None:
    add(client, args=["over http"])
    calls.clear()
    status, shown = send(client, "POST", "/jobs/note/run")
    assert (status, shown["id"]) == (200, "note")
    assert calls == ["over http"]
    assert shown["next_run_time"]


def test_a_deleted_job_is_gone(client: FlaskClient) -> None:
    add(client)
    assert send(client, "DELETE", "/jobs/note") == (204, None)
    assert send(client, "GET", "/jobs/note")[0] == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("PATCH", ""),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/run"),
    ],
)
def test_a_job_that_is_not_there_is_not_found(client: FlaskClient, method: str, path: str) -> None:
    body = {"args": [1]} if method == "PATCH" else None
    assert send(client, method, f"/jobs/nothing{path}", body) == (
        404,
        {"error_message": "Job nothing not found"},
    )


def test_the_scheduler_pauses_resumes_stops_and_starts(app: Flask) -> None:
    jobs, client = serving(app)
    assert send(client, "POST", "/pause") == (204, None)
    assert jobs.state == 2
    assert send(client, "POST", "/resume") == (204, None)
    assert jobs.state == 1
    assert send(client, "POST", "/start")[0] == 400
    assert send(client, "POST", "/shutdown", {"wait": False}) == (204, None)
    assert not jobs.running
    assert send(client, "POST", "/shutdown")[0] == 400
    assert send(client, "POST", "/start") == (204, None)
    assert jobs.running


def test_the_prefix_of_addresses_can_be_set(app: Flask) -> None:
    _, client = serving(app, api_prefix="/api")
    assert client.get("/api/jobs").status_code == 200
    assert client.get("/scheduler/jobs").status_code == 404


def test_the_prefix_of_endpoints_can_be_set(app: Flask) -> None:
    serving(app, endpoint_prefix="api.")
    with app.test_request_context():
        assert url_for("api.get_scheduler_info") == "/scheduler"
        assert url_for("api.run_job", job_id="note") == "/scheduler/jobs/note/run"
        with pytest.raises(BuildError):
            url_for("scheduler.get_scheduler_info")


ENDPOINTS = [
    "get_scheduler_info",
    "pause_scheduler",
    "resume_scheduler",
    "start_scheduler",
    "shutdown_scheduler",
    "add_job",
    "get_job",
    "get_jobs",
    "delete_job",
    "update_job",
    "pause_job",
    "resume_job",
    "run_job",
]


def test_every_endpoint_has_flask_apschedulers_name_and_method(make_app: MakeApp) -> None:
    import flask_apscheduler

    def rules(app: Flask) -> dict[str, tuple[str, set[str]]]:
        return {
            rule.endpoint: (rule.rule.replace("<job_id:", "<"), set(rule.methods or ()))
            for rule in app.url_map.iter_rules()
            if rule.endpoint.startswith("scheduler.")
        }

    ours, theirs = make_app(), Flask("theirs")
    serving(ours)
    original = flask_apscheduler.APScheduler()
    original.api_enabled = True
    original.init_app(theirs)
    assert set(rules(theirs)) == {f"scheduler.{name}" for name in ENDPOINTS}
    assert {name: rules(ours)[name] for name in rules(theirs)} == rules(theirs)


def basic(text: str) -> dict[str, str]:
    """Return the header of basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize("late", [False, True], ids=["before init_app", "after init_app"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (basic("test:right"), 200),
        (basic("test:wrong"), 401),
        ({"Authorization": "Basic 1231234"}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({}, 401),
    ],
)
def test_basic_authentication_lets_in_who_knows_the_password(
    make_app: MakeApp, late: bool, headers: dict[str, str], status: int
) -> None:
    app = make_app(SINGLEJOB_GUARD=None, SCHEDULER_API_ENABLED=True)
    jobs = SingleJob()
    jobs.auth = HTTPBasicAuth()

    def check(auth: Any) -> bool:
        return bool(auth["username"] == "test" and auth["password"] == "right")

    if late:
        jobs.init_app(app)
        assert jobs.authenticate(check) is check
    else:
        jobs.authenticate(check)
        jobs.init_app(app)
    answer = app.test_client().get("/scheduler", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="Authentication Required"'
