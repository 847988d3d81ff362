"""What holds requests back until a start-up task is done, and where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from flask import Flask
from sqlalchemy import event

from flask_singlejob import SingleJob


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """Every statement that is sent to a database."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    yield statements
    event.remove(sqlalchemy.Engine, "before_cursor_execute", note)


def make_app(tmp_path: Path, **config: Any) -> tuple[Flask, SingleJob]:
    app = Flask("shop", instance_path=str(tmp_path))
    app.config.update(
        SINGLEJOB_STORE=f"sqlite:///{tmp_path}/s.db", SINGLEJOB_LOCK_FILE=str(tmp_path / "lock"), **config
    )
    app.add_url_rule("/", view_func=lambda: "hello")
    jobs = SingleJob(app)
    jobs.once("seed", before_requests=True)(print)
    return app, jobs


@pytest.mark.parametrize("when", ["before init_app", "after init_app"])
def test_a_test_is_answered_and_sends_no_statement(when: str, tmp_path: Path, sent: list[str]) -> None:
    app, _ = make_app(tmp_path, **({"TESTING": True} if when.startswith("before") else {}))
    app.testing = True
    for _ in range(2):
        assert app.test_client().get("/").status_code == 200
    assert sent == []
    assert not (tmp_path / "s.db").exists()
    app.testing = False
    assert app.test_client().get("/").status_code == 503


def test_a_test_that_campaigns_is_held_back_until_the_task_is_done(tmp_path: Path) -> None:
    app, jobs = make_app(tmp_path, TESTING=True, SINGLEJOB_ENABLED=False)
    jobs.start(force=True)
    assert app.test_client().get("/").status_code == 503


def test_a_process_that_runs_no_jobs_waits_for_one_that_does(tmp_path: Path) -> None:
    web, _ = make_app(tmp_path, SINGLEJOB_ENABLED=False)
    assert web.test_client().get("/").status_code == 503
    worker = Flask("shop", instance_path=str(tmp_path))
    worker.config["SINGLEJOB_STORE"] = f"sqlite:///{tmp_path}/s.db"
    with worker.app_context():
        assert SingleJob(worker).once("seed", before_requests=True)(print)() is True
    fresh, _ = make_app(tmp_path, SINGLEJOB_ENABLED=False)
    assert fresh.test_client().get("/").status_code == 200
