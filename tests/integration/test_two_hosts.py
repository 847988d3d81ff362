"""Two hosts whose clocks differ share a store: each tick still runs once; and the suite sees it when not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.integration.checker import Expected, Report
from tests.integration.harness import Cluster
from tests.integration.waiting import observe, wait_until, window_seconds

JOBS = [
    {"id": "tiny", "trigger": "interval", "seconds": 1},
    {"id": "cron", "trigger": "cron", "second": "*"},
    {"id": "per-host", "trigger": "interval", "seconds": 1, "scope": "host"},
]
HOSTS = ("near", "ahead")


def run_two_hosts(cluster: Cluster, seconds: float, **options: Any) -> Report:
    """Run two hosts of three workers, begun half a second apart, one 0.7 s behind and one 90 s ahead."""
    near = cluster.host("near", workers=3, jobs=JOBS, clock=-0.7, ready=False, **options)
    observe(0.5)
    ahead = cluster.host("ahead", workers=3, jobs=JOBS, clock=90.0, **options)
    near.wait_ready()
    near.wait_loaded()
    ahead.wait_loaded()
    cluster.wait_runs("tiny", 1)
    wait_until(lambda: {run.host for run in cluster.runs("per-host")} == set(HOSTS), what="both hosts run")
    cluster.sample_owners()
    begun = time.time() + 1
    observe(seconds)
    ended = time.time() - 1.5
    cluster.stop()
    return cluster.judge(
        Expected("tiny"),
        Expected("cron"),
        Expected("per-host", scope="host", hosts=HOSTS),
        window=(begun, ended),
    )


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql", "mariadb"], indirect=True)
def test_each_tick_runs_once_on_two_hosts_whose_clocks_differ(
    cluster: Cluster, store_url: str, host_clocks: None
) -> None:
    cluster.store = store_url
    run_two_hosts(cluster, window_seconds(15)).assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_the_same_scenario_fails_when_every_claim_is_won(
    cluster: Cluster, store_url: str, host_clocks: None
) -> None:
    """The scenario is worth something only if it fails on an app whose claims do not exclude."""
    cluster.store = store_url
    report = run_two_hosts(cluster, 4, app="tests.integration.apps.unclaimed:create_app()")
    assert report.of("double")


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_two_clusters_in_one_database_do_not_meet(cluster: Cluster, store_url: str) -> None:
    cluster.store = store_url
    one = cluster.host("a", workers=2, jobs=JOBS[:1], config={"SINGLEJOB_CLUSTER": "one"})
    two = cluster.host("b", workers=2, jobs=JOBS[:1], config={"SINGLEJOB_CLUSTER": "Two"})
    for host in (one, two):
        pids = host.workers()
        wait_until(
            lambda pids=pids: len([run for run in cluster.runs("tiny") if run.pid in pids]) >= 3,  # type: ignore[misc]
            what=f"{host.name} runs its own ticks",
        )
