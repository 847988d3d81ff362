"""The app of most scenarios: its jobs come from the environment, its routes show and change them.

``SINGLEJOB_TEST_JOBS`` is a JSON list; each entry is the arguments of ``add_job``, with ``work`` (seconds
that a run takes), ``fail`` (each run raises) and ``sleepless`` (work without letting go of the processor).
Settings come as ``FLASK_SINGLEJOB_…``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from flask import Flask, current_app, request

from flask_singlejob import SingleJob

from .witness import tell, witnessed_run

__all__ = ["create_app", "work"]


def work(seconds: float = 0.005, fail: bool = False, name: str | None = None) -> None:
    """Be a job: witness start and end, take so many seconds, and raise if asked."""
    with witnessed_run(name, app=current_app.name):
        if seconds:
            time.sleep(seconds)
        if fail:
            raise RuntimeError("this job was told to fail")


def define(jobs: SingleJob, entry: dict[str, Any]) -> None:
    """Define one job of the environment's list."""
    options = dict(entry)
    kwargs = {
        "seconds": options.pop("work", 0.005),
        "fail": options.pop("fail", False),
        "name": options["id"],
    }
    jobs.add_job(options.pop("id"), work, kwargs=kwargs, **options)


def create_app() -> Flask:
    """Return the app; each call makes an extension of its own."""
    app = Flask("basic", instance_path=os.environ.get("SINGLEJOB_TEST_INSTANCE"))
    app.config.from_prefixed_env()
    jobs = SingleJob()
    jobs.init_app(app)
    for entry in json.loads(os.environ.get("SINGLEJOB_TEST_JOBS") or "[]"):
        define(jobs, entry)
    jobs.register(work, "work")
    routes(app, jobs)
    tell("loaded")
    return app


def routes(app: Flask, jobs: SingleJob) -> None:
    """Add the routes through which a scenario looks at the app and changes its jobs."""

    @app.get("/pid")
    def pid() -> dict[str, Any]:
        return {"pid": os.getpid(), "time": time.time()}

    @app.get("/threads")
    def threads() -> dict[str, Any]:
        return {"pid": os.getpid(), "names": [thread.name for thread in threading.enumerate()]}

    @app.get("/owner")
    def owner() -> dict[str, Any]:
        return {"pid": os.getpid(), "is_owner": jobs.is_owner, "state": jobs.state}

    @app.get("/status")
    def status() -> dict[str, Any]:
        answer: dict[str, Any] = jobs.status()
        return answer

    @app.get("/runs")
    def runs() -> dict[str, Any]:
        limit = int(request.args.get("limit", 1000))
        found = jobs.runs(request.args.get("job"), status=request.args.get("status"), limit=limit)
        return {"runs": [run.to_dict() for run in found]}

    @app.get("/health")
    def health() -> tuple[dict[str, Any], int]:
        answer = jobs.health(request.args.get("check", "all"))
        return {"ok": answer.ok, "reasons": list(answer.reasons)}, 200 if answer else 503

    @app.post("/run/<id>")
    def run(id: str) -> dict[str, Any]:
        done = jobs.run_job(id, wait=request.args.get("wait", "1") == "1")
        return {"run": done.to_dict() if done is not None else None}

    @app.post("/jobs")
    def add() -> dict[str, Any]:
        define(jobs, request.get_json())
        return {}

    @app.post("/jobs/<id>/<action>")
    def change(id: str, action: str) -> dict[str, Any]:
        actions = {
            "pause": jobs.pause_job,
            "resume": jobs.resume_job,
            "remove": jobs.remove_job,
            "modify": jobs.modify_job,
        }
        actions[action](id, **request.get_json())
        return {}

    @app.post("/scheduler/<action>")
    def scheduler(action: str) -> dict[str, Any]:
        {"pause": jobs.pause, "resume": jobs.resume, "shutdown": jobs.shutdown, "start": jobs.start}[action]()
        return {}
