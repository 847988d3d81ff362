"""A job that never lets the processor go, and start-up work whose process is killed in its middle."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.integration.harness import Cluster, Host, Response
from tests.integration.waiting import wait_until

APP = "tests.integration.apps.stubborn:create_app()"


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_job_that_never_lets_the_processor_go_is_lost_and_its_end_changes_nothing(
    cluster: Cluster, store_url: str
) -> None:
    cluster.store = store_url
    config = {"SINGLEJOB_LEASE": 2, "SINGLEJOB_POLL_INTERVAL": 0.5}
    options: dict[str, Any] = {"app": APP, "workers": 1, "config": config, "flags": ["--timeout", "120"]}
    quiet = cluster.host("quiet", **options)
    cluster.host("gripped", ready=False, **options, env={"GRIP_SECONDS": "8"})
    (run,) = cluster.wait_runs("grip", 1)
    found = wait_until(lambda: quiet.get("/runs?job=grip&status=lost").json()["runs"], 30, "it is recorded")
    assert [(one["status"], one["id"]) for one in found] == [("lost", run.run)]
    assert not [event for event in cluster.events("end") if event["job"] == "grip"]
    wait_until(lambda: [e for e in cluster.events("end") if e["job"] == "grip"], 40, "it lets go")
    wait_until(lambda: "lease" in cluster.hosts[1].log, 20, "it is told")
    assert [one["status"] for one in quiet.get("/runs?job=grip").json()["runs"]] == ["lost"]
    assert len(cluster.runs("grip")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_start_up_work_that_dies_in_its_middle_is_done_once_by_another_while_requests_get_503(
    cluster: Cluster, store_url: str
) -> None:
    cluster.store = store_url
    hosts = [
        cluster.host(
            name,
            app=APP,
            workers=4,
            ready=False,
            env={"SEED_SECONDS": "3"},
            config={"SINGLEJOB_LEASE": 4, "SINGLEJOB_POLL_INTERVAL": 0.5},
        )
        for name in ("a", "b")
    ]
    (first,) = wait_until(lambda: cluster.events("seed"), 60, "it is begun by one")
    for host in hosts:
        answer = wait_until(lambda host=host: _asked(host), 30, f"{host.name} answers")  # type: ignore[misc]
        assert answer is not None
        assert answer.status == 503
        assert answer.headers["Retry-After"]
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: len(cluster.events("seed")) == 2, 60, "another one begins it anew")
    wait_until(lambda: cluster.events("seeded"), 60, "it is done")
    for host in hosts:
        wait_until(lambda host=host: host.get("/pid").status == 200, 30, f"{host.name} serves")  # type: ignore[misc]
    assert len(cluster.events("seed")) == 2
    assert len(cluster.events("seeded")) == 1


def _asked(host: Host) -> Response | None:
    host._answers()
    return host.get("/pid") if host.port else None
