"""From the signal that stops the owner to a new owner that is ready, while the old one's job of 20 s goes on."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.harness import Cluster, Host
from tests.integration.waiting import wait_until

from .report import Row, spread

APP = "benchmarks.apps:create_failover_app()"
JOBS = [{"id": f"job-{n}", "trigger": "interval", "hours": 1} for n in range(20)]
LONG = {"id": "long", "trigger": "interval", "hours": 1, "work": 20, "max_instances": 50}
#: What a running job may take is its own; the worker is not waited for.
CONFIG = {"SINGLEJOB_SHUTDOWN_TIMEOUT": 25}


def measure_term(name: str, store: str | None, rounds: int = 6) -> Row:
    """Send TERM to the owner of 8 workers, with standbys that wait for its lock."""
    return _measure(f"(f) hand-over at TERM, {name}", store, rounds, _term, preload=False)


def measure_hup(name: str, store: str | None, rounds: int = 6) -> Row:
    """Send HUP to a gunicorn whose app is preloaded: new workers are there before the old ones stop.

    The time runs from the moment when the old owner is told, to a new worker that owns.
    """
    return _measure(f"(f) hand-over at HUP, {name}", store, rounds, _hup, preload=True)


def _measure(
    name: str, store: str | None, rounds: int, stop: Callable[[Cluster, Host, int], float], *, preload: bool
) -> Row:
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), store=store)
        try:
            # An old owner that still waits for its job counts as a worker: enough of them for every round.
            workers = 4 if preload else 8
            jobs = [*JOBS, LONG]
            host = cluster.host("a", app=APP, workers=workers, jobs=jobs, config=CONFIG, preload=preload)
            wait_until(lambda: len(host.workers()) == workers, what="all workers")
            for _ in range(rounds):
                owner = host.owner_pid()
                time.sleep(2.0)  # new standbys warm up
                known = len(cluster.runs("long"))
                host.post("/run/long?wait=0")
                run = cluster.wait_runs("long", known + 1)[known]
                assert run.pid == owner, "the owner was another"
                seconds.append(stop(cluster, host, owner))
                assert owner in host.processes(), "the old owner did not wait for its job"
        finally:
            cluster.reap()
    median, worst = statistics.median(seconds) * 1000, max(seconds) * 1000
    return Row(
        name,
        f"median {median:.0f} ms, the old owner's job of 20 s still running",
        "median <= 50 ms",
        median <= 50,
        f"{rounds} times: {spread(seconds, 1000, ' ms')} (worst {worst:.0f} ms)",
    )


def _elected(cluster: Cluster, known: int, but: set[int]) -> float:
    def elected() -> list[float]:
        return [event["mono"] for event in cluster.events("owns")[known:] if event["pid"] not in but]

    return wait_until(elected, what="a new owner", every=0.005)[0]


def _term(cluster: Cluster, host: Host, owner: int) -> float:
    known = len(cluster.events("owns"))
    told = time.monotonic()
    os.kill(owner, signal.SIGTERM)
    return _elected(cluster, known, {owner}) - told


def _hup(cluster: Cluster, host: Host, owner: int) -> float:
    known, old = len(cluster.events("owns")), set(host.workers())
    os.kill(host.pid, signal.SIGHUP)
    ready = _elected(cluster, known, old)
    told = [event["mono"] for event in cluster.events("told") if event["pid"] == owner]
    wait_until(lambda: not (old - {owner}) & set(host.workers()), what="the old standbys are gone")
    return ready - float(told[0])
