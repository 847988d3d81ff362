"""An app with a job that keeps the processor, and start-up work that the tests kill."""

from __future__ import annotations

import ctypes
import os
import time

from flask import Flask

from flask_singlejob import SingleJob

from .basic import routes
from .witness import tell, witnessed_run

__all__ = ["create_app"]

libc = ctypes.PyDLL(None)


def create_app() -> Flask:
    """Return the app; ``SEED_SECONDS`` is how long its start-up task takes, ``KEEP`` a file that ends the grip."""
    app = Flask("stubborn", instance_path=os.environ.get("SINGLEJOB_TEST_INSTANCE"))
    app.config.from_prefixed_env()
    jobs = SingleJob()

    if "SEED_SECONDS" in os.environ:

        @jobs.once("seed", before_requests=True)
        def seed() -> None:
            tell("seed")
            time.sleep(float(os.environ["SEED_SECONDS"]))
            tell("seeded")

    if "GRIP_SECONDS" in os.environ:

        @jobs.task("date", id="grip")
        def grip() -> None:
            with witnessed_run():
                # PyDLL keeps the GIL: no other thread of the process runs, as in a C extension that never lets go.
                libc.sleep(int(os.environ["GRIP_SECONDS"]))

    jobs.init_app(app)
    routes(app, jobs)
    tell("loaded")
    return app
