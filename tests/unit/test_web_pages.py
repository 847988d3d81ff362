"""The page's answers: every page, hostile texts, a long history, many jobs, a store that is away."""

from __future__ import annotations

import re
import threading
import time
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from flask_singlejob import RunStatus, current_run
from flask_singlejob.records import ClaimKey
from flask_singlejob.web import dashboard
from tests.unit.web_kit import HOSTILE, act, ended, engine_for, make_app, take_store_away

PAGES = ("/", "/timeline", "/jobs", "/job?id=nightly", "/runs", "/locks", "/confirm?action=run&id=nightly")


class Page(HTMLParser):
    """What a page holds: links, forms' targets, scripts, styles, the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.inline: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self._within.append(tag)
        for name in ("href", "action"):
            if given.get(name) and tag != "link":
                self.links.append(str(given[name]))
        if tag == "link" or given.get("src"):
            self.loads.append(str(given.get("href") or given.get("src")))
        if "style" in given or any(name.startswith("on") for name in given):
            self.inline.append(self.get_starttag_text() or tag)

    def handle_data(self, data: str) -> None:
        if self._within and self._within[-1] in ("script", "style") and data.strip():
            self.inline.append(data)
        self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    @property
    def text(self) -> str:
        """The words, each gap one space."""
        return " ".join(" ".join(self.words).split())


def client_with_history(**config: Any) -> tuple[Flask, FlaskClient]:
    app = make_app(**config)
    store = engine_for(app).ready_store()
    store.add_run(ended("nightly", ago=50))
    store.add_run(
        ended(
            "bad", RunStatus.FAILED, ago=40, error="Traceback\nValueError: <script>window.hacked=2</script>"
        )
    )
    store.add_run(ended("bad", RunStatus.SKIPPED, ago=30, reason="held", count=7))
    store.add_run(ended("nightly", RunStatus.MISSED, ago=20, reason="no_owner"))
    store.add_run(
        ended(HOSTILE, RunStatus.LOST, ago=10, reason="process_died", detail="</td><script>1</script>")
    )
    return app, app.test_client()


@pytest.mark.parametrize("path", PAGES)
def test_pages_hold_no_inline_script_and_load_from_here_only(path: str) -> None:
    _, client = client_with_history()
    answer = client.get(f"/singlejob{path}")
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    page = Page(answer.text)
    assert page.inline == []
    assert page.loads
    for address in page.loads:
        assert address.startswith("/singlejob/static/")
        assert client.get(address).status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"


def test_every_link_of_every_page_leads_somewhere() -> None:
    _, client = client_with_history()
    seen: set[str] = set()
    waiting = ["/singlejob/"]
    while waiting:
        path = waiting.pop()
        if path in seen or path.startswith("#") or len(seen) > 300:
            continue
        seen.add(path)
        if path == "/singlejob/act":
            continue
        answer = client.get(path)
        assert answer.status_code == 200, path
        waiting += Page(answer.text).links
    assert {urlsplit(path).path for path in seen} >= {
        f"/singlejob/{name}"
        for name in ("", "timeline", "jobs", "job", "runs", "run", "locks", "confirm", "act")
    }


def test_hostile_id_has_a_page_and_is_shown_as_text() -> None:
    _, client = client_with_history()
    answer = client.get("/singlejob/job", query_string={"id": HOSTILE})
    assert answer.status_code == 200
    page = Page(answer.text)
    assert page.tags.count("script") == 1
    assert "<script>window.hacked=1</script>" in page.text
    assert "{{7*7}}" in page.text
    assert "\u202e" not in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_no_page_is_changed_by_hostile_ids_and_errors(path: str) -> None:
    _, client = client_with_history()
    page = Page(client.get(f"/singlejob{path}").text)
    assert page.tags.count("script") == 1
    assert "\u202e" not in " ".join(page.words)


def test_error_with_a_line_of_10_kilobytes_is_shown_whole() -> None:
    app = make_app()
    run = ended("bad", RunStatus.FAILED, error=f"Traceback\nValueError: {'<x>' * 4000}")
    engine_for(app).ready_store().add_run(run)
    answer = app.test_client().get("/singlejob/run", query_string={"id": run.id})
    assert answer.status_code == 200
    assert "<x>" * 4000 in Page(answer.text).text


def test_overview_tells_who_owns_what_and_what_went_wrong() -> None:
    app, client = client_with_history()
    body = {
        "host": "h1",
        "pid": 4242,
        "owner_since": "2026-01-02T03:04:05+00:00",
        "offset_ms": 1500,
        "beat_ms": 10_000,
    }
    engine_for(app).store.put("host", "h1@x", {**body, "warnings": ["the clock is wrong"]}, quiet=True)
    text = Page(client.get("/singlejob/").text).text
    for part in (
        "owner pid 4242",
        "2026-01-02 03:04:05 UTC",
        "+1.5 s",
        "the clock is wrong",
        "process_died",
        "held",
    ):
        assert part in text, part
    assert "window.hacked=2" in text


def test_overview_names_what_health_finds() -> None:
    text = Page(make_app().test_client().get("/singlejob/").text).text
    assert "to set right" in text
    assert "has no owner" in text


def test_job_tells_its_trigger_settings_history_and_skips() -> None:
    _, client = client_with_history()
    text = Page(client.get("/singlejob/job?id=bad").text).text
    for part in ("every 5 minutes", "interval[0:05:00]", "7 ticks", "held", "by the code", "ValueError"):
        assert part in text, part
    nightly = Page(client.get("/singlejob/job?id=nightly").text).text
    for part in (
        "at 03:00 every day",
        "cron[hour='3']",
        "Tidy up <i>everything</i>.",
        "'<b>bold</b>'",
        "100 %",
        "1 s",
    ):
        assert part in nightly, part


def test_worker_job_shows_its_last_run_though_it_holds_no_claim() -> None:
    app = make_app()
    engine_for(app).ready_store().add_run(ended("everywhere", ago=90, scope="worker"))
    page = app.test_client().get("/singlejob/jobs?q=everywhere")
    assert "never" not in Page(page.text).text
    assert re.search(r"\d min( \d+ s)? ago", Page(page.text).text)
    assert "100 %" in Page(page.text).text


def test_run_tells_times_host_token_and_traceback() -> None:
    app, client = client_with_history()
    run = engine_for(app).store.runs("bad", status=[RunStatus.FAILED])[0]
    text = Page(client.get("/singlejob/run", query_string={"id": run.id}).text).text
    for part in (run.id, "h1", "4711", "17", "250 ms", "1 s", "by schedule", "ValueError: <script>"):
        assert part in text, part


def test_held_locks_are_listed_and_unlocked_one_by_one() -> None:
    app, client = client_with_history()
    engine = engine_for(app)
    with app.app_context(), engine.locks.lock("import <b>"), engine.locks.lock("other"):
        page = client.get("/singlejob/locks")
        text = Page(page.text).text
        assert "import <b>" in text
        assert "h1" in text
        (row,) = engine.store.rows([ClaimKey("lock", "import <b>")])
        assert row.holder is not None
        assert act(client, "unlock", "import <b>", kind="lock", holder="f" * 32).status_code == 409
        assert act(client, "unlock", "import <b>", kind="lock", holder=row.holder).status_code == 303
        assert [held.key.name for held in engine.store.poll().held] == ["other"]
        again = act(client, "unlock", "import <b>", kind="lock", holder=row.holder)
        assert again.status_code == 409
        assert "ended meanwhile" in again.text


def test_run_by_hand_is_handed_to_the_owners_and_shown_as_waiting() -> None:
    app = make_app()
    client = app.test_client()
    assert act(client, "run", "nightly").status_code == 303
    (request,) = engine_for(app).store.docs("request")
    assert request.body["job_id"] == "nightly"
    assert "waits for an owner" in Page(client.get("/singlejob/job?id=nightly").text).text


def test_worker_job_cannot_be_run_from_here_and_says_why() -> None:
    client = make_app().test_client()
    assert "action=run" not in client.get("/singlejob/job?id=everywhere").text
    answer = act(client, "run", "everywhere")
    assert answer.status_code == 409
    assert "every worker" in answer.text


def test_whole_cluster_is_paused_and_resumed() -> None:
    app = make_app()
    client = app.test_client()
    assert act(client, "pause-all").status_code == 303
    assert engine_for(app).manager.paused_all()
    assert "whole cluster is paused" in client.get("/singlejob/").text
    assert act(client, "resume-all").status_code == 303
    assert not engine_for(app).manager.paused_all()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/job?id=nobody", 404),
        ("/run?id=nobody", 404),
        ("/job", 400),
        ("/run", 400),
        (f"/job?id={'x' * 300}", 400),
        ("/runs?before=yesterday", 400),
        ("/confirm?action=explode&id=nightly", 400),
        ("/confirm?action=pause", 400),
        ("/jobs?page=999&state=none&sort=none", 200),
        ("/jobs?page=-3", 200),
        ("/timeline?span=forever", 200),
        ("/runs?status=none", 200),
        ("/static/../show.py", 404),
        ("/static/nothing.css", 404),
    ],
)
def test_odd_requests_are_answered_with_what_is_wrong(path: str, code: int) -> None:
    assert make_app().test_client().get(f"/singlejob{path}").status_code == code


def test_action_on_a_job_that_is_gone_says_so() -> None:
    client = make_app().test_client()
    assert act(client, "pause", "nobody").status_code == 404


def test_running_job_shows_its_progress_and_holder() -> None:
    app = make_app()
    engine = engine_for(app)
    going, end = threading.Event(), threading.Event()

    def work() -> None:
        current_run.progress(3, 10, "rows <b>")
        going.set()
        end.wait(20)

    engine.api.add_job("slow", work, trigger="interval", hours=1, persist=False)
    runner = threading.Thread(target=lambda: engine.manager.run("slow"))
    runner.start()
    try:
        assert going.wait(20)
        client = app.test_client()
        deadline = time.monotonic() + 20
        while "3 of 10" not in (text := Page(client.get("/singlejob/job?id=slow").text).text):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        assert "rows <b>" in text
        assert "running" in Page(client.get("/singlejob/").text).text
    finally:
        end.set()
        runner.join(20)


# -- size -------------------------------------------------------------------------------------------------


def test_500_jobs_are_paged_and_searched_on_the_server() -> None:
    app = make_app()
    engine = engine_for(app)
    for number in range(500):
        engine.api.add_job(f"report {number:03}", print, trigger="interval", hours=1 + number, persist=False)
    client = app.test_client()
    first = client.get("/singlejob/jobs")
    assert len(first.text) < 200_000
    text = Page(first.text).text
    assert "1 to 25 of 504" in text
    assert "Page 1 of 21" in text
    last = Page(client.get("/singlejob/jobs?page=21").text).text
    assert "501 to 504 of 504" in last
    found = Page(client.get("/singlejob/jobs?q=REPORT+333").text)
    assert "1 to 1 of 1 that fit, of 504 in all" in found.text
    assert "Page 1 of" not in found.text
    engine.manager.pause("report 333")
    assert "1 to 1 of 1 that fit" in Page(client.get("/singlejob/jobs?state=paused").text).text
    assert len(client.get("/singlejob/").text) < 200_000


def test_jobs_are_sorted_by_what_is_due_next() -> None:
    client = make_app().test_client()
    page = Page(client.get("/singlejob/jobs?sort=next").text)
    ids = [parse_qs(urlsplit(link).query)["id"][0] for link in page.links if "/job?" in link]
    assert ids.index("bad") < ids.index("nightly")


def test_history_is_read_page_by_page_to_its_end() -> None:
    app = make_app()
    store = engine_for(app).ready_store()
    for number in range(130):
        store.add_run(ended("nightly", ago=1000 - number, pid=10_000 + number))
    for start in ("/singlejob/runs", "/singlejob/job?id=nightly"):
        client, seen, path = app.test_client(), [], start
        while path:
            page = Page(client.get(path).text)
            ids = [parse_qs(urlsplit(link).query)["id"][0] for link in page.links if "/run?" in link]
            seen += list(dict.fromkeys(ids))
            path = next((link for link in page.links if "before=" in link), "")
        assert len(set(seen)) == 130
        assert len(seen) == 130


def test_pages_ask_for_no_more_of_a_long_history_than_they_show() -> None:
    app = make_app()
    engine = engine_for(app)
    asked: list[int] = []
    real = engine.ready_store().runs

    def counted(*arguments: Any, **named: Any) -> Any:
        asked.append(named.get("limit", 100))
        return real(*arguments, **named)

    engine.store.runs = counted  # type: ignore[method-assign]
    client = app.test_client()
    for path in PAGES:
        asked.clear()
        client.get(f"/singlejob{path}")
        assert sum(asked) <= 2100, (path, asked)


# -- where it is served -----------------------------------------------------------------------------------


def test_links_hold_what_the_app_is_mounted_under() -> None:
    app, _ = client_with_history(SINGLEJOB_DASHBOARD_PREFIX="/ops/jobs")
    mounted = Client(DispatcherMiddleware(Flask("other"), {"/shop": app.wsgi_app}))
    answer = mounted.get("/shop/ops/jobs/")
    assert answer.status_code == 200
    page = Page(answer.text)
    assert page.links
    for address in [*page.links, *page.loads]:
        assert address.startswith(("/shop/ops/jobs/", "#main")), address
    assert (
        mounted.get("/shop/ops/jobs/confirm?action=pause-all")
        .headers["Set-Cookie"]
        .count("Path=/shop/ops/jobs/")
        == 1
    )


def test_page_does_not_depend_on_the_apps_own_templates() -> None:
    app = make_app()
    app.jinja_options = {"variable_start_string": "[[", "variable_end_string": "]]"}
    app.context_processor(lambda: {"now": "broken", "url": None, "cluster": 1})
    assert app.test_client().get("/singlejob/").status_code == 200


def test_form_carries_the_token_that_flask_wtf_asks_for() -> None:
    app = make_app()
    app.jinja_env.globals["csrf_token"] = lambda: "token-of-the-app"
    page = app.test_client().get("/singlejob/confirm?action=run&id=nightly")
    assert '<input type="hidden" name="csrf_token" value="token-of-the-app">' in page.text


# -- a store that is away ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES[:-1])
def test_store_that_is_away_gives_503_and_what_is_known_here(path: str) -> None:
    app, client = client_with_history()
    take_store_away(app)
    answer = client.get(f"/singlejob{path}")
    assert answer.status_code == 503
    text = Page(answer.text).text
    assert "The store is away" in text
    assert "nobody answers at db.example:5432" in text
    assert "nightly" in text
    assert "Traceback" not in text


def test_hanging_store_is_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "PAGE_SECONDS", 0.2)
    app = make_app()
    release = threading.Event()
    take_store_away(app, wait=release)
    try:
        answer = app.test_client().get("/singlejob/")
    finally:
        release.set()
    assert answer.status_code == 503
    assert "did not answer within 0.2 s" in answer.text


def test_action_while_the_store_is_away_says_that_it_is(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app()
    client = app.test_client()
    take_store_away(app)
    answer = act(client, "pause", "nightly")
    assert answer.status_code == 503
    assert any("not known" in record.getMessage() for record in caplog.records)
