"""The REST API's guard, its protection from other sites' pages, and what it answers when something is wrong."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, abort, g, request
from flask.testing import FlaskClient
from flask_apscheduler.auth import HTTPBasicAuth

from flask_singlejob import ConfigError, SingleJob, StoreError
from flask_singlejob.engine_access import engine_of

CHANGES = [
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/start"),
    ("POST", "/shutdown"),
    ("POST", "/jobs"),
    ("PATCH", "/jobs/nightly"),
    ("DELETE", "/jobs/nightly"),
    ("POST", "/jobs/nightly/pause"),
    ("POST", "/jobs/nightly/resume"),
    ("POST", "/jobs/nightly/run"),
]
READS = [("GET", ""), ("GET", "/jobs"), ("GET", "/jobs/nightly"), ("GET", "/openapi.json"), ("HEAD", "/jobs")]
ran: list[object] = []
gate = threading.Event()


def nightly(value: object = None) -> None:
    """Note a run."""
    ran.append(value)


def unregistered() -> None:
    """Is not for HTTP."""
    raise AssertionError("this function is not registered")


def failing() -> None:
    """Fail, telling a secret."""
    raise ValueError("the password is hunter2")


def held() -> None:
    """Last until the test ends it."""
    assert gate.wait(20)


def only_admins(view: Callable[..., Any]) -> Callable[..., Any]:
    """Let in who says to be an admin, as a login extension would."""

    @functools.wraps(view)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        if request.headers.get("X-User") != "admin":
            abort(401)
        return view(*arguments, **keywords)

    return guarded


def make(
    tmp_path: Path, name: str = "shop", jobs: SingleJob | None = None, **config: Any
) -> tuple[SingleJob, Flask]:
    """Return an app under test whose REST API is on, and its extension."""
    app = Flask(name, instance_path=str(tmp_path))
    app.config.update(TESTING=True, SCHEDULER_API_ENABLED=True, SINGLEJOB_GUARD="public")
    app.config.update(config)
    jobs = jobs or SingleJob()
    jobs.task("cron", "nightly", hour=3)(nightly)
    jobs.init_app(app)
    return jobs, app


@pytest.fixture
def public(tmp_path: Path) -> FlaskClient:
    """Return a client of an app that lets anybody in."""
    return make(tmp_path)[1].test_client()


@pytest.fixture
def guarded(tmp_path: Path) -> FlaskClient:
    """Return a client of an app that lets admins in."""
    return make(tmp_path, SINGLEJOB_GUARD=only_admins)[1].test_client()


def send(client: FlaskClient, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """Send a request; a body is sent as JSON text with no content type but one that is given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
    return client.open("/scheduler" + path, method=method, data=data, headers=named)


# -- who may ----------------------------------------------------------------------------------------------


def test_without_guard_and_auth_the_app_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SINGLEJOB_GUARD"):
        make(tmp_path, SINGLEJOB_GUARD=None)


def test_without_the_switch_there_is_no_api(tmp_path: Path) -> None:
    _, app = make(tmp_path, SCHEDULER_API_ENABLED=False)
    assert app.test_client().get("/scheduler").status_code == 404


@pytest.mark.parametrize(("method", "path"), CHANGES + READS)
def test_the_guard_is_around_every_route(guarded: FlaskClient, method: str, path: str) -> None:
    assert send(guarded, method, path, Content_Type="application/json").status_code == 401


def test_no_route_was_forgotten(tmp_path: Path) -> None:
    _, app = make(tmp_path)
    rules = [rule for rule in app.url_map.iter_rules() if rule.endpoint.startswith("scheduler.")]
    assert len(rules) == len({(method, path) for method, path in CHANGES + READS if method != "HEAD"})


@pytest.mark.parametrize("guard", [only_admins, f"{__name__}:only_admins"], ids=["decorator", "its name"])
def test_the_guard_lets_in_whom_it_knows(tmp_path: Path, guard: Any) -> None:
    client = make(tmp_path, SINGLEJOB_GUARD=guard)[1].test_client()
    assert send(client, "GET", "/jobs", X_User="admin").status_code == 200


