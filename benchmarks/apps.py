"""The apps that benchmarks serve: the scenarios' app that tells of elections, and plain APScheduler."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask
from sqlalchemy import create_engine, text

from flask_singlejob import process
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
    _tell_when_told()
    return basic.create_app()


def _tell_when_told() -> None:
    """Have the witness told of the moment when this process is told to stop."""
    told_to_stop = process.this.told_to_stop

    def told(**how: Any) -> None:
        tell("told")
        told_to_stop(**how)

    process.this.told_to_stop = told  # type: ignore[method-assign]


def create_apscheduler_app() -> Flask:
    """Return an app whose one worker runs the same jobs with APScheduler alone, in memory.

    Each run then times one conditional write to the store by the bare driver: what a round trip takes
    at such a moment, with cold caches and the other jobs' beside it.
    """
    app = create_app()
    scheduler = BackgroundScheduler()
    engine = create_engine(json.loads(os.environ["FLASK_SINGLEJOB_STORE"]), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE round_trip (id VARCHAR(40) PRIMARY KEY, tick BIGINT)"))
        for entry in json.loads(os.environ["SINGLEJOB_TEST_JOBS"]):
            connection.execute(text("INSERT INTO round_trip VALUES (:id, 0)"), {"id": entry["id"]})

    def write(id: str, tick: int) -> None:
        connection = engine.raw_connection()
        cursor = connection.cursor()
        begun = time.monotonic()
        cursor.execute(f"UPDATE round_trip SET tick = {tick} WHERE id = '{id}' AND tick < {tick}")
        tell("round trip", seconds=time.monotonic() - begun)
        cursor.close()
        connection.close()

    def job(id: str) -> None:
        now = time.time()
        tick = int(now) * 1000  # of a job that is due each second
        tell("start", job=id, tick=tick, token=None, run=f"{id}-{tick}", host=None, real=now)
        write(id, tick)

    for entry in json.loads(os.environ["SINGLEJOB_TEST_JOBS"]):
        options = {key: value for key, value in entry.items() if key != "work"}
        scheduler.add_job(job, id=options["id"], args=[options.pop("id")], **options)
    scheduler.start()
    _kept.append(scheduler)
    return app
