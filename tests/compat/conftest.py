"""Apps as Flask-APScheduler's users write them: made anew for each test, with a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask import Flask

from flask_singlejob import SingleJob

MakeApp = Callable[..., Flask]


@pytest.fixture
def make_app(tmp_path: Path) -> Iterator[MakeApp]:
    """Return a maker of apps that are open to anybody and share nothing; what they start is stopped."""
    made: list[Flask] = []

    def make(name: str = "shop", **config: object) -> Flask:
        app = Flask(name, instance_path=str(tmp_path))
        app.config.update(
            SINGLEJOB_STORE="memory://",
            SINGLEJOB_GUARD="public",
            SINGLEJOB_LOCK_FILE=str(tmp_path / f"owner-{len(made)}.lock"),
            SINGLEJOB_SHUTDOWN_TIMEOUT=2,
        )
        app.config.update(config)
        made.append(app)
        return app

    yield make
    for app in made:
        extension = getattr(app, "apscheduler", None)
        if isinstance(extension, SingleJob):
            with app.app_context():
                extension.shutdown(wait=False)


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    """Return one app."""
    return make_app()


@pytest.fixture
def jobs() -> SingleJob:
    """Return the extension, not set up for any app yet."""
    return SingleJob()