def test_a_guard_that_only_lets_look_lets_nobody_change(tmp_path: Path) -> None:
    def looking(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def guarded(*arguments: Any, **keywords: Any) -> Any:
            g.singlejob_read_only = True
            return view(*arguments, **keywords)

        return guarded

    client = make(tmp_path, SINGLEJOB_GUARD=looking)[1].test_client()
    assert send(client, "GET", "/jobs").status_code == 200
    assert send(client, "DELETE", "/jobs/nightly", X_Requested_With="x").status_code == 403
    assert send(client, "GET", "/jobs/nightly").status_code == 200


def test_with_guard_and_auth_both_have_to_let_in(tmp_path: Path) -> None:
    jobs, app = make(tmp_path, SINGLEJOB_GUARD=only_admins, SCHEDULER_AUTH=HTTPBasicAuth())
    jobs.authenticate(lambda auth: auth["password"] == "right")
    client = app.test_client()
    basic = "Basic dGVzdDpyaWdodA=="
    assert send(client, "GET", "/jobs", X_User="admin").status_code == 401
    assert send(client, "GET", "/jobs", Authorization=basic).status_code == 401
    assert send(client, "GET", "/jobs", Authorization=basic, X_User="admin").status_code == 200


def test_auth_without_a_function_that_checks_it_lets_nobody_in(tmp_path: Path) -> None:
    _, app = make(tmp_path, SINGLEJOB_GUARD=None, SCHEDULER_AUTH=HTTPBasicAuth())
    assert send(app.test_client(), "GET", "", Authorization="Basic dGVzdDpyaWdodA==").status_code == 401


def test_auth_taken_away_leaves_the_door_shut(tmp_path: Path) -> None:
    jobs, app = make(tmp_path, SINGLEJOB_GUARD=None, SCHEDULER_AUTH=HTTPBasicAuth())
    with app.app_context():
        jobs.auth = None
    assert send(app.test_client(), "GET", "").status_code == 403


def statuses(*apps: Flask, **headers: str) -> list[int]:
    """Return what each app answers."""
    return [send(app.test_client(), "GET", "/jobs", **headers).status_code for app in apps]


@pytest.mark.parametrize("how", ["config", "attribute"])
@pytest.mark.parametrize("guarded_first", [True, False])
def test_one_apps_auth_never_becomes_anothers(tmp_path: Path, how: str, guarded_first: bool) -> None:
    jobs = SingleJob()
    apps: dict[str, Flask] = {}
    for name in ("guarded", "open") if guarded_first else ("open", "guarded"):
        auth = HTTPBasicAuth() if name == "guarded" else None
        if how == "attribute":
            jobs.auth = auth
        config = {"SCHEDULER_AUTH": auth} if how == "config" else {}
        guard = None if name == "guarded" else "public"
        apps[name] = make(tmp_path, name, jobs, SINGLEJOB_GUARD=guard, **config)[1]
    assert statuses(apps["guarded"], apps["open"]) == [401, 200]


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_apps_authenticate_never_becomes_anothers(tmp_path: Path, when: str) -> None:
    jobs = SingleJob()
    apps = []
    for password in ("one", "two"):

        def check(auth: Any, password: str = password) -> bool:
            return bool(auth["password"] == password)

        if when == "before":
            jobs.authenticate(check)
        apps.append(make(tmp_path, password, jobs, SINGLEJOB_GUARD=None, SCHEDULER_AUTH=HTTPBasicAuth())[1])
        if when == "after":
            jobs.authenticate(check)
    assert statuses(*apps, Authorization="Basic eDpvbmU=") == [200, 401]
    assert statuses(*apps, Authorization="Basic eDp0d28=") == [401, 200]


def test_a_function_given_before_all_apps_serves_them_all(tmp_path: Path) -> None:
    jobs = SingleJob()
    jobs.authenticate(lambda auth: auth["password"] == "one")
    config = {"SINGLEJOB_GUARD": None, "SCHEDULER_AUTH": HTTPBasicAuth()}
    apps = [make(tmp_path, name, jobs, **config)[1] for name in ("a", "b")]
    assert statuses(*apps, Authorization="Basic eDpvbmU=") == [200, 200]


# -- other sites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_behind_a_guard_a_plain_change_is_refused(guarded: FlaskClient, method: str, path: str) -> None:
    answer = send(guarded, method, path, "{}", X_User="admin", Content_Type="text/plain")
    assert answer.status_code == 415
    assert "application/json" in answer.get_json()["error_message"]
    form = {"X-User": "admin"}
    assert guarded.open(f"/scheduler{path}", method=method, data={"a": "b"}, headers=form).status_code == 415


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "application/json"},
        {"Content_Type": "application/json; charset=utf-8"},
        {"X_Requested_With": "XMLHttpRequest"},
        {"X_CSRF_Token": "anything"},
        {"Content_Type": "application/json", "Sec_Fetch_Site": "same-origin"},
        {"Content_Type": "application/json", "Origin": "http://localhost"},
    ],
)
def test_behind_a_guard_a_change_passes_with_json_or_a_token_header(
    guarded: FlaskClient, headers: dict[str, str]
) -> None:
    assert send(guarded, "POST", "/jobs/nightly/pause", X_User="admin", **headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Referer": "https://evil.example/page"},
    ],
)
@pytest.mark.parametrize("kind", ["public", "guarded"])
def test_a_change_of_another_sites_page_is_refused(
    kind: str, request: pytest.FixtureRequest, headers: dict[str, str]
) -> None:
    client: FlaskClient = request.getfixturevalue(kind)
    sent = {"X_User": "admin", "Content_Type": "application/json", **headers}
    answer = send(client, "DELETE", "/jobs/nightly", **sent)
    assert answer.status_code == 403
    assert send(client, "GET", "/jobs/nightly", **sent).status_code == 200


