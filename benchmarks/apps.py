"""The apps that benchmarks serve: the scenarios' app that tells of elections, and plain APScheduler."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask

from flask_singlejob import process
from flask_singlejob.election import FileElector
from flask_singlejob.engine import Engine
from flask_singlejob.records import ClaimKey
from flask_singlejob.term import Term
from tests.integration.apps import basic
from tests.integration.apps.plain import create_app
from tests.integration.apps.witness import tell

from .bare import BareClaims, open_bench_store

_kept: list[Any] = []
_locked: list[float] = []


def create_failover_app() -> Flask:
    """Return the scenarios' app, which tells the witness when it owns and when its jobs are read."""
    wait_acquire, begin_term, load = FileElector.wait_acquire, Engine.begin_term, Term._load

    def waited(elector: FileElector) -> bool:
        won = wait_acquire(elector)
        _locked.append(time.monotonic())
        return won

    def begun(engine: Engine) -> None:
        begin_term(engine)
        tell("owns")

    def loaded(term: Term, poll: Any) -> None:
        load(term, poll)
        tell("ready", locked=_locked[-1] if _locked else None)

    FileElector.wait_acquire = waited  # type: ignore[method-assign, assignment]
    Engine.begin_term = begun  # type: ignore[method-assign, assignment]
    Term._load = loaded  # type: ignore[method-assign, assignment]
    _tell_when_told()
    return basic.create_app()


def _tell_when_told() -> None:
    """Have the witness told of the moment when this process is told to stop."""
    told_to_stop = process.this.told_to_stop

    def told(**how: Any) -> None:
        tell("told")
        told_to_stop(**how)

    process.this.told_to_stop = told  # type: ignore[method-assign, assignment]


def create_apscheduler_app() -> Flask:
    """Return an app whose one worker runs the same jobs with APScheduler alone, in memory.

    Each run then times the claim that the store would send for it, by the bare driver: what one round trip
    takes at such a moment, with cold caches and the other jobs' beside it.
    """
    app = create_app()
    scheduler = BackgroundScheduler()
    url = json.loads(os.environ["FLASK_SINGLEJOB_STORE"])
    store = open_bench_store(url)
    entries = json.loads(os.environ["SINGLEJOB_TEST_JOBS"])
    keys = {entry["id"]: ClaimKey("job", entry["id"]) for entry in entries}
    rows = store.ensure(keys.values())
    time.sleep(0.05)  # the tick that is used up to learn the statements has to be due
    bare = {id: BareClaims(store, key, url, rows[key].resolved) for id, key in keys.items()}
    store.close()

    def job(id: str) -> None:
        now = time.time()
        tick = int(now) * 1000  # of a job that is due each second
        tell("start", job=id, tick=tick, token=None, run=f"{id}-{tick}", host=None, real=now)
        tell("round trip", job=id, seconds=bare[id].claim(tick))
        bare[id].release()

    for entry in entries:
        options = {key: value for key, value in entry.items() if key != "work"}
        scheduler.add_job(job, id=options["id"], args=[options.pop("id")], **options)
    scheduler.start()
    _kept.append(scheduler)
    return app
