"""From the kill of the owner to a new owner that is ready to run its jobs."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from tests.integration.harness import Cluster
from tests.integration.waiting import wait_until

from .bare import connect
from .report import Row, spread

APP = "benchmarks.apps:create_failover_app()"
JOBS = [{"id": f"job-{n}", "trigger": "interval", "hours": 1} for n in range(20)]


def measure(name: str, store: str | None, rounds: int = 20) -> Row:
    """Kill the owner of 8 workers with 20 jobs, again and again, and time the next owner's signal."""
    seconds: list[float] = []
    kernel: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), store=store)
        try:
            host = cluster.host("a", app=APP, workers=8, jobs=JOBS)
            for _ in range(rounds):
                host.wait_loaded()
                owner = host.owner_pid()
                wait_until(lambda: len(host.workers()) == 8, what="8 workers")
                time.sleep(1.5)  # the new standby warms up
                known = len(cluster.events("ready"))
                killed = time.monotonic()
                os.kill(owner, signal.SIGKILL)
                time.sleep(0.25)  # nothing of the benchmark's own runs beside it
                wait_until(lambda known=known: len(cluster.events("ready")) > known, what="a new owner")  # type: ignore[misc]
                ready = cluster.events("ready")[known]
                seconds.append(ready["mono"] - killed)
                kernel.append(ready["locked"] - killed)
        finally:
            cluster.reap()
    median, worst = statistics.median(seconds) * 1000, max(seconds) * 1000
    connect = statistics.median(_connecting(store or "sqlite://") for _ in range(10))
    return Row(
        f"(a) failover, {name}",
        f"{50 / median:.1f} times quicker than polling every 100 ms (50 ms)",
        "median <= 10 ms, max <= 150 ms",
        median <= 10 and worst <= 150,
        f"{rounds} kills: {spread(seconds, 1000, ' ms')}; of it the kernel takes {statistics.median(kernel) * 1000:.1f} ms "
        f"to bury the killed worker and free its lock, and the bare driver {connect * 1000:.1f} ms to connect and ask",
    )


def _connecting(store: str) -> float:
    """Return how many seconds the driver takes for a first connection and its first answer."""
    begun = time.monotonic()
    connection = connect(store)
    cursor = connection.cursor()
    cursor.execute("SELECT max(value) FROM singlejob_meta")
    cursor.fetchall()
    taken = time.monotonic() - begun
    connection.close()
    return taken
