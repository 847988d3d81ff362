"""Health over HTTP: what probes are told, and that a store outage does not take the site down."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from flask_singlejob import Health, SingleJob
from flask_singlejob.web import health as health_module
from tests.unit.web_kit import make_app, take_store_away


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What a hanging store waits for; it is let go at the end."""
    event = threading.Event()
    yield event
    event.set()


def probed(**config: Any) -> Flask:
    """Return an app whose health is at ``/healthz``."""
    return make_app(SINGLEJOB_HEALTH_PREFIX="/healthz", **config)


def test_checks_answer_200_and_no_reasons_when_all_is_well() -> None:
    client = probed().test_client()
    for check in ("live", "ready"):
        answer = client.get(f"/healthz/{check}")
        assert answer.status_code == 200
        assert answer.json == {"ok": True, "reasons": []}
        assert answer.headers["Cache-Control"] == "no-store"


def test_jobs_check_answers_503_with_its_reasons() -> None:
    answer = probed().test_client().get("/healthz/jobs")
    assert answer.status_code == 503
    assert answer.json is not None
    assert any("has no owner" in reason for reason in answer.json["reasons"])


def test_store_outage_fails_the_jobs_check_and_neither_live_nor_ready() -> None:
    app = probed()
    take_store_away(app)
    client = app.test_client()
    assert client.get("/healthz/live").status_code == 200
    assert client.get("/healthz/ready").status_code == 200
    jobs = client.get("/healthz/jobs")
    assert jobs.status_code == 503
    assert "the store is away" in str(jobs.json)


def test_live_never_asks_the_store(released: threading.Event) -> None:
    app = probed()
    take_store_away(app, wait=released)
    began = time.monotonic()
    assert app.test_client().get("/healthz/live").status_code == 200
    # The hanging store would hold it for 30 seconds, the time limit of a question for most of one.
    assert time.monotonic() - began < 0.8 * 5


def test_ready_asks_nothing_without_a_start_up_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "health", lambda engine, check: Health(False, ("was asked",)))
    assert probed().test_client().get("/healthz/ready").status_code == 200


def test_many_probes_of_a_hanging_store_are_one_question(released: threading.Event) -> None:
    app = probed()
    take_store_away(app, wait=released)
    codes: list[int] = []
    probes = [
        threading.Thread(target=lambda: codes.append(app.test_client().get("/healthz/jobs").status_code))
        for _ in range(12)
    ]
    before = threading.active_count()
    for probe in probes:
        probe.start()
    for probe in probes:
        probe.join(20)
    assert codes == [503] * 12
    # One for each question to the store; on a slow machine some probes came after the first answer.
    assert threading.active_count() <= before + 6


def test_ready_fails_while_a_start_up_task_is_pending_and_live_does_not() -> None:
    app = Flask("shop")
    app.testing = True
    app.config["SINGLEJOB_HEALTH_PREFIX"] = "/healthz"
    jobs = SingleJob(app)

    @jobs.once("seed", before_requests=True)
    def seed() -> None:
        pass

    client = app.test_client()
    assert client.get("/healthz/live").status_code == 200
    answer = client.get("/healthz/ready")
    assert answer.status_code == 503
    assert "'seed'" in str(answer.json)
    with app.app_context():
        assert seed() is True
    assert client.get("/healthz/ready").status_code == 200


def test_checks_need_no_guard() -> None:
    def nobody(view: object) -> object:
        return lambda **_: ("no", 403)

    client = probed(guard=nobody).test_client()
    assert client.get("/healthz/live").status_code == 200
    assert client.get("/singlejob/").status_code == 403


def test_reasons_become_json() -> None:
    with Flask("x").app_context():
        answer = health_module.answer_of(Health(False, ("a", "b")))
    assert answer.status_code == 503
    assert answer.json == {"ok": False, "reasons": ["a", "b"]}


def test_no_route_without_a_prefix() -> None:
    rules = [rule.rule for rule in make_app().url_map.iter_rules()]
    assert not any(rule.endswith("/live") for rule in rules)
