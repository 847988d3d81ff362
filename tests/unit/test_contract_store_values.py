"""What may name the store, and what is refused at start instead of at the first claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_singlejob import ConfigError, SingleJob, open_store


def make_app(tmp_path: Path, **config: Any) -> Flask:
    app = Flask("app", instance_path=str(tmp_path))
    app.config.update(config)
    return app


def work() -> None:
    """Do nothing."""


@pytest.mark.parametrize("kind", ["text", "url", "engine", "db", "db_later"])
@pytest.mark.parametrize("where", ["config", "constructor"])
def test_whatever_may_name_a_store_serves_outside_a_context(kind: str, where: str, tmp_path: Path) -> None:
    text = f"sqlite:///{tmp_path / 'given.db'}"
    app = make_app(tmp_path, SQLALCHEMY_DATABASE_URI=text)
    db: Any = SQLAlchemy() if kind == "db_later" else SQLAlchemy(app)
    stores: dict[str, Any] = {
        "text": text,
        "url": sqlalchemy.make_url(text),
        "engine": sqlalchemy.create_engine(text),
        "db": db,
        "db_later": db,
    }
    if where == "config":
        app.config["SINGLEJOB_STORE"] = stores[kind]
        jobs = SingleJob(app)
    else:
        jobs = SingleJob(app, store=stores[kind])
    if kind == "db_later":
        db.init_app(app)
    jobs.add_job("x", work, trigger="interval", hours=1)
    run = jobs.run_job("x")
    assert run is not None
    assert run.status == "succeeded"
    assert (tmp_path / "given.db").exists()
    assert not (tmp_path / "singlejob.db").exists()


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("postgres://u:secret@h/db", "write postgresql://"),
        ("postgresql://u:secret@h:port/db", "cannot be read"),
        ("postgresql+asyncpg://u:secret@h/db", "asynchronous"),
        ("mysql+nodriver://u:secret@h/db", "mysql+pymysql://"),
        ("oracle://u:secret@h/db", "unknown scheme"),
        ("http://u:secret@h", "unknown scheme"),
        ("redis://:secret@h:x/0", "cannot be read"),
        ("mongodb://u:secret@a:1,b:bad/db", "cannot be read"),
        ("postgresql://u:secret@h/db\n", "line ends"),
        (sqlalchemy.URL.create("oracle", "u", "secret", "h"), "unknown scheme"),
        (object(), "type object"),
    ],
)
@pytest.mark.parametrize("where", ["config", "constructor"])
def test_what_can_be_no_store_is_refused_at_start(store: Any, words: str, where: str, tmp_path: Path) -> None:
    app = make_app(tmp_path)
    if where == "config":
        app.config["SINGLEJOB_STORE"] = store
    with pytest.raises(ConfigError, match=r"^SINGLEJOB_STORE is ") as caught:
        SingleJob(app, store=None if where == "config" else store)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError):
        open_store(store).poll()


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://u:p%2F@[::1]:5432/db",
        "postgresql:///db?host=/run/postgresql",
        "postgresql://u:a:b/c@h/db",
        "redis://h:6379/0",
        "redis+sentinel://a:26379,b:26379/name/0",
        "mongodb://u:p@a:1,b:2/db?replicaSet=x",
        "mongodb://%2Ftmp%2Fmongo.sock/db",
        "memory://x",
        "sqlite:////tmp/a:b@c.db",
        "sqlite:///C:/data/x.db",
    ],
)
def test_a_url_that_can_be_one_is_taken_without_a_connection(store: str, tmp_path: Path) -> None:
    SingleJob(make_app(tmp_path, SINGLEJOB_STORE=store))


def test_a_driver_that_is_not_installed_is_told_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "flask-singlejob\[postgresql\]"'):
        SingleJob(make_app(tmp_path, SINGLEJOB_STORE="postgresql://u@h/db"))


def test_a_version_that_cannot_be_told_makes_health_false_and_no_error(tmp_path: Path) -> None:
    jobs = SingleJob(make_app(tmp_path, SINGLEJOB_STORE="memory://"))

    def version(app: Flask) -> str:
        raise RuntimeError("no release file")

    jobs.once("seed", version=version, before_requests=True)(work)
    for check in ("ready", "all"):
        health = jobs.health(check)
        assert not health
        assert any("'seed' is not done yet" in reason for reason in health.reasons)
