"""A store that can never serve is told as one that is away: by health, metrics, pages, REST, requests and doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from flask_singlejob import ConfigError, SingleJob, process
from flask_singlejob.engine_parts import EngineParts
from flask_singlejob.process import Role, Standing

PATHS = (
    "/singlejob/",
    "/singlejob/jobs",
    "/singlejob/runs",
    "/singlejob/locks",
    "/scheduler",
    "/scheduler/jobs",
)


def make_app(tmp_path: Path, **config: Any) -> tuple[Flask, SingleJob]:
    app = Flask("shop", instance_path=str(tmp_path))
    app.secret_key = "not so secret"
    app.config.update(
        SINGLEJOB_GUARD="public",
        SINGLEJOB_DASHBOARD=True,
        SINGLEJOB_HEALTH_PREFIX="/healthz",
        SINGLEJOB_METRICS_PATH="/metrics",
        SINGLEJOB_LOCK_FILE=str(tmp_path / "lock"),
        SCHEDULER_API_ENABLED=True,
    )
    app.config.update(config)
    return app, SingleJob(app)


@pytest.fixture(params=[ConfigError("its options: 'nope'"), ValueError("not to be read: 'nope'")])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app whose store cannot be opened, for a reason that is told well or not."""

    def refuse(self: EngineParts) -> Any:
        raise request.param

    monkeypatch.setattr(EngineParts, "_open_store", refuse)
    return make_app(tmp_path)


def test_health_is_false_and_names_the_keys(shop: tuple[Flask, SingleJob]) -> None:
    app, jobs = shop
    assert jobs.health("live")
    for check in ("jobs", "all"):
        health = jobs.health(check)
        (reason,) = [text for text in health.reasons if "cannot be used" in text]
        assert "SINGLEJOB_STORE" in reason
        assert "nope" in reason
    answer = app.test_client().get("/healthz/jobs")
    assert answer.status_code == 503
    assert "SINGLEJOB_STORE_OPTIONS" in answer.text


def test_metrics_say_that_the_store_is_not_up(shop: tuple[Flask, SingleJob]) -> None:
    answer = shop[0].test_client().get("/metrics")
    assert answer.status_code == 200
    assert "singlejob_up 0.0" in answer.text


@pytest.mark.parametrize("path", PATHS)
def test_pages_and_rest_answer_503(path: str, shop: tuple[Flask, SingleJob]) -> None:
    answer = shop[0].test_client().get(path)
    assert answer.status_code == 503
    assert "cannot be used" in answer.text
    assert "Traceback" not in answer.text


def test_an_action_answers_503(shop: tuple[Flask, SingleJob]) -> None:
    client = shop[0].test_client()
    done = client.post("/scheduler/pause", json={})
    assert (done.status_code, "cannot be used" in done.text) == (503, True)


def test_requests_are_answered_503_while_a_task_before_them_cannot_be_asked_about(
    shop: tuple[Flask, SingleJob], caplog: pytest.LogCaptureFixture
) -> None:
    app, jobs = shop
    app.add_url_rule("/", view_func=lambda: "hello")
    assert app.test_client().get("/").status_code == 200
    jobs.once("seed", before_requests=True)(print)
    for _ in range(3):
        answer = app.test_client().get("/")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert len([record for record in caplog.records if "answered 503" in record.getMessage()]) == 1
    assert not jobs.health("ready")
    assert app.test_client().get("/healthz/ready").status_code == 503
    assert app.test_client().get("/healthz/live").status_code == 200


def test_doctor_has_a_finding_for_it(shop: tuple[Flask, SingleJob]) -> None:
    done = shop[0].test_cli_runner().invoke(args=["singlejob", "doctor", "--json"])
    found = json.loads(done.stdout)["findings"]
    assert any(
        finding["severity"] == "error" and finding["check"] == "store" and "nope" in finding["finding"]
        for finding in found
    )


def test_a_fault_inside_is_not_laid_on_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = make_app(tmp_path)

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("a fault of ours")

    monkeypatch.setattr("flask_singlejob.web.pages.see", fail)
    assert app.test_client().get("/singlejob/").status_code == 500


@pytest.mark.parametrize("server", ["a worker of gunicorn", "a worker of uWSGI"])
def test_memory_in_a_worker_of_several_is_a_fault(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, jobs = make_app(tmp_path, SINGLEJOB_STORE="memory://")
    word = "once per worker"
    assert not any(word in reason for reason in jobs.health("jobs").reasons)
    monkeypatch.setattr(process, "current_role", lambda: Standing(Role.SERVING, server))
    health = jobs.health("jobs")
    (reason,) = [reason for reason in health.reasons if word in reason]
    assert not health
    assert "SINGLEJOB_STORE" in reason
    assert server in reason
    assert any(word in warning for warning in jobs.status()["warnings"])
    _, elsewhere = make_app(tmp_path)
    assert not any(word in reason for reason in elsewhere.health("jobs").reasons)


def test_an_argument_that_the_driver_refuses_counts_as_a_store_that_is_away(tmp_path: Path) -> None:
    app, jobs = make_app(tmp_path, SINGLEJOB_STORE_OPTIONS={"connect_args": {"nope": 1}})
    jobs.once("seed", before_requests=True)(print)
    assert any("nope" in reason for reason in jobs.health("jobs").reasons)
    for path in PATHS:
        assert app.test_client().get(path).status_code == 503


def test_doctor_finds_memory_outside_of_tests(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, SINGLEJOB_STORE="memory://")

    def found() -> list[dict[str, str]]:
        done = app.test_cli_runner().invoke(args=["singlejob", "doctor", "--json"])
        findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]
        return [finding for finding in findings if "memory://" in finding["finding"]]

    (finding,) = found()
    assert finding["severity"] == "error"
    app.testing = True
    assert found() == []
