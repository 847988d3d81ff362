"""An app whose jobs are managed over the REST API by anybody; each answer names the worker that gave it.

Jobs come from ``SINGLEJOB_TEST_JOBS`` as in ``basic``; ``work`` is registered.
"""

from __future__ import annotations

import json
import os

from flask import Flask, Response

from flask_singlejob import SingleJob

from .basic import define, work
from .witness import tell

__all__ = ["create_app"]


def create_app() -> Flask:
    """Return the app."""
    app = Flask("managed", instance_path=os.environ.get("SINGLEJOB_TEST_INSTANCE"))
    app.config.from_prefixed_env()
    app.config.update(SCHEDULER_API_ENABLED=True, SINGLEJOB_GUARD="public")
    jobs = SingleJob()
    jobs.init_app(app)
    for entry in json.loads(os.environ.get("SINGLEJOB_TEST_JOBS") or "[]"):
        define(jobs, entry)
    jobs.register(work, "work")

    @app.get("/pid")
    def pid() -> dict[str, int]:
        return {"pid": os.getpid()}

    @app.after_request
    def name_worker(response: Response) -> Response:
        response.headers["X-Worker"] = str(os.getpid())
        return response

    tell("loaded")
    return app
