"""Scripts as Flask-APScheduler's users write them: one file, run by Python, with the import changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

#: Waits, serves one request in between, and prints what happened, so that a test can read it.
END = """
    import json, time
    client = app.test_client()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and len(ran) < 2:
        time.sleep(0.05)
    listed = client.get("/scheduler/jobs")
    print(json.dumps({"ran": ran[:2], "status": listed.status_code, "ids": [job["id"] for job in listed.get_json() or []]}))
    scheduler.shutdown()
"""

CONFIGURED = """
from flask import Flask
from flask_singlejob import SingleJob as APScheduler

ran = []

class Config:
    JOBS = [{"id": "job1", "func": "script:job1", "args": (1, 2), "trigger": "interval", "seconds": 1}]
    SCHEDULER_API_ENABLED = True
    SINGLEJOB_GUARD = "public"

def job1(first, second):
    ran.append(first + second)

if __name__ == "__main__":
    app = Flask(__name__)
    app.config.from_object(Config())
    scheduler = APScheduler()
    scheduler.init_app(app)
    scheduler.start()
"""

DECORATED = """
from flask import Flask
from flask_singlejob import SingleJob as APScheduler

ran = []
scheduler = APScheduler()

@scheduler.task("interval", id="job1", seconds=1, misfire_grace_time=900)
def job1():
    with scheduler.app.app_context():
        ran.append(3)

if __name__ == "__main__":
    app = Flask(__name__)
    app.config.update(SCHEDULER_API_ENABLED=True, SINGLEJOB_GUARD="public")
    scheduler.init_app(app)
    scheduler.start()
"""

FACTORY = """
from flask import Flask
from apscheduler.events import EVENT_JOB_EXECUTED
from flask_singlejob import SingleJob as APScheduler

ran = []
scheduler = APScheduler()

@scheduler.task("interval", id="job1", seconds=1)
def job1():
    return 3

def listener(event):
    ran.append(event.retval)

def create_app():
    app = Flask(__name__)
    app.config.update(SCHEDULER_API_ENABLED=True, SINGLEJOB_GUARD="public")
    scheduler.init_app(app)
    with app.app_context():
        scheduler.add_listener(listener, EVENT_JOB_EXECUTED)
        scheduler.start()
    return app

if __name__ == "__main__":
    app = create_app()
"""

NOT_ALLOWED = CONFIGURED.replace(
    "    SCHEDULER_API_ENABLED", "    SCHEDULER_ALLOWED_HOSTS = ['elsewhere']\n    SCHEDULER_API_ENABLED"
)


def run(tmp_path: Path, source: str, seconds: float = 30) -> str:
    """Run a script, return what it printed."""
    (tmp_path / "script.py").write_text(source + END.replace("+ 30", f"+ {seconds}"))
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLASK_", "SINGLEJOB_", "PYTEST"))
    }
    env.update(PYTHONPATH=str(PROJECT), XDG_RUNTIME_DIR=str(tmp_path), FLASK_DEBUG="0")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "source", [CONFIGURED, DECORATED, FACTORY], ids=["configured", "decorated", "factory"]
)
def test_a_script_runs_its_jobs(tmp_path: Path, source: str) -> None:
    assert run(tmp_path, source) == '{"ran": [3, 3], "status": 200, "ids": ["job1"]}'


def test_a_script_on_a_host_that_is_not_allowed_runs_none(tmp_path: Path) -> None:
    assert run(tmp_path, NOT_ALLOWED, seconds=3) == '{"ran": [], "status": 200, "ids": ["job1"]}'
