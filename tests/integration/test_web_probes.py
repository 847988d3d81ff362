"""Health, metrics and page under gunicorn: the same from any worker, quick and kind while the store hangs."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .harness import Cluster, Host
from .waiting import wait_until

JOBS = [
    {"id": "nightly", "trigger": "cron", "hour": 3},
    {"id": "each-second", "trigger": "interval", "seconds": 1},
]
WEB: dict[str, Any] = {
    "SINGLEJOB_HEALTH_PREFIX": "/healthz",
    "SINGLEJOB_METRICS_PATH": "/metrics",
    "SINGLEJOB_DASHBOARD": True,
    "SINGLEJOB_GUARD": "public",
}
#: A probe gives one second; a machine under load gets more before it is a failure.
QUICK = 6.0


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        done = threading.Event()

        def accept() -> None:
            while not done.is_set():
                try:
                    kept.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1]
        done.set()
        thread.join()
    for connection in kept:
        connection.close()


def metric(host: Host, sample: str) -> float | None:
    """Return the value of one sample, named with its labels."""
    found = re.search(rf"^{re.escape(sample)} (\S+)$", host.get("/metrics").text, re.M)
    return None if found is None else float(found[1])


def test_probes_and_scrapes_are_the_same_from_every_worker(cluster: Cluster) -> None:
    host = cluster.host(workers=3, jobs=JOBS, config=WEB)
    wait_until(lambda: host.get("/healthz/jobs").status == 200, 30, "health of the jobs")
    pids: set[int] = set()
    ticks: set[float | None] = set()
    ids: set[tuple[str, ...]] = set()
    deadline = time.monotonic() + 60
    while len(pids) < 3 or len(ticks) < 1:
        assert time.monotonic() < deadline
        pids.add(host.get("/pid").json()["pid"])
        assert host.get("/healthz/live").json() == {"ok": True, "reasons": []}
        assert host.get("/healthz/ready").status == 200
        ticks.add(metric(host, 'singlejob_next_tick_timestamp_seconds{job="nightly"}'))
        page = host.get("/singlejob/jobs").text
        ids.add(tuple(sorted(set(re.findall(r'job\?id=([\w-]+)"', page)))))
    for _ in range(30):
        ticks.add(metric(host, 'singlejob_next_tick_timestamp_seconds{job="nightly"}'))
    assert len(ticks) == 1
    assert ids == {("each-second", "nightly")}


def test_counters_grow_steadily_whichever_worker_is_scraped(cluster: Cluster) -> None:
    host = cluster.host(workers=3, jobs=JOBS, config=WEB)
    sample = 'singlejob_runs_total{job="each-second",status="succeeded"}'
    seen: list[float] = []

    def grown() -> bool:
        seen.append(metric(host, sample) or 0.0)
        return seen[-1] >= seen[0] + 4

    wait_until(grown, 60, "four more runs are counted")
    assert seen == sorted(seen)


def test_failover_is_counted_and_the_next_owner_shown(cluster: Cluster) -> None:
    host = cluster.host(workers=2, jobs=JOBS, config=WEB)
    wait_until(lambda: metric(host, 'singlejob_elections_total{host="a"}') == 1, 30, "the first election")
    dead = host.owner_pid()
    host.kill(dead)
    wait_until(lambda: metric(host, 'singlejob_elections_total{host="a"}') == 2, 30, "the second election")
    wait_until(
        lambda: f"pid {host.owner_pid()}" in host.get("/singlejob/").text,
        30,
        "the page shows the owner",
    )


def test_store_that_hangs_fails_no_probe_and_everything_says_so(cluster: Cluster, silent_server: int) -> None:
    store = f"postgresql+psycopg://nobody@127.0.0.1:{silent_server}/nothing"
    host = cluster.host(workers=2, jobs=JOBS, config={**WEB, "SINGLEJOB_STORE": store})
    for check, status in (("live", 200), ("ready", 200), ("jobs", 503)):
        began = time.monotonic()
        answer = host.get(f"/healthz/{check}")
        assert answer.status == status, answer.text
        assert time.monotonic() - began < QUICK, check
    assert "away" in host.get("/healthz/jobs").text
    assert metric(host, "singlejob_up") == 0
    page = host.get("/singlejob/")
    assert page.status == 503
    assert "The store is away" in page.text
    assert host.get("/pid").status == 200


def test_probes_answer_until_a_told_worker_has_left(cluster: Cluster) -> None:
    host = cluster.host(workers=2, jobs=JOBS, config=WEB)
    cluster.wait_runs("each-second", 1)
    assert host.get("/healthz/live").status == 200
    assert host.stop() == 0