def test_in_public_a_plain_change_passes(public: FlaskClient) -> None:
    assert send(public, "POST", "/jobs/nightly/pause").status_code == 200


# -- which functions --------------------------------------------------------------------------------------


def job(**fields: Any) -> dict[str, Any]:
    """Return a job's fields."""
    return {"id": "sent", "func": "nightly", "trigger": "interval", "hours": 1, **fields}


@pytest.mark.parametrize(
    "func",
    [
        f"{__name__}:unregistered",
        "os:system",
        "builtins:exec",
        "no.such.module:f",
        "nothing",
        "",
        f"{__name__}",
    ],
)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_only_registered_functions_are_scheduled(public: FlaskClient, method: str, func: str) -> None:
    path, body = ("/jobs", job(func=func)) if method == "POST" else ("/jobs/nightly", {"func": func})
    answer = send(public, method, path, body)
    assert answer.status_code == 400
    assert "jobs.register" in answer.get_json()["error_message"]
    assert [shown["id"] for shown in send(public, "GET", "/jobs").get_json()] == ["nightly"]


def test_the_module_of_an_unregistered_function_is_not_imported(public: FlaskClient) -> None:
    import sys

    assert "antigravity" not in sys.modules
    assert send(public, "POST", "/jobs", job(func="antigravity:fly")).status_code == 400
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("func", ["nightly", f"{__name__}:nightly"])
def test_a_registered_function_goes_by_its_name_or_its_place(public: FlaskClient, func: str) -> None:
    answer = send(public, "POST", "/jobs", job(func=func, args=["sent"]))
    assert (answer.status_code, answer.get_json()["func"]) == (200, func)
    ran.clear()
    assert send(public, "POST", "/jobs/sent/run").status_code == 200
    assert ran == ["sent"]


def test_a_nested_function_goes_by_the_name_that_it_was_registered_by(tmp_path: Path) -> None:
    jobs, app = make(tmp_path)

    def nested() -> None:
        ran.append("nested")

    jobs.register(nested, "nested-work")
    client = app.test_client()
    assert send(client, "POST", "/jobs", job(func="nested-work")).get_json()["func"] == "nested-work"
    ran.clear()
    assert send(client, "POST", "/jobs/sent/run").status_code == 200
    assert ran == ["nested"]


