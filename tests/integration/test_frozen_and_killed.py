"""Owners that stand still, that keep the processor, or that die in the middle of a run, on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.harness import Cluster
from tests.integration.waiting import wait_until

JOBS = [{"id": "job", "trigger": "interval", "seconds": 1, "work": 0.2}]
CONFIG: dict[str, Any] = {"SINGLEJOB_LEASE": 3, "SINGLEJOB_POLL_INTERVAL": 0.5}


def history(host: Any, job: str, status: str | None = None) -> list[dict[str, Any]]:
    query = f"/runs?job={job}" + (f"&status={status}" if status else "")
    found: list[dict[str, Any]] = host.get(query).json()["runs"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_frozen_owner_keeps_no_tick_from_the_other_host_and_changes_nothing_when_it_thaws(
    cluster: Cluster, store_url: str
) -> None:
    cluster.store = store_url
    long = [{"id": "long", "trigger": "date", "work": 12, "misfire_grace_time": 60}]
    first = cluster.host("a", workers=1, jobs=JOBS + long, config=CONFIG)
    (run,) = cluster.wait_runs("long", 1)
    second = cluster.host("b", workers=1, jobs=JOBS + long, config=CONFIG)
    owner = first.owner_pid()
    first.freeze(owner)
    (lost,) = wait_until(lambda: history(second, "long", "lost"), 40, "the frozen run is recorded as lost")
    before = len([one for one in cluster.runs("job") if one.host == "b"])
    wait_until(
        lambda: len([one for one in cluster.runs("job") if one.host == "b"]) >= before + 3,
        40,
        "the other host runs the cluster's ticks",
    )
    # It keeps its host, however long it stands still.
    assert first.owners() == (owner,)
    first.thaw(owner)
    wait_until(
        lambda: [one for one in cluster.events("end") if one["job"] == "long"], 60, "it ended after all"
    )
    wait_until(lambda: "without its lease" in first.log or "lost its lease" in first.log, 40, "it was told")
    after = history(second, "long")
    assert [(one["id"], one["status"]) for one in after] == [(lost["id"], "lost")]
    assert lost["id"] == run.run
    ticks = [one.tick for one in cluster.runs("job")]
    assert len(ticks) == len(set(ticks))


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_killed_run_is_lost_within_a_poll_on_its_own_host_and_run_again_as_the_next_attempt(
    cluster: Cluster, store_url: str
) -> None:
    """The lease is long: only the kernel's word that the process is dead can be the reason."""
    cluster.store = store_url
    jobs = [{"id": "again", "trigger": "date", "work": 4, "rerun_lost": True, "max_attempts": 3}]
    host = cluster.host("a", workers=2, jobs=jobs, config={"SINGLEJOB_LEASE": 600})
    (first,) = cluster.wait_runs("again", 1)
    host.kill(first.pid)
    runs = cluster.wait_runs("again", 2, deadline=40)
    assert [run.facts["attempt"] for run in runs] == [1, 2]
    assert runs[0].tick == runs[1].tick
    assert (runs[1].token or 0) > (runs[0].token or 0)
    wait_until(lambda: history(host, "again", "succeeded"), 40, "the second attempt is done")
    assert [(one["reason"], one["attempt"]) for one in history(host, "again", "lost")] == [
        ("process_died", 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_hosts_clock_that_steps_by_an_hour_moves_no_tick(
    cluster: Cluster, store_url: str, host_clocks: None
) -> None:
    cluster.store = store_url
    host = cluster.host("a", workers=1, jobs=JOBS, config=CONFIG, clock=0.0)
    cluster.wait_runs("job", 2)
    assert host.clock is not None
    for step in (3600.0, -7200.0, 3600.0):
        host.clock.step(step)
        cluster.wait_runs("job", len(cluster.runs("job")) + 3)
    ticks = [run.tick or 0 for run in cluster.runs("job")]
    assert len(set(ticks)) == len(ticks)
    stood_for = sum(run.facts["stood_for"] for run in cluster.runs("job")[1:]) + 1
    assert stood_for == (ticks[-1] - ticks[0]) // 1000 + 1
    assert history(host, "job", "missed") == []


@pytest.mark.slow
def test_a_host_whose_time_zone_is_garbage_warns_once_and_runs_its_jobs_in_utc(cluster: Cluster) -> None:
    jobs = [{"id": "cron", "trigger": "cron", "second": "*"}]
    host = cluster.host("a", workers=2, jobs=jobs, env={"TZ": "Not/AZone"})
    cluster.wait_runs("cron", 2)
    assert host.get("/status").json()["zone"] == "UTC"
    assert host.log.count("time zone of this host cannot be told") == 1
