"""A program without Flask: APScheduler's BlockingScheduler and functions that run in one process at a time.

``STORE`` is the store's URL, ``HOLD`` the seconds of ``hold_at_least``, ``WORK`` how long the long task takes.
"""

from __future__ import annotations

import os
import time

from apscheduler.schedulers.blocking import BlockingScheduler

from flask_singlejob import single_task
from tests.integration.apps.witness import tell

STORE = os.environ["STORE"]


@single_task("short", store=STORE, hold_at_least=float(os.environ.get("HOLD", "0")))
def short() -> None:
    """Be done before another host's clock says that it is time."""
    tell("short", name=os.environ["NAME"])


@single_task("long", store=STORE, lease=2)
def long() -> None:
    """Take longer than the lease."""
    tell("long", name=os.environ["NAME"])
    time.sleep(float(os.environ.get("WORK", "3")))
    tell("long done", name=os.environ["NAME"])


if __name__ == "__main__":
    scheduler = BlockingScheduler(timezone="UTC")
    scheduler.add_job(short, "cron", second="*/2", misfire_grace_time=10)
    scheduler.add_job(long, "interval", seconds=0.25, misfire_grace_time=10)
    tell("ready", name=os.environ["NAME"])
    scheduler.start()