# -- what is answered -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "no JSON"),
        ("", "no JSON"),
        ("[1]", "has to be a JSON object"),
        ("null", "has to be a JSON object"),
        (b"\xff\xfe{}", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ({}, "an id and a func"),
        ({"id": None, "func": "nightly"}, "an id and a func"),
        ({"id": 7, "func": "nightly"}, "an id and a func"),
        ({"id": "x" * 256, "func": "nightly"}, "255 characters"),
        ({"id": "", "func": "nightly"}, "nonempty"),
        (job(func=7), "func has to be a text"),
        (job(persist=False), "'persist' is not known"),
        (job(hour=3, color="red"), "'color' is not known"),
        (job(hour=3), "hour"),
        (job(trigger="fortnightly"), "fortnightly"),
        (job(trigger=["interval"]), "trigger"),
        (job(hours="one"), "hours"),
        (job(hours=-1), "hours"),
        ('{"id": "x", "func": "nightly", "trigger": "interval", "hours": NaN}', "NaN"),
        (job(hours=1e300), "too long"),
        (job(args="text"), "args"),
        (job(args=[1, 2, 3]), "cannot be called so"),
        (job(kwargs={"colour": 1}), "colour"),
        (job(kwargs=[1]), "kwargs"),
        (job(max_instances=0), "max_instances"),
        (job(misfire_grace_time="soon"), "misfire_grace_time"),
        (job(next_run_time="tomorrow"), "next_run_time"),
        (job(timezone="Moon/Base"), "Moon/Base"),
        (job(scope="worker"), "worker"),
        (job(scope=["cluster"]), "scope"),
        (job(name=5), "name"),
        (job(args=["\ud800"]), "surrogate"),
        (job(replace_existing="yes"), "replace_existing"),
    ],
)
def test_what_cannot_be_used_is_named_with_400(public: FlaskClient, body: Any, said: str) -> None:
    answer = send(public, "POST", "/jobs", body)
    assert answer.status_code == 400, answer.text
    assert said in answer.get_json()["error_message"]
    assert "Traceback" not in answer.text
    assert send(public, "GET", "/jobs/sent").status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("nothing", "no JSON"),
        ({"id": "other"}, "cannot be changed"),
        ({"color": 1}, "'color' is not known"),
        ({"trigger": "fortnightly"}, "fortnightly"),
        ({"args": {}}, "args"),
        ({"replace_existing": True}, "replace_existing"),
        ({"trigger": "date", "run_date": "someday"}, "someday"),
    ],
)
def test_a_change_that_cannot_be_made_is_named_with_400(public: FlaskClient, body: Any, said: str) -> None:
    before = send(public, "GET", "/jobs/nightly").get_json()
    answer = send(public, "PATCH", "/jobs/nightly", body)
    assert answer.status_code == 400, answer.text
    assert said in answer.get_json()["error_message"]
    assert send(public, "GET", "/jobs/nightly").get_json() == before


def test_a_change_of_nothing_changes_nothing(public: FlaskClient) -> None:
    before = send(public, "GET", "/jobs/nightly").get_json()
    answer = send(public, "PATCH", "/jobs/nightly", {"id": "nightly"})
    assert (answer.status_code, answer.get_json()) == (200, before)


def test_a_job_that_the_code_defines_conflicts_unless_replaced(public: FlaskClient) -> None:
    assert send(public, "POST", "/jobs", job(id="nightly")).status_code == 409
    answer = send(public, "POST", "/jobs", job(id="nightly", replace_existing=True))
    assert (answer.status_code, answer.get_json()["hours"]) == (200, 1)


def test_an_equal_job_may_be_sent_again(public: FlaskClient) -> None:
    for _ in range(2):
        assert send(public, "POST", "/jobs", job()).status_code == 200


@pytest.mark.parametrize(
    "id", ["a/b", "a/pause", "ä ö", "a?b#c", "100%", "..", "Nachtlauf 日本", "a/", "%2F", "/x", "//"]
)
def test_ids_may_hold_slashes_and_any_letters(public: FlaskClient, id: str) -> None:
    from urllib.parse import quote

    assert send(public, "POST", "/jobs", job(id=id)).status_code == 200
    path = f"/jobs/{quote(id, safe='')}"
    assert send(public, "GET", path).get_json()["id"] == id
    assert send(public, "POST", f"{path}/pause").get_json()["paused"] is True
    assert send(public, "POST", f"{path}/resume").get_json()["paused"] is False
    assert send(public, "DELETE", path).status_code == 204
    assert send(public, "GET", path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/jobs/nightly"), ("DELETE", "/jobs"), ("POST", ""), ("GET", "/pause")]
)
def test_another_method_is_not_allowed(public: FlaskClient, method: str, path: str) -> None:
    answer = send(public, method, path)
    assert answer.status_code == 405
    assert answer.headers["Allow"]


