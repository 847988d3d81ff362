"""Several plain processes with a scheduler each: what is decorated runs in one of them at a time."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.harness import Cluster
from tests.integration.waiting import wait_until

SCRIPT = [sys.executable, "-m", "tests.integration.apps.cronlike"]


def begin(cluster: Cluster, name: str, store: str, **options: Any) -> Any:
    env = {"STORE": store, "NAME": name, **options.pop("env", {})}
    return cluster.process(name, SCRIPT, port=0, env=env, ready=False, **options)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_hold_at_least_keeps_a_short_task_single_on_hosts_whose_clocks_differ(
    cluster: Cluster, store_url: str, host_clocks: None
) -> None:
    for name, clock in (("near", 0.0), ("ahead", 0.7), ("behind", -0.4)):
        begin(cluster, name, store_url, clock=clock, env={"HOLD": "1.5"})
    wait_until(lambda: len(cluster.events("ready")) == 3, 60, "all have begun")
    seen = len(cluster.events("short"))
    wait_until(lambda: len(cluster.events("short")) >= seen + 5, 60, "the short task runs")
    times = [event["mono"] for event in cluster.events("short")]
    # Without it each process would run it again, 0.3 to 0.7 s after the one before.
    assert min(later - earlier for earlier, later in pairwise(times)) > 1.0


@pytest.mark.parametrize("store_url", ["sqlite", "mariadb"], indirect=True)
def test_a_long_task_never_runs_in_two_processes_and_goes_on_when_its_process_is_killed(
    cluster: Cluster, store_url: str
) -> None:
    processes = {name: begin(cluster, name, store_url) for name in ("a", "b", "c")}
    wait_until(lambda: len(cluster.events("ready")) == 3, 60, "all have begun")
    wait_until(lambda: len(cluster.events("long done")) >= 1, 60, "it was done once")
    wait_until(lambda: len(cluster.events("long")) > len(cluster.events("long done")), 60, "it runs")
    running = cluster.events("long")[-1]
    processes[running["name"]].kill_all()
    begun = len(cluster.events("long"))
    # Longer than its lease: it is renewed. Killed: free again, at once on its own host.
    wait_until(lambda: len(cluster.events("long")) > begun + 1, 60, "another process runs it")
    inside: str | None = None
    for event in cluster.events():
        if event["event"] == "long":
            assert inside in (None, running["name"])
            inside = event["name"]
        elif event["event"] == "long done":
            assert inside == event["name"]
            inside = None
