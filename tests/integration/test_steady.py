"""Nobody dies and nothing is changed: each tick runs once per scope, no process listens or complains."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.integration.checker import Expected
from tests.integration.harness import Cluster, listening_ports
from tests.integration.waiting import observe, wait_until, window_seconds

JOBS: list[dict[str, Any]] = [
    {"id": "each-second", "trigger": "interval", "seconds": 1},
    {"id": "cron", "trigger": "cron", "second": "*"},
    {"id": "per-host", "trigger": "interval", "seconds": 1, "scope": "host"},
    {"id": "per-worker", "trigger": "cron", "second": "*", "scope": "worker"},
]


@pytest.mark.slow
def test_each_tick_runs_once_per_scope(cluster: Cluster, store_url: str) -> None:
    cluster.store = store_url
    host = cluster.host("a", workers=4, jobs=JOBS)
    workers = host.wait_loaded()
    host.owner_pid()
    cluster.sample_owners()
    cluster.wait_runs("each-second", 1)
    cluster.wait_runs("per-host", 1)
    cluster.wait_runs("per-worker", 4)
    begun = time.time() + 1
    observe(window_seconds(12))
    ended = time.time() - 1.5
    cluster.stop()
    report = cluster.judge(
        Expected("each-second"),
        Expected("cron"),
        Expected("per-host", scope="host", hosts=("a",)),
        Expected("per-worker", scope="worker"),
        window=(begun, ended),
    )
    report.assert_clean()
    assert {run.pid for run in cluster.runs("per-worker")} == set(workers)
    assert len({run.pid for run in cluster.runs("each-second")}) == 1


def test_nothing_listens_but_gunicorn_when_the_election_is_by_file(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=JOBS)
    cluster.wait_runs("each-second", 1)
    for pid, ports in listening_ports(host.processes()).items():
        assert ports == {host.port}, f"process {pid} listens on {ports}"


@pytest.mark.slow
def test_many_workers_boot_on_an_empty_database_without_an_error(cluster: Cluster, store_url: str) -> None:
    cluster.store = store_url
    jobs = [{**JOBS[0], "id": f"job-{n}"} for n in range(3)] + JOBS[3:]
    host = cluster.host("a", workers=16, jobs=jobs)
    host.wait_loaded()
    cluster.wait_runs("job-0", 2)
    cluster.wait_runs("per-worker", 16)
    assert len(host.workers()) == 16
    cluster.stop()
    assert not re.findall(r".*(?:ERROR|CRITICAL|Traceback).*", host.log)


def test_two_apps_on_one_host_elect_separately_on_default_paths(cluster: Cluster) -> None:
    """One machine, one user, one host id: only the cluster's name tells them apart."""
    first = cluster.host("a", workers=2, jobs=JOBS[:1], lock_file=False)
    shared = {name: first.env[name] for name in ("XDG_RUNTIME_DIR", "SINGLEJOB_TEST_INSTANCE")}
    settings = {"SINGLEJOB_HOST_ID": "a", "SINGLEJOB_CLUSTER": "another"}
    second = cluster.host("b", workers=2, jobs=JOBS[:1], lock_file=False, env=shared, config=settings)
    begun = time.time()
    pids = {name: set(host.workers()) for name, host in (("first", first), ("second", second))}

    def ran_in(name: str) -> bool:
        return any(run.pid in pids[name] and run.facts["real"] > begun for run in cluster.runs("each-second"))

    wait_until(lambda: ran_in("first") and ran_in("second"), what="each app runs its own job")
    # Nothing was there before: what is made first must not make the place unfit for what comes next.
    (private,) = first.runtime.glob("flask-singlejob-*")
    assert len(list(private.glob("*.lock"))) == 2, sorted(path.name for path in private.iterdir())
    assert "looking for another place" not in first.log + second.log