def test_a_run_in_which_the_job_fails_tells_nothing_of_the_inside(tmp_path: Path) -> None:
    jobs, app = make(tmp_path)
    jobs.task("cron", "failing", hour=3)(failing)
    answer = send(app.test_client(), "POST", "/jobs/failing/run")
    assert answer.status_code == 500
    assert answer.get_json()["run"]["status"] == "failed"
    assert "failing failed in run " in answer.get_json()["error_message"]
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text


def test_a_run_while_the_job_runs_conflicts_and_says_since_when(tmp_path: Path) -> None:
    jobs, app = make(tmp_path)
    jobs.task("cron", "held", hour=3)(held)
    gate.clear()
    first: list[int] = []
    runner = threading.Thread(
        target=lambda: first.append(send(app.test_client(), "POST", "/jobs/held/run").status_code)
    )
    runner.start()
    try:
        from tests.integration.waiting import wait_until

        wait_until(lambda: _is_held(app), 20, "the job runs")
        answer = send(app.test_client(), "POST", "/jobs/held/run")
        assert answer.status_code == 409
        assert datetime.fromisoformat(answer.get_json()["running_since"])
        assert "is held by host" in answer.get_json()["error_message"]
    finally:
        gate.set()
        runner.join(20)
    assert first == [200]


def _is_held(app: Flask) -> bool:
    engine = engine_of(app)
    assert engine is not None
    return bool(engine.manager.held())


def test_a_run_may_be_handed_to_an_owner(public: FlaskClient) -> None:
    ran.clear()
    answer = send(public, "POST", "/jobs/nightly/run?wait=false")
    assert (answer.status_code, answer.get_json()["id"]) == (202, "nightly")
    assert ran == []
    assert send(public, "POST", "/jobs/nightly/run?wait=maybe").status_code == 400


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/jobs"), ("POST", "/pause"), ("POST", "/jobs/nightly/pause")]
)
def test_a_store_that_is_away_is_said_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    _, app = make(tmp_path)
    engine = engine_of(app)
    assert engine is not None

    def away() -> Any:
        raise StoreError("postgresql://user@db.internal did not answer")

    monkeypatch.setattr(engine, "ready_store", away)
    answer = send(app.test_client(), method, path)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert "internal" not in answer.text


def test_what_fails_inside_is_logged_and_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, app = make(tmp_path)
    engine = engine_of(app)
    assert engine is not None

    def broken() -> Any:
        raise KeyError("secret detail")

    monkeypatch.setattr(engine.api, "get_jobs", broken)
    answer = send(app.test_client(), "GET", "/jobs")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text


def test_changes_are_told_to_the_audit_log(guarded: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    send(guarded, "POST", "/jobs/nightly/pause", X_User="admin", X_Requested_With="x")
    send(guarded, "GET", "/jobs/nightly", X_User="admin")
    lines = [record.getMessage() for record in caplog.records if record.name == "flask_singlejob.audit"]
    assert len(lines) == 1
    assert "pause_job 'nightly': done" in lines[0]


def test_a_job_whose_function_is_not_there_is_shown_as_broken(tmp_path: Path) -> None:
    _, app = make(tmp_path)
    engine = engine_of(app)
    assert engine is not None
    client = app.test_client()
    send(client, "POST", "/jobs", job())
    body = dict(engine.store.docs("job")[0].body)
    engine.store.put("job", "sent", {**body, "func": "gone.module:work"})
    shown = send(client, "GET", "/jobs/sent").get_json()
    assert "gone" in shown["broken"]
    assert shown["func"] == "gone.module:work"
    assert send(client, "POST", "/jobs/sent/run").status_code == 400


def test_arguments_that_json_lacks_are_shown_as_text(tmp_path: Path) -> None:
    jobs, app = make(tmp_path)

    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    jobs.task("cron", "odd", hour=3, args=[Secret()])(nightly)
    answer = send(app.test_client(), "GET", "/jobs/odd")
    assert answer.status_code == 200
    assert "Secret" in answer.get_json()["args"][0]
    assert "hunter2" not in answer.text
