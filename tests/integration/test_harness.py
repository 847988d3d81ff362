"""The harness does what the scenarios rely on, shown with apps that do not use the product."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.checker import Expected
from tests.integration.clock import HostClock
from tests.integration.harness import PROJECT, Cluster, listening_ports
from tests.integration.waiting import wait_until

PLAIN = "tests.integration.apps.plain:create_app()"
LOCKING = "tests.integration.apps.plain:create_locking_app()"
SCHEDULED = "tests.integration.apps.plain:create_scheduled_app()"


@pytest.mark.parametrize("preload", [False, True])
def test_host_serves_and_its_workers_are_known(cluster: Cluster, preload: bool) -> None:
    host = cluster.host("a", app=PLAIN, workers=3, preload=preload)
    workers = host.workers()
    assert len(workers) == 3
    assert host.masters() == [host.pid]
    assert host.get("/pid").json()["pid"] in workers
    assert host.get("/nothing").status == 404
    assert host.port in listening_ports(workers)[workers[0]]


def test_killed_worker_is_replaced_and_the_witness_is_told(cluster: Cluster) -> None:
    host = cluster.host("a", app=PLAIN, workers=2)
    victim = host.workers()[0]
    host.kill(victim)
    assert [event["killed"] for event in cluster.events("killed")] == [victim]
    assert victim not in host.wait_workers(2)


def test_frozen_worker_stands_still_until_it_is_thawed(cluster: Cluster) -> None:
    host = cluster.host("a", app=PLAIN, workers=1)
    worker = host.workers()[0]
    host.freeze(worker)
    with pytest.raises(TimeoutError):
        host.get("/pid", timeout=0.5)
    host.thaw(worker)
    assert host.get("/pid").json()["pid"] == worker


def test_reload_upgrade_and_change_of_worker_count_are_followed(cluster: Cluster) -> None:
    host = cluster.host("a", app=PLAIN, workers=2)
    before = host.workers()
    host.reload()
    assert not set(before) & set(host.workers())
    host.more_workers()
    host.wait_workers(3)
    host.fewer_workers()
    host.wait_workers(2)
    new = host.upgrade()
    assert host.masters() == [host.pid, new]
    assert len(host.workers(new)) == 2
    os.kill(new, signal.SIGTERM)
    wait_until(lambda: host.masters() == [host.pid], what="the new arbiter is gone")


def test_owner_is_read_from_the_kernel_also_after_it_was_killed_and_the_file_deleted(
    cluster: Cluster,
) -> None:
    host = cluster.host("a", app=LOCKING, workers=3, start=False)
    assert host.lock_file is not None
    host.env["LOCK"] = str(host.lock_file)
    host.start()
    host.wait_loaded()
    first = host.owner_pid()
    assert host.owners() == (first,)
    host.kill(first)
    second = host.owner_pid()
    assert second != first
    host.lock_file.unlink()
    assert host.owners() == (second,)
    host.reload()
    host.wait_loaded()
    third = host.owner_pid()
    host.lock_file.unlink()
    cluster.sample_owners(every=0.01)
    host.more_workers()  # finds the file gone, makes a new one: two owners
    wait_until(lambda: len(host.owners()) == 2, what="a second owner")
    wait_until(lambda: any(len(sample.pids) == 2 for sample in cluster.samples), what="a sample of both")
    assert third in host.owners()
    now = time.time()
    assert cluster.judge(window=(now, now)).of("owners")


def test_hosts_have_clocks_of_their_own_that_can_be_stepped(cluster: Cluster, host_clocks: None) -> None:
    ahead = cluster.host("ahead", app=PLAIN, workers=1, clock=90.0)
    behind = cluster.host("behind", app=PLAIN, workers=1, clock=-0.7)

    def offset(name: str) -> float:
        host = {"ahead": ahead, "behind": behind}[name]
        answer = host.get("/pid").json()
        assert answer["monotonic"] <= time.monotonic()
        return float(answer["time"]) - time.time() + (time.monotonic() - float(answer["monotonic"]))

    assert offset("ahead") == pytest.approx(90.0, abs=0.2)
    assert offset("behind") == pytest.approx(-0.7, abs=0.2)
    assert ahead.clock is not None
    ahead.clock.step(-3600)
    assert offset("ahead") == pytest.approx(-3510.0, abs=0.2)


WAITS = """
import threading, time
for wait in (threading.Event().wait, lambda t: threading.Lock().acquire() and None or time.sleep(t)):
    begun = time.monotonic()
    wait(0.2)
    assert 0.19 < time.monotonic() - begun < 20, time.monotonic() - begun
lock = threading.Lock()
lock.acquire()
begun = time.monotonic()
assert not lock.acquire(timeout=0.2)
assert 0.19 < time.monotonic() - begun < 20
assert time.time() - {now} > 80000, "the clock was not shifted"
"""


def test_shifted_clock_leaves_sleeps_and_waits_alone(tmp_path: Path, host_clocks: None) -> None:
    clock = HostClock(tmp_path, offset=86400.0)
    script = WAITS.format(now=time.time())
    env = {**os.environ, **clock.environment()}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, timeout=60)


def test_any_program_can_be_a_host(cluster: Cluster) -> None:
    served = "tests.integration.apps.plain:create_app"
    process = cluster.process(
        "flask", [sys.executable, "-m", "flask", "--app", served, "run", "--port", "{port}"]
    )
    assert process.get("/pid").json()["pid"] == process.pid
    assert process.stop() is not None
    assert process.processes() == []


def test_plain_flask_apscheduler_on_two_workers_is_seen_to_run_ticks_twice(cluster: Cluster) -> None:
    cluster.host("a", app=SCHEDULED, workers=2)
    begun = time.time()
    cluster.wait_runs("tick", 6)
    report = cluster.judge(Expected("tick"), window=(begun + 1, time.time() - 1), finished=False)
    assert report.of("double")


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from tests.integration.harness import Cluster
host = Cluster(Path({directory!r})).host("a", app={app!r}, workers=2)
print(host.pid, *host.workers(), flush=True)
os.kill(host.workers()[0], signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_servers_die_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    script = KILLED_RUN.format(directory=str(tmp_path), app=PLAIN)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3
    wait_until(lambda: not any(_alive(pid) for pid in pids), what="the servers are gone")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
