"""The code changes between two starts: jobs come, go and get other triggers, and it is simply so."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.integration.checker import WitnessedRun
from tests.integration.harness import Cluster, Host
from tests.integration.waiting import wait_until

KEPT = {"id": "kept", "trigger": "interval", "seconds": 1}
GONE = {"id": "gone", "trigger": "interval", "seconds": 1}
NEW = {"id": "new", "trigger": "interval", "seconds": 1}
SLOW = {"id": "changed", "trigger": "interval", "hours": 10}
QUICK = {"id": "changed", "trigger": "interval", "seconds": 1}


def deploy(cluster: Cluster, host: Host | None, jobs: list[dict[str, Any]]) -> Host:
    """Stop the host, if there is one, and start it again with other jobs on the same store."""
    if host is None:
        return cluster.host("a", workers=2, jobs=jobs)
    host.stop()
    cluster.hosts.remove(host)
    return cluster.host("a", workers=2, jobs=jobs)


@pytest.mark.slow
def test_job_added_removed_or_given_another_trigger_between_two_starts_is_simply_so(
    cluster: Cluster,
) -> None:
    host = deploy(cluster, None, [KEPT, GONE, SLOW])
    first = cluster.wait_runs("kept", 2)
    cluster.wait_runs("gone", 1)
    assert not cluster.runs("changed")

    host = deploy(cluster, host, [KEPT, NEW, QUICK])
    gone, kept = len(cluster.runs("gone")), len(cluster.runs("kept"))
    cluster.wait_runs("kept", kept + 2)
    cluster.wait_runs("new", 2)
    cluster.wait_runs("changed", 2)
    assert len(cluster.runs("gone")) == gone
    ticks = [run.tick for run in cluster.runs("kept") if run.tick is not None]
    assert {(tick - (first[0].tick or 0)) % 1000 for tick in ticks} == {0}, (
        "the grid did not outlive the restart"
    )

    host = deploy(cluster, host, [KEPT, SLOW])
    changed, new, kept = (len(cluster.runs(name)) for name in ("changed", "new", "kept"))
    cluster.wait_runs("kept", kept + 2)
    assert len(cluster.runs("changed")) == changed
    assert len(cluster.runs("new")) == new


@pytest.mark.slow
def test_ticks_of_a_stop_shorter_than_the_grace_time_run_late_as_one(cluster: Cluster) -> None:
    host = deploy(cluster, None, [KEPT])
    cluster.wait_runs("kept", 2)
    host.stop()
    last = cluster.runs("kept")[-1].tick
    assert last is not None
    wait_until(lambda: time.time() > last / 1000 + 3.2, what="three ticks fall due while nobody is up")
    cluster.hosts.remove(host)
    deploy(cluster, None, [KEPT])

    def late() -> list[WitnessedRun]:
        return [run for run in cluster.runs("kept") if run.tick is not None and run.tick > last]

    first = wait_until(late, 60, "the first run after the start")[0]
    assert first.facts["stood_for"] >= 3
    wait_until(lambda: len(late()) >= 3, 60, "the ticks after it")
