"""Nobody sees or changes jobs over the page without being let in, and no other site can make somebody do so."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask, abort, g, request

from flask_singlejob import ConfigError
from flask_singlejob.web.guard import CSRF_COOKIE, acting_user, apply_guard, unsafe_reason
from tests.unit.web_kit import HOSTILE, ORIGIN, act, engine_for, form_token, make_app

View = Callable[..., Any]


def only_admins(view: View) -> View:
    @functools.wraps(view)
    def wrapper(**arguments: Any) -> Any:
        if request.headers.get("X-User") != "admin":
            abort(403)
        g.user = SimpleNamespace(username="admin")
        return view(**arguments)

    return wrapper


def only_looking(view: View) -> View:
    @functools.wraps(view)
    def wrapper(**arguments: Any) -> Any:
        if request.method != "GET":
            abort(403)
        g.singlejob_read_only = True
        return view(**arguments)

    return wrapper


def paused(app: Flask, job_id: str = "nightly") -> bool:
    job, _ = engine_for(app).manager.job(job_id)
    assert job is not None
    return job.paused


def page_rules(app: Flask) -> list[tuple[str, str]]:
    """Return (path, method) of everything under the page's prefix."""
    return [
        (rule.rule.replace("<path:filename>", "page.css"), method)
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/singlejob")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    ]


def test_every_page_and_action_lies_behind_the_guard() -> None:
    app = make_app(guard=only_admins)
    rules = page_rules(app)
    assert len(rules) >= 10
    for path, method in rules:
        assert app.test_client().open(path, method=method).status_code == 403, (path, method)


def test_guard_lets_in_whom_it_knows() -> None:
    app = make_app(guard=only_admins)
    client = app.test_client()
    for path, method in page_rules(app):
        if method == "GET":
            answer = client.get(
                path, headers={"X-User": "admin"}, query_string={"id": "nightly", "action": "run"}
            )
            # There is no run of that id; all else is shown.
            assert answer.status_code == (404 if path.endswith("/run") else 200), path


def test_guard_may_be_named_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(guard="tests.unit.test_web_guard:only_admins")
    assert app.test_client().get("/singlejob/").status_code == 403


def test_page_without_guard_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="SINGLEJOB_GUARD"):
        make_app(SINGLEJOB_GUARD=None)


def test_guard_that_returns_no_view_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="view decorator"):
        make_app(guard=lambda view: None)  # type: ignore[arg-type, return-value]


def test_view_is_never_served_without_a_guard() -> None:
    with pytest.raises(ConfigError):
        apply_guard(lambda: "", SimpleNamespace(guard=None))  # type: ignore[arg-type]


def test_async_guard_is_awaited() -> None:
    pytest.importorskip("asgiref")

    def guard(view: View) -> View:
        @functools.wraps(view)
        async def wrapper(**arguments: Any) -> Any:
            return "not you", 403

        return wrapper

    assert make_app(guard=guard).test_client().get("/singlejob/").status_code == 403


def test_guard_that_lets_only_get_through_makes_a_read_only_page() -> None:
    app = make_app(guard=only_looking)
    client = app.test_client()
    page = client.get("/singlejob/job", query_string={"id": "nightly"})
    assert page.status_code == 200
    assert "confirm?action" not in page.text
    token = form_token(client, "pause", "nightly")
    assert act(client, "pause", "nightly", token=token).status_code == 403
    assert not paused(app)


def test_read_only_holds_even_where_the_guard_lets_the_form_through() -> None:
    def guard(view: View) -> View:
        @functools.wraps(view)
        def wrapper(**arguments: Any) -> Any:
            g.singlejob_read_only = True
            return view(**arguments)

        return wrapper

    app = make_app(guard=guard)
    client = app.test_client()
    assert act(client, "pause", "nightly").status_code == 403
    assert not paused(app)


@pytest.mark.parametrize("secret", ["a secret", None], ids=["with SECRET_KEY", "without SECRET_KEY"])
def test_confirmed_action_is_done(secret: str | None) -> None:
    app = make_app(secret=secret)
    client = app.test_client()
    answer = act(client, "pause", "nightly")
    assert answer.status_code == 303
    assert paused(app)
    assert act(client, "resume", "nightly").status_code == 303
    assert not paused(app)


@pytest.mark.parametrize("secret", ["a secret", None], ids=["with SECRET_KEY", "without SECRET_KEY"])
@pytest.mark.parametrize("token", ["", "wrong", "x" * 43])
def test_action_without_its_token_is_refused_and_asked_again(secret: str | None, token: str) -> None:
    app = make_app(secret=secret)
    client = app.test_client()
    form_token(client, "pause", "nightly")
    answer = act(client, "pause", "nightly", token=token)
    assert answer.status_code == 400
    assert 'name="singlejob_token"' in answer.text
    assert not paused(app)


