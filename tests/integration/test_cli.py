"""The real ``flask singlejob …`` beside a real gunicorn, and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.harness import Cluster, Process
from tests.integration.waiting import wait_until

JOBS: list[dict[str, Any]] = [
    {"id": "each-second", "trigger": "interval", "seconds": 1},
    {"id": "nightly", "trigger": "cron", "hour": 3},
    {"id": "slow", "trigger": "cron", "hour": 3, "work": 60},
    {"id": "brief", "trigger": "cron", "hour": 3, "work": 2},
]


def flask(
    host: Process, *arguments: str, code: int | None = 0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Call ``flask singlejob …`` with the surroundings of a host."""
    command = [sys.executable, "-m", "flask", "--app", "tests.integration.apps.basic:create_app", "singlejob"]
    done = subprocess.run(
        [*command, *arguments],
        env={**host.env, **env},
        cwd=host.cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def command_line(host: Process, *arguments: str) -> subprocess.Popen[str]:
    """Start ``flask singlejob …`` with the surroundings of a host."""
    command = [sys.executable, "-m", "flask", "--app", "tests.integration.apps.basic:create_app", "singlejob"]
    return subprocess.Popen(
        [*command, *arguments],
        env=host.env,
        cwd=host.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def empty(cluster: Cluster) -> Process:
    """A host that has no server; its command line finds what its server would."""
    env = {"SINGLEJOB_TEST_JOBS": json.dumps(JOBS)}
    return Process("a", ["true"], directory=cluster.directory / "a", env=env, port=0)


def test_commands_tell_the_truth_beside_a_living_server(cluster: Cluster) -> None:
    host = cluster.host("a", workers=4, jobs=JOBS)
    owner = host.owner_pid()
    cluster.wait_runs("each-second", 1)
    status = json.loads(flask(host, "status", "--json").stdout)
    assert status["owner"]["held"] is True
    assert status["owner"]["pid"] == owner
    assert status["state"] == "idle"
    assert f"owned by pid {owner}" in flask(host, "status").stdout
    assert flask(host, "health").stdout == "ok\n"
    found = json.loads(flask(host, "history", "--json", "--job", "each-second").stdout)
    assert {run["pid"] for run in found} == {owner}
    doctor = json.loads(flask(host, "doctor", "--json").stdout)
    assert {finding["severity"] for finding in doctor["findings"]} <= {"note"}, doctor
    assert host.owner_pid() == owner


def test_job_run_from_the_command_line_runs_there_and_no_wait_in_the_owner(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=JOBS)
    owner = host.owner_pid()
    ended = json.loads(flask(host, "run", "nightly", "--json").stdout)
    assert (ended["status"], ended["cause"]) == ("succeeded", "manual")
    assert ended["pid"] not in host.processes()
    flask(host, "run", "nightly", "--no-wait")
    cluster.wait_runs("nightly", 2)
    assert {run.pid for run in cluster.runs("nightly")} == {ended["pid"], owner}


def test_pause_from_the_command_line_reaches_the_owner(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=JOBS)
    cluster.wait_runs("each-second", 1)
    flask(host, "pause", "each-second")

    def passed_over() -> int:
        told = flask(host, "history", "--job", "each-second", "--status", "skipped", "--json").stdout
        return sum(run["count"] for run in json.loads(told) if run["reason"] == "paused")

    passed = wait_until(passed_over, what="the owner passes over a tick")
    before = len(cluster.runs("each-second"))
    wait_until(lambda: passed_over() >= passed + 2, what="further ticks fall due")
    assert len(cluster.runs("each-second")) == before
    flask(host, "resume", "each-second")
    cluster.wait_runs("each-second", before + 1)


def test_everything_works_while_the_server_is_down_and_owns_nothing(empty: Process) -> None:
    assert {job["id"] for job in json.loads(flask(empty, "jobs", "--json").stdout)} == {
        job["id"] for job in JOBS
    }
    flask(empty, "run", "nightly")
    flask(empty, "pause", "nightly")
    flask(empty, "status", code=1)
    flask(empty, "health", code=1)
    flask(empty, "health", "--live")
    flask(empty, "locks")
    assert not (empty.lock_file is not None and empty.lock_file.exists())


def test_store_that_refuses_is_one_line_and_a_quick_answer(empty: Process) -> None:
    env = {"FLASK_SINGLEJOB_STORE": json.dumps("postgresql+psycopg://app:secret@127.0.0.1:1/app")}
    for arguments in (["status"], ["jobs"], ["run", "nightly"], ["history"]):
        done = flask(empty, *arguments, code=1, **env)
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("Error: ")
        assert "127.0.0.1:1/app" in line
        assert "secret" not in done.stdout + done.stderr
        assert done.stdout == ""
    flask(empty, "health", "--live", code=0, **env)
    assert "the store is away" in flask(empty, "health", code=1, **env).stdout


def test_scheduler_owns_a_host_without_a_server_and_stops_in_order(cluster: Cluster, empty: Process) -> None:
    running = command_line(empty, "scheduler")
    try:
        wait_until(lambda: "each-second" in empty_runs(empty), 30, "the scheduler runs a job")
        flask(empty, "status")
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 0, out
    assert f"Owner: this process (pid {running.pid})" in out
    assert out.rstrip().endswith("Stopped.")
    flask(empty, "status", code=1)


def empty_runs(host: Process) -> str:
    """Return what the host's jobs told of themselves."""
    return host.witness.read_text() if host.witness.exists() else ""


def test_stopping_scheduler_hands_over_at_once_and_lets_its_job_end(cluster: Cluster) -> None:
    host = cluster.host("a", workers=1, jobs=JOBS)
    server = host.owner_pid()
    running = command_line(host, "scheduler")
    try:
        said = running.stdout
        assert said is not None
        wait_until(lambda: "Standby: pid" in said.readline(), 30, "it stands by")
        host.signal(server, signal.SIGSTOP)
        host.signal(server, signal.SIGKILL)
        wait_until(lambda: f"Owner: this process (pid {running.pid})" in said.readline(), 30, "it owns")
        flask(host, "run", "brief", "--no-wait")
        wait_until(lambda: any(run.pid == running.pid for run in cluster.runs("brief")), 30, "its job runs")
        stopped = time.monotonic()
        running.send_signal(signal.SIGINT)
        wait_until(
            lambda: bool(host.owners()) or None, 30, "the server's new worker owns the host", every=0.01
        )
        assert running.poll() is None or time.monotonic() - stopped > 1
        out, _ = running.communicate(timeout=40)
    finally:
        running.kill()
    assert running.returncode == 0, out
    ended = json.loads(flask(host, "history", "--job", "brief", "--json").stdout)
    assert [run["status"] for run in ended] == ["succeeded"]


def test_followed_history_shows_new_runs_until_ctrl_c(cluster: Cluster) -> None:
    host = cluster.host("a", workers=1, jobs=JOBS)
    following = command_line(host, "history", "--follow", "--json", "--limit", "1")
    try:
        assert following.stdout is not None
        seen = [json.loads(following.stdout.readline()) for _ in range(4)]
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=20)
    finally:
        following.kill()
    assert following.returncode == 0
    ticks = [run["scheduled_at"] for run in seen if run["status"] == "succeeded"]
    assert ticks == sorted(set(ticks))
    assert len(ticks) >= 2


def test_owner_that_stands_still_is_unhealthy(cluster: Cluster) -> None:
    host = cluster.host("a", workers=1, jobs=JOBS)
    owner = host.owner_pid()
    cluster.wait_runs("each-second", 1)
    host.freeze(owner)
    try:
        # Its file's age decides: make it old instead of waiting.
        for path in Path(host.runtime).rglob("*"):
            if "alive" in str(path.parent) and path.is_file():
                os.utime(path, (time.time() - 100, time.time() - 100))
        assert f"pid {owner}) has not moved" in flask(host, "health", "--jobs", code=1).stdout
        assert f"pid {owner}) has not moved" in flask(host, "health", "--live", code=1).stdout
    finally:
        host.thaw(owner)
    wait_until(lambda: flask(host, "health", "--live", code=None).returncode == 0, 30, "it moves again")
