"""Two hosts on Redis: skewed clocks, owners killed, a server that forgets, jobs that are added while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.checker import Expected
from tests.integration.harness import Cluster
from tests.integration.test_kill import kill_owners, lost_ticks
from tests.integration.test_two_hosts import run_two_hosts
from tests.integration.waiting import observe, wait_until, window_seconds
from tests.redis_server import RedisServer

JOBS = [
    {"id": "short", "trigger": "interval", "seconds": 1, "coalesce": False},
    {"id": "half", "trigger": "interval", "seconds": 1, "work": 0.5, "coalesce": False},
]


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


@pytest.mark.slow
def test_each_tick_runs_once_on_two_hosts_whose_clocks_differ(
    cluster: Cluster, redis_server: RedisServer, host_clocks: None
) -> None:
    cluster.store = redis_server.url
    run_two_hosts(cluster, window_seconds(10)).assert_clean()


@pytest.mark.slow
def test_ticks_run_once_while_owners_are_killed_and_the_server_restarts(
    cluster: Cluster, redis_server: RedisServer
) -> None:
    cluster.store = redis_server.url
    host = cluster.host("a", workers=4, jobs=JOBS)
    host.wait_loaded()
    cluster.wait_runs("short", 1)
    cluster.sample_owners()
    begun = time.time() + 1
    kill_owners(host, window_seconds(10) / 2, every=2.0)
    redis_server.restart(keep_data=True)
    kill_owners(host, window_seconds(10) / 2, every=2.0)
    host.owner_pid()
    ended = time.time() - 1.5
    wait_until(lambda: (cluster.runs("short")[-1].tick or 0) > ended * 1000, what="the window is over")
    lost = lost_ticks(host, "short", "half")
    cluster.stop()
    expected = (Expected("short"), Expected("half"))
    cluster.judge(*expected, window=(begun, ended), excused=lost).assert_clean()


@pytest.mark.slow
def test_no_tick_runs_twice_and_the_next_ones_run_after_the_server_forgot_everything(
    cluster: Cluster, redis_server: RedisServer
) -> None:
    cluster.store = redis_server.url
    jobs = [{"id": "cron", "trigger": "cron", "second": "*"}]
    for name in ("a", "b"):
        cluster.host(name, workers=2, jobs=jobs)
    begun = time.time()
    cluster.wait_runs("cron", 3)
    redis_server.restart(keep_data=False)
    seen = len(cluster.runs("cron"))
    cluster.wait_runs("cron", seen + 4)
    cluster.stop()
    report = cluster.judge(Expected("cron"), window=(begun, time.time()))
    assert report.of("double") == []
    assert report.of("token") == []


@pytest.mark.slow
def test_another_host_goes_on_after_a_host_died_in_the_middle_of_a_run(
    cluster: Cluster, redis_server: RedisServer
) -> None:
    cluster.store = redis_server.url
    jobs = [{"id": "long", "trigger": "interval", "seconds": 1, "work": 60}]
    first = cluster.host("a", workers=2, jobs=jobs, config={"SINGLEJOB_LEASE": 3})
    (run,) = cluster.wait_runs("long", 1)
    second = cluster.host("b", workers=2, jobs=jobs, config={"SINGLEJOB_LEASE": 3})
    first.kill_all()
    later = cluster.wait_runs("long", 2)[1]
    assert later.host == "b"
    assert (later.tick or 0) > (run.tick or 0)
    assert (later.token or 0) > (run.token or 0)
    wait_until(lambda: lost_ticks(second, "long")["long"] == [run.tick], what="one lost run in the history")
    second.kill_all()


@pytest.mark.slow
def test_a_job_added_on_one_host_runs_once_per_tick_in_the_cluster_and_stops_when_removed(
    cluster: Cluster, redis_server: RedisServer
) -> None:
    cluster.store = redis_server.url
    hosts = [cluster.host(name, workers=2) for name in ("a", "b")]
    cluster.sample_owners()
    added = {"id": "added", "trigger": "cron", "second": "*", "replace_existing": True}
    assert hosts[1].post("/jobs", added).status == 200
    cluster.wait_runs("added", 1)
    begun = time.time() + 1
    observe(4)
    ended = time.time() - 1.5
    assert hosts[0].post("/jobs/added/remove", {}).status == 200
    cluster.judge(Expected("added"), window=(begun, ended)).assert_clean()
    observe(2)
    count = len(cluster.runs("added"))
    observe(3)
    assert len(cluster.runs("added")) == count