@pytest.mark.parametrize("secret", ["a secret", None], ids=["with SECRET_KEY", "without SECRET_KEY"])
def test_token_of_another_visitor_is_refused(secret: str | None) -> None:
    app = make_app(secret=secret)
    stolen = form_token(app.test_client(), "pause", "nightly")
    client = app.test_client()
    form_token(client, "pause", "nightly")
    assert act(client, "pause", "nightly", token=stolen).status_code == 400
    assert act(app.test_client(), "pause", "nightly", token=stolen).status_code == 400
    assert not paused(app)


def test_cookie_of_the_token_is_kept_from_scripts_and_other_sites() -> None:
    answer = make_app().test_client().get("/singlejob/confirm?action=pause&id=nightly")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(CSRF_COOKIE)
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/singlejob/" in cookie
    secure = (
        make_app()
        .test_client()
        .get("/singlejob/confirm?action=pause&id=nightly", base_url="https://localhost")
    )
    assert "Secure" in secure.headers["Set-Cookie"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://localhost@evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Origin": ORIGIN},
        {"Sec-Fetch-Site": "same-site", "Origin": ORIGIN},
    ],
    ids=str,
)
def test_form_of_another_site_is_refused_even_with_a_token(headers: dict[str, str]) -> None:
    app = make_app()
    client = app.test_client()
    token = form_token(client, "pause", "nightly")
    assert act(client, "pause", "nightly", token=token, headers=headers).status_code == 403
    assert not paused(app)


def test_actions_are_done_by_post_only() -> None:
    app = make_app()
    client = app.test_client()
    token = form_token(client, "pause", "nightly")
    query = {"action": "pause", "id": "nightly", "singlejob_token": token}
    assert client.get("/singlejob/act", query_string=query).status_code == 405
    assert not paused(app)


def test_asking_changes_nothing() -> None:
    app = make_app()
    form_token(app.test_client(), "pause", "nightly")
    assert not paused(app)


@pytest.mark.parametrize(
    ("method", "headers", "safe"),
    [
        ("GET", {"Origin": "https://evil.example"}, True),
        ("POST", {}, True),
        ("POST", {"Origin": "http://localhost"}, True),
        ("POST", {"Origin": "https://localhost"}, True),
        ("POST", {"Origin": "https://jobs.example", "X-Forwarded-Host": "jobs.example"}, True),
        ("POST", {"Referer": "http://localhost/page"}, True),
        ("POST", {"Referer": "https://evil.example/http://localhost/"}, False),
        ("POST", {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.proxy"}, True),
        ("POST", {"Sec-Fetch-Site": "none"}, True),
        ("POST", {"Cookie": "session=1"}, False),
        ("POST", {"Cookie": "session=1", "Content-Type": "application/json"}, True),
        ("POST", {"Cookie": "session=1", "Authorization": "Basic eDp5"}, True),
        ("DELETE", {"Origin": "https://evil.example"}, False),
    ],
    ids=str,
)
def test_requests_of_other_sites_are_told_from_own_ones(
    method: str, headers: dict[str, str], safe: bool
) -> None:
    app = Flask("x")
    with app.test_request_context("/", method=method, headers=headers):
        assert (unsafe_reason(request) is None) is safe


# -- who did it -------------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "flask_singlejob.audit"]


def test_action_leaves_one_line_that_says_who_did_what_from_where(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(guard=only_admins)
    client = app.test_client()
    client.environ_base["HTTP_X_USER"] = "admin"
    with caplog.at_level(logging.INFO, "flask_singlejob.audit"):
        assert act(client, "pause", "nightly").status_code == 303
    assert lines(caplog) == ["audit: user 'admin' from 127.0.0.1: pause 'nightly': done"]


def test_refused_action_leaves_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    client = make_app().test_client()
    act(client, "pause", "nightly", token="wrong")
    act(client, "pause", "nightly", headers={"Origin": "https://evil.example"})
    found = lines(caplog)
    assert len(found) == 2
    assert "token" in found[0]
    assert "evil.example" in found[1]


def test_hostile_name_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    client = make_app().test_client()
    assert act(client, "pause", HOSTILE).status_code == 303
    (line,) = lines(caplog)
    assert "\n" not in line
    assert "\u202e" not in line


class Named:
    """A user whose name is read from an attribute."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Broken:
    """A user object that fails when it is looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no session")


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("ann", "ann"),
        ({"email": "ann@example.org"}, "ann@example.org"),
        (Named(username="ann"), "ann"),
        (Named(id=7), "7"),
        (Named(get_id=lambda: "u7"), "u7"),
        (Named(is_anonymous=True, username="guest"), None),
        (Broken(), None),
        (None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (Named, Broken)) else str(value),
)
def test_acting_user_is_what_the_guard_left(user: Any, name: str | None) -> None:
    with Flask("x").test_request_context("/"):
        g.user = user
        assert acting_user() == name


def test_acting_user_is_the_servers_or_the_credentials_otherwise() -> None:
    app = Flask("x")
    with app.test_request_context("/", environ_base={"REMOTE_USER": "kerberos-ann"}):
        assert acting_user() == "kerberos-ann"
    with app.test_request_context("/", headers={"Authorization": "Basic YW5uOnNlY3JldA=="}):
        assert acting_user() == "ann"
    assert acting_user() is None
