"""The apps that benchmarks serve: the scenarios' app that tells of elections, and plain APScheduler."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask

from flask_singlejob.signals import owner_elected
from tests.integration.apps import basic
from tests.integration.apps.plain import create_app
from tests.integration.apps.witness import tell

_kept: list[Any] = []


def create_failover_app() -> Flask:
    """Return the scenarios' app, which tells the witness at the moment when it is ready to run jobs."""

    def elected(app: Flask, **extra: Any) -> None:
        tell("elected")

    owner_elected.connect(elected, weak=False)
    return basic.create_app()


def create_apscheduler_app() -> Flask:
    """Return an app whose one worker runs the same jobs with APScheduler alone, in memory."""
    app = create_app()
    scheduler = BackgroundScheduler()

    def job(id: str) -> None:
        now = time.time()
        tick = int(now) * 1000  # of a job that is due each second
        tell("start", job=id, tick=tick, token=None, run=f"{id}-{tick}", host=None, real=now)

    for entry in json.loads(os.environ["SINGLEJOB_TEST_JOBS"]):
        options = {key: value for key, value in entry.items() if key != "work"}
        scheduler.add_job(job, id=options["id"], args=[options.pop("id")], **options)
    scheduler.start()
    _kept.append(scheduler)
    return app
