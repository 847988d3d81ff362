"""Apps without Flask-SingleJob: what the harness is tried on, and what benchmarks compare with."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any

from flask import Flask

from .witness import tell

_held: list[int] = []


def create_app() -> Flask:
    """Return a Flask app that does nothing but answer."""
    app = Flask(__name__)

    @app.get("/pid")
    def pid() -> dict[str, Any]:
        return {"pid": os.getpid(), "time": time.time(), "monotonic": time.monotonic()}

    return app


def create_locking_app() -> Flask:
    """Return an app whose worker takes the host's lock file if it is free and never lets it go."""
    app = create_app()
    lock = os.open(os.environ["LOCK"], os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
    else:
        _held.append(lock)
    tell("loaded")
    return app


def create_scheduled_app() -> Flask:
    """Return the known trouble: Flask-APScheduler started in each worker, a job every second."""
    from flask_apscheduler import APScheduler

    app = create_app()
    scheduler = APScheduler()
    scheduler.init_app(app)

    def job() -> None:
        tick = round(time.time()) * 1000
        facts = {"job": "tick", "tick": tick, "token": None, "run": f"{os.getpid()}-{tick}", "host": "?"}
        tell("start", **facts)
        tell("end", **facts)

    scheduler.add_job("tick", job, trigger="cron", second="*")
    scheduler.start()
    return app
