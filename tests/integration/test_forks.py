"""Jobs that fork: the child is no worker, and the lock neither stays with it nor is lost by it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .databases import fresh_database
from .harness import Cluster, free_port, holds_lock
from .waiting import wait_until

TICK = {"id": "each-second", "trigger": "interval", "seconds": 1}
APP = "tests.integration.apps.trouble:create_app()"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "multiprocessing", "pool", "subprocess"])
def test_job_that_forks_keeps_its_owner_and_its_child_runs_nothing(cluster: Cluster, kind: str) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], app=APP, env={"SINGLEJOB_TEST_FORK": kind})
    owner = host.owner_pid()
    cluster.sample_owners()
    cluster.wait_runs("forks", 3)
    wait_until(
        lambda: len([run for run in cluster.runs("forks") if run.end]) >= 3, 60, "three runs have ended"
    )
    assert host.owners() == (owner,)
    children = cluster.events("child")
    if kind != "subprocess":
        wait_until(lambda: cluster.events("child"), 30, "a child")
        children = cluster.events("child")
    assert [child["threads"] for child in children] == [[]] * len(children)
    assert {run.pid for run in cluster.runs()} <= set(host.workers()), "a child ran a job"
    assert not [sample for sample in cluster.samples if len(sample.pids) > 1]
    assert not [event for event in cluster.events("joined") if event["code"]]
    cluster.stop()
    assert "Traceback" not in host.log, host.log_tail()


@pytest.mark.slow
@pytest.mark.parametrize("election", ["file", "socket"])
def test_child_that_outlives_its_killed_owner_keeps_nothing(cluster: Cluster, election: str) -> None:
    config = {"SINGLEJOB_ELECTION": election}
    env = {"SINGLEJOB_TEST_FORK": "leave"}
    host = cluster.host("a", workers=2, jobs=[TICK], app=APP, env=env, config=config)
    owner = host.owner_pid()
    cluster.wait_runs("forks", 1)
    child = wait_until(lambda: cluster.events("forked"), 30, "a child")[0]["child"]
    wait_until(lambda: cluster.events("child"), 30, "the child has settled")
    host.kill(owner)
    assert child in host.processes()
    assert wait_until(lambda: set(host.owners()) - {owner, child}, 30, "another owner")
    assert host.lock_file is not None
    assert not holds_lock(child, host.lock_file)
    now = time.time() * 1000
    wait_until(lambda: max(run.tick or 0 for run in cluster.runs("each-second")) > now, 60, "the ticks go on")
    # The dead owner's run is proven dead although its child lives.
    wait_until(
        lambda: "is lost: its process died" in host.log or not _open_runs(cluster, owner), 60, "its run ends"
    )
    os.kill(child, signal.SIGKILL)
    host.kill_all()


def _open_runs(cluster: Cluster, pid: int) -> list[Any]:
    return [run for run in cluster.runs() if run.pid == pid and run.end is None]


@pytest.fixture
def tls_database() -> Iterator[str]:
    """The URL of a PostgreSQL of its own that speaks TLS only."""
    with fresh_database("postgresql"):
        pass  # skips where it is not installed
    openssl = shutil.which("openssl")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if openssl is None or not found:
        pytest.skip("openssl or PostgreSQL's initdb is not installed")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL cannot be started as root here")
    # pytest keeps its own directories from other users, PostgreSQL's among them.
    place = Path(tempfile.mkdtemp(prefix="tls-"))
    place.chmod(0o755)
    tools, data, port = found[-1].parent, place / "pg", free_port()
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    data.mkdir()
    if user:
        shutil.chown(data, "postgres")
    run = {"check": True, "capture_output": True}
    subprocess.run([*user, str(tools / "initdb"), "-A", "trust", "-U", "postgres", "-D", str(data)], **run)  # type: ignore[call-overload]
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    keys = ["-keyout", str(data / "server.key"), "-out", str(data / "server.crt")]
    subprocess.run([openssl, *request, *keys], **run)  # type: ignore[call-overload]
    for name in ("server.key", "server.crt"):
        (data / name).chmod(0o600)
        if user:
            shutil.chown(data / name, "postgres")
    (data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
    settings = [
        "-c",
        "ssl=on",
        "-c",
        f"port={port}",
        "-c",
        f"unix_socket_directories={data}",
        "-c",
        "fsync=off",
    ]
    settings += ["-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen(
        [*user, str(tools / "postgres"), "-D", str(data), *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres?sslmode=require"
    ready = [str(tools / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    try:
        wait_until(
            lambda: not subprocess.run(ready, capture_output=True, check=False).returncode, 60, "PostgreSQL"
        )
        yield url
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(30)
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_preloaded_engine_is_never_shared_over_a_fork_with_tls(cluster: Cluster, tls_database: str) -> None:
    """The arbiter has used the store before it forks; every worker then asks it and runs jobs."""
    cluster.store = tls_database
    directory = cluster.directory / "a"
    directory.mkdir()
    (directory / "served.py").write_text(
        "from tests.integration.apps.basic import create_app\n"
        "app = create_app()\n"
        "with app.app_context():\n"
        "    from flask_singlejob import open_store\n"
        "    engine = app.extensions['singlejob']\n"
        "    engine.ready_store().poll()\n"
    )
    jobs = [{**TICK, "id": f"job-{n}"} for n in range(4)]
    flags = ["--pythonpath", str(directory), "--threads", "4"]
    host = cluster.host("a", workers=4, preload=True, app="served:app", flags=flags, jobs=jobs)
    host.owner_pid()
    for _ in range(40):
        assert host.get("/runs").status == 200
        assert host.get("/status").status == 200
    for job in jobs:
        cluster.wait_runs(str(job["id"]), 4)
    assert host.get("/health?check=jobs").json() == {"ok": True, "reasons": []}
    cluster.stop()
    for word in ("SSL", "Traceback", "decryption", "lost synchronization"):
        assert word not in host.log, host.log_tail()


def test_python_forks_by_spawn_leave_nothing(cluster: Cluster) -> None:
    """A child that multiprocessing spawned imports the app's module again: it does not campaign."""
    directory = cluster.directory / "a"
    directory.mkdir()
    (directory / "script.py").write_text(
        "import multiprocessing, threading\n"
        "from tests.integration.apps.basic import create_app\n"
        "from tests.integration.apps.witness import tell\n"
        "app = create_app()\n"
        "app.apscheduler.start()\n"
        "def child():\n"
        "    tell('child', threads=[t.name for t in threading.enumerate() if 'singlejob' in t.name])\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join()\n"
    )
    process = cluster.process("a", [sys.executable, "script.py"], port=0, jobs=[TICK])
    wait_until(lambda: process.returncode is not None, 60, "the script ends")
    assert process.returncode == 0, process.log
    assert [event["threads"] for event in cluster.events("child")] == [[]]
