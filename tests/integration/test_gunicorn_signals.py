"""What gunicorn's signals do to owners, standbys and running jobs: each acts, one owner at any time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from .checker import Expected
from .harness import Cluster, Host
from .servers import Daemon
from .waiting import wait_until

TICK = {"id": "each-second", "trigger": "interval", "seconds": 1, "coalesce": False}
APP = "tests.integration.apps.trouble:create_app()"
#: gunicorn and we act within two seconds; a machine under load gets far more before it is a failure.
ACTS = 30.0


def go_on(cluster: Cluster, job: str = "each-second") -> None:
    """Wait until a tick that falls due from now on has run."""
    now = time.time() * 1000
    wait_until(
        lambda: max((run.tick or 0 for run in cluster.runs(job)), default=0) > now, 60, "the ticks go on"
    )


def settled(host: Host, job: str = "each-second") -> list[int]:
    """Return the ticks that the history says were lost or skipped (UTC milliseconds)."""
    found = []
    for status in ("lost", "skipped"):
        for run in host.get(f"/runs?job={job}&status={status}").json()["runs"]:
            found.append(round(datetime.fromisoformat(run["scheduled_at"]).timestamp() * 1000))
    return found


def assert_each_once(cluster: Cluster, begun: float, ended: float, excused: list[int]) -> None:
    report = cluster.judge(
        Expected("each-second"), window=(begun, ended), excused={"each-second": excused}, finished=False
    )
    report.assert_clean()


def assert_no_trouble(host: Host) -> None:
    found = re.findall(
        r"^.*(?:Traceback|CRITICAL|cannot schedule new futures|singlejob.*ERROR).*", host.log, re.M
    )
    assert not found, host.log_tail(200)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"worker_class": "gevent", "preload": True}], ids=["sync", "gevent-preload"]
)
def test_workers_come_go_and_are_replaced_under_one_owner(cluster: Cluster, options: dict[str, Any]) -> None:
    if options.get("worker_class") == "gevent":
        pytest.importorskip("gevent")
    host = cluster.host("a", workers=1, jobs=[TICK], app=APP, **options)
    first = host.owner_pid()
    cluster.sample_owners()
    cluster.wait_runs("each-second", 1)
    begun = time.time()
    host.more_workers()
    host.wait_workers(2, ACTS)
    host.more_workers()
    host.wait_workers(3, ACTS)
    # The master removes its oldest worker, which is the owner.
    host.fewer_workers()
    wait_until(lambda: first not in host.workers(), ACTS, "the oldest worker, the owner, is removed")
    host.wait_workers(2, ACTS)
    assert host.owner_pid() != first
    go_on(cluster)
    # A reload goes back to the number of workers that was configured: one.
    old = set(host.workers())
    os.kill(host.pid, signal.SIGHUP)
    wait_until(lambda: len(host.workers()) == 1 and not old & set(host.workers()), 60, "a new worker only")
    go_on(cluster)
    ended = time.time()
    excused = settled(host)
    cluster.stop()
    assert_each_once(cluster, begun, ended, excused)
    assert_no_trouble(host)


@pytest.mark.slow
def test_hup_brings_changed_code_and_new_jobs(cluster: Cluster) -> None:
    directory = cluster.directory / "a"
    directory.mkdir()
    code = directory / "served.py"
    text = (
        "import os\nos.environ['SINGLEJOB_TEST_JOBS'] = %r\n"
        "from tests.integration.apps.basic import create_app\napp = create_app()\n"
    )
    code.write_text(text % json.dumps([TICK]))
    host = cluster.host("a", workers=2, app="served:app", flags=["--pythonpath", str(directory)])
    cluster.wait_runs("each-second", 1)
    code.write_text(text % json.dumps([TICK, {**TICK, "id": "new"}]))
    os.utime(code, (time.time() + 5, time.time() + 5))
    host.reload()
    cluster.wait_runs("new", 2)
    cluster.stop()
    assert_no_trouble(host)


def test_hup_of_a_preloaded_app_says_once_that_the_old_code_stays(cluster: Cluster) -> None:
    directory = cluster.directory / "a"
    directory.mkdir()
    code = directory / "served.py"
    code.write_text("from tests.integration.apps.basic import create_app\napp = create_app()\n")
    path = ["--pythonpath", str(directory)]
    host = cluster.host("a", workers=4, preload=True, jobs=[TICK], app="served:app", flags=path)
    host.owner_pid()
    host.reload()
    assert "has changed since the app was preloaded" not in host.log
    os.utime(code, (time.time() + 5, time.time() + 5))
    host.reload()
    host.owner_pid()
    wait_until(lambda: "has changed since the app was preloaded" in host.log, ACTS, "a line about the code")
    told = re.findall(r"(\S+) has changed since the app was preloaded", host.log)
    assert set(told) == {str(code)}
    assert len(told) <= 2, "each worker says it"


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["done", "called off"])
def test_upgrade_of_the_arbiter_has_one_owner_throughout(cluster: Cluster, outcome: str) -> None:
    # gunicorn takes WINCH for a terminal's unless it is a daemon.
    host = Daemon("a", **cluster._options("a", {"workers": 2, "jobs": [TICK], "app": APP}))
    cluster.hosts.append(host)
    host.start()
    host.owner_pid()
    cluster.sample_owners()
    cluster.wait_runs("each-second", 1)
    begun = time.time()
    old = host.pid
    new = host.upgrade()
    go_on(cluster)
    if outcome == "done":
        os.kill(old, signal.SIGWINCH)
        wait_until(lambda: not host.workers(old), ACTS, "the old arbiter's workers go")
        go_on(cluster)
        assert host.owner_pid() in host.workers(new)
        os.kill(old, signal.SIGQUIT)
        wait_until(lambda: old not in host.processes(), ACTS, "the old arbiter goes")
    else:
        os.kill(old, signal.SIGWINCH)
        wait_until(lambda: not host.workers(old), ACTS, "the old arbiter's workers go")
        os.kill(old, signal.SIGHUP)
        wait_until(lambda: len(host.workers(old)) == 2, ACTS, "the old arbiter's workers come back")
        os.kill(new, signal.SIGQUIT)
        wait_until(lambda: new not in host.processes(), ACTS, "the new arbiter goes")
        wait_until(lambda: set(host.owners()) & set(host.workers(old)), ACTS, "an owner of the old arbiter")
    go_on(cluster)
    ended = time.time()
    excused = settled(host)
    cluster.stop()
    assert_each_once(cluster, begun, ended, excused)
    assert_no_trouble(host)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM], ids=["INT", "QUIT", "TERM"])
def test_gunicorn_stops_cleanly_while_short_jobs_run_all_the_time(cluster: Cluster, sig: int) -> None:
    jobs = [{**TICK, "id": f"job-{n}", "work": 0.05} for n in range(12)]
    host = cluster.host(
        "a",
        workers=2,
        jobs=jobs,
        config={"SCHEDULER_EXECUTORS": {"default": {"type": "threadpool", "max_workers": 20}}},
    )
    cluster.wait_runs("job-0", 2)
    assert host.stop(ACTS, sig=sig) == 0
    assert_no_trouble(host)
    assert " ERROR " not in host.log
    # Only a graceful stop waits for jobs.
    assert sig != signal.SIGTERM or "cut off" not in host.log, host.log_tail(100)


@pytest.mark.slow
def test_worker_past_its_timeout_is_aborted_and_another_owns(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], app=APP, flags=["--timeout", "4"])
    first = host.owner_pid()
    cluster.sample_owners()
    cluster.wait_runs("each-second", 1)
    begun = time.time()

    def block() -> None:
        for _ in range(3):
            try:
                host.get("/sleep?seconds=600", timeout=60)
            except OSError:
                continue

    # Both workers get one: whoever owns is aborted.
    for _ in range(2):
        threading.Thread(target=block, daemon=True).start()
    wait_until(lambda: first not in host.workers(), 90, "the owner is aborted")
    go_on(cluster)
    ended = time.time()
    wait_until(lambda: host.get("/pid", timeout=5).status == 200, 90, "a worker answers again")
    excused = settled(host)
    cluster.stop()
    assert "WORKER TIMEOUT" in host.log
    assert_each_once(cluster, begun, ended, excused)


@pytest.mark.slow
def test_killed_arbiters_workers_give_their_schedule_to_the_next_server(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], app=APP)
    workers = set(host.workers())
    host.owner_pid()
    cluster.sample_owners()
    cluster.wait_runs("each-second", 1)
    begun = time.time()
    os.kill(host.pid, signal.SIGKILL)
    wait_until(lambda: not workers & set(host.processes()), 60, "the orphaned workers end by themselves")
    assert not host.owners()
    assert host._process is not None
    host._process.wait()
    host.start()
    go_on(cluster)
    ended = time.time()
    excused = settled(host)
    cluster.stop()
    assert_each_once(cluster, begun, ended, excused)


# -- graceful stop ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
def test_owner_told_to_stop_hands_over_at_once_while_its_long_job_goes_on(
    cluster: Cluster, kind: str
) -> None:
    if kind == "gevent":
        pytest.importorskip("gevent")
    long = {"id": "long", "trigger": "interval", "seconds": 600, "work": 20}
    host = cluster.host("a", workers=2, jobs=[TICK, long], app=APP, worker_class=kind)
    cluster.sample_owners()
    cluster.wait_runs("each-second", 1)
    begun = time.time()
    assert host.post("/run/long?wait=0").status == 200
    (run,) = cluster.wait_runs("long", 1)
    assert run.pid == host.owner_pid()
    host.signal(run.pid, signal.SIGTERM)
    wait_until(lambda: host.owners() not in ((), (run.pid,)), ACTS, "another owner")
    assert run.pid in host.processes(), "the job's process ended before its job"
    go_on(cluster)
    ended = time.time()
    wait_until(lambda: cluster.runs("long")[0].end, 60, "the long job ends by itself")
    wait_until(lambda: run.pid not in host.processes(), 60, "the old owner ends")
    kept = host.get("/runs?job=long").json()["runs"]
    assert [each["status"] for each in kept] == ["succeeded"], kept
    excused = settled(host)
    cluster.stop()
    assert_each_once(cluster, begun, ended, excused)
    assert_no_trouble(host)


@pytest.mark.slow
def test_job_cut_off_by_the_shutdown_timeout_is_recorded_as_lost(cluster: Cluster) -> None:
    long = {"id": "long", "trigger": "interval", "seconds": 600, "work": 600}
    host = cluster.host("a", workers=2, jobs=[TICK, long], app=APP, config={"SINGLEJOB_SHUTDOWN_TIMEOUT": 1})
    assert host.post("/run/long?wait=0").status == 200
    (run,) = cluster.wait_runs("long", 1)
    told = time.monotonic()
    host.signal(run.pid, signal.SIGTERM)
    wait_until(lambda: run.pid not in host.processes(), ACTS, "the worker is gone")
    assert time.monotonic() - told < 30, "gunicorn's graceful timeout had to end it"
    found = wait_until(lambda: host.get("/runs?job=long&status=lost").json()["runs"], 60, "the lost run")
    assert [(each["pid"], each["reason"]) for each in found] in (
        [(run.pid, "shutdown")],
        [(run.pid, "process_died")],
    )
    host.wait_workers(2)
    host.kill_all()


def test_term_ends_the_first_process_of_a_container_cleanly(cluster: Cluster) -> None:
    unshare = shutil.which("unshare")
    tried = [unshare or "", "--pid", "--fork", "true"]
    if unshare is None or subprocess.run(tried, check=False, capture_output=True).returncode:
        pytest.skip("no process name space can be made here")
    python = sys.executable
    server = [python, str(Path(python).with_name("gunicorn")), "-w", "2", "-b", "127.0.0.1:{port}", APP]
    host = cluster.process("a", [unshare, "--pid", "--fork", "--mount-proc", *server], jobs=[TICK])
    cluster.wait_runs("each-second", 2)
    first = host.processes()[1]
    os.kill(first, signal.SIGTERM)
    wait_until(lambda: host.returncode is not None, 60, "gunicorn ends")
    assert host.returncode == 0
    assert "Traceback" not in host.log
