"""The owner is killed again and again: each tick still runs once, and none is missed."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from tests.integration.checker import Expected
from tests.integration.harness import Cluster, Host
from tests.integration.waiting import observe, wait_until, window_seconds

JOBS = [
    {"id": "short", "trigger": "interval", "seconds": 1, "coalesce": False},
    {"id": "half", "trigger": "interval", "seconds": 1, "work": 0.5, "coalesce": False},
    {"id": "per-host", "trigger": "cron", "second": "*", "scope": "host", "coalesce": False},
]


def kill_owners(host: Host, seconds: float, every: float) -> int:
    """Kill whoever owns the host every so many seconds; return how many were killed."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        host.kill(host.owner_pid())
        count += 1
        observe(every)
    return count


def lost_ticks(host: Host, *jobs: str) -> dict[str, list[int]]:
    """Return, by job, the ticks whose claimer died by the product's own history (UTC milliseconds)."""
    lost: dict[str, list[int]] = {}
    for job in jobs:
        runs = host.get(f"/runs?status=lost&job={job}").json()["runs"]
        lost[job] = [round(datetime.fromisoformat(run["scheduled_at"]).timestamp() * 1000) for run in runs]
    return lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store_url", "workers", "options"),
    [
        ("sqlite", 4, {}),
        ("postgresql", 16, {}),
        ("mariadb", 4, {"preload": True}),
        ("sqlite", 4, {"worker_class": "gthread", "flags": ["--threads", "4"]}),
        ("sqlite", 4, {"config": {"SINGLEJOB_ELECTION": "socket"}}),
    ],
    indirect=["store_url"],
    ids=["sqlite-4", "postgresql-16", "mariadb-preload", "sqlite-gthread", "sqlite-socket"],
)
def test_ticks_run_once_while_the_owner_is_killed_every_two_seconds(
    cluster: Cluster, store_url: str, workers: int, options: dict[str, Any]
) -> None:
    cluster.store = store_url
    host = cluster.host("a", workers=workers, jobs=JOBS, **options)
    if "preload" not in options:
        host.wait_loaded()
    cluster.wait_runs("short", 1)
    cluster.sample_owners()
    begun = time.time() + 1
    killed = kill_owners(host, window_seconds(14), every=2.0)
    assert killed >= 3
    host.owner_pid()
    ended = time.time() - 1.5
    last = max(run.tick or 0 for run in cluster.runs("short"))
    wait_until(
        lambda: max(run.tick or 0 for run in cluster.runs("short")) > max(last, ended * 1000),
        what="the ticks of the window are over",
    )
    lost = lost_ticks(host, "short", "half", "per-host")
    cluster.stop()
    report = cluster.judge(
        Expected("short"),
        Expected("half"),
        Expected("per-host", scope="host", hosts=("a",)),
        window=(begun, ended),
        excused=lost,
    )
    report.assert_clean()
    assert sum(map(len, lost.values())) <= killed * len(JOBS)


@pytest.mark.slow
def test_run_killed_in_its_middle_is_recorded_as_lost_and_does_not_block_the_next(cluster: Cluster) -> None:
    jobs = [{"id": "long", "trigger": "interval", "seconds": 1, "work": 60}]
    host = cluster.host("a", workers=2, jobs=jobs)
    (run,) = cluster.wait_runs("long", 1)
    host.kill(run.pid)
    later = cluster.wait_runs("long", 2)[1]
    assert later.pid != run.pid
    assert later.tick is not None
    assert run.tick is not None
    assert later.tick > run.tick
    assert later.token is not None
    assert run.token is not None
    assert later.token > run.token
    wait_until(lambda: lost_ticks(host, "long")["long"] == [run.tick], what="one lost run in the history")
    host.kill_all()
