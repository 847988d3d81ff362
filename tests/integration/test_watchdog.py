"""An owner that does not move, a lock that cannot be had, and calls before there is an owner: never in silence."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .harness import Cluster, Host
from .waiting import wait_until

TICK = {"id": "each-second", "trigger": "interval", "seconds": 1}
APP = "tests.integration.apps.trouble:create_app()"


def go_on(cluster: Cluster, but: int | None = None) -> None:
    """Wait until a tick that falls due from now on has run, in another process than ``but``."""
    now = time.time() * 1000
    wait_until(
        lambda: any((run.tick or 0) > now and run.pid != but for run in cluster.runs("each-second")),
        60,
        "the ticks go on",
    )


def hurt(host: Host, what: str, **how: str) -> None:
    """Harm the owner: requests go to any worker, so it is asked for until the owner was met."""
    wait_until(lambda: host.post(f"/hurt/{what}", how).json()["done"], 30, f"the owner is hurt ({what})")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "how", "line"),
    [
        ("thread", {"name": "APScheduler"}, "the scheduler's thread is dead"),
        ("thread", {"name": "singlejob-poll"}, "the thread that polls the store is dead"),
        ("lock", {}, "the scheduler's thread has been stuck"),
        ("store", {}, "a call to the store has not returned"),
    ],
    ids=["scheduler-dead", "poll-dead", "stuck-in-a-lock", "stuck-in-the-store"],
)
def test_owner_whose_threads_do_not_move_hands_over_and_says_so_once(
    cluster: Cluster, what: str, how: dict[str, str], line: str
) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], app=APP)
    owner = host.owner_pid()
    cluster.sample_owners()
    cluster.wait_runs("each-second", 1)
    hurt(host, what, **how)
    wait_until(lambda: host.owners() not in ((), (owner,)), 60, "another owner")
    go_on(cluster, but=owner)
    assert host.log.count(line) == 1 + host.log.count(f"no longer owns the schedule: {line}"), host.log_tail()
    assert host.log.count(f"(pid {owner}) hands over") == 1
    report = cluster.judge(window=(0, 0), finished=False)
    report.assert_clean()
    assert len([run.tick for run in cluster.runs("each-second")]) == len(
        {run.tick for run in cluster.runs("each-second")}
    )
    host.kill_all()


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_frozen_owner_is_reported_by_the_others_and_other_hosts_run_the_ticks(
    cluster: Cluster, store_url: str
) -> None:
    cluster.store = store_url
    first = cluster.host("a", workers=3, jobs=[TICK], app=APP)
    owner = first.owner_pid()
    cluster.wait_runs("each-second", 1)
    second = cluster.host("b", workers=1, jobs=[TICK], app=APP)
    second.owner_pid()
    first.freeze(owner)
    go_on(cluster, but=owner)

    def reported() -> bool:
        # A frozen worker may have been given the request: ask again.
        answer = first.get("/health?check=jobs", timeout=3)
        return answer.status == 503 and f"(pid {owner}) has not moved" in answer.text

    wait_until(reported, 60, "health says that the owner stands still")
    assert first.owners() == (owner,)
    first.thaw(owner)
    wait_until(lambda: first.get("/health?check=jobs", timeout=3).status == 200, 60, "health is well again")
    first.kill_all()
    second.kill_all()


# -- locks that cannot be had -------------------------------------------------------------------------


def _directory(path: Path) -> None:
    path.mkdir()


def _symlink(path: Path) -> None:
    path.with_name("elsewhere").write_text("")
    path.symlink_to(path.with_name("elsewhere"))


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _hard_link(path: Path) -> None:
    path.with_name("elsewhere").write_text("")
    os.link(path.with_name("elsewhere"), path)


@pytest.mark.parametrize("trouble", [_directory, _symlink, _fifo, _hard_link])
def test_lock_file_in_trouble_is_no_owner_but_not_in_silence(
    cluster: Cluster, trouble: Callable[[Path], None]
) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], start=False)
    assert host.lock_file is not None
    trouble(host.lock_file)
    host.start()

    def named() -> bool:
        answer = host.get("/health?check=jobs")
        return answer.status == 503 and str(host.lock_file) in answer.text

    wait_until(named, 60, "health names the file")
    assert "No owner for" in host.log
    assert not host.owners()
    # It goes on by itself once the file's place is free.
    if host.lock_file.is_dir():
        host.lock_file.rmdir()
    else:
        host.lock_file.unlink()
    cluster.wait_runs("each-second", 1)
    wait_until(lambda: host.get("/health?check=jobs").status == 200, 60, "health is well again")
    host.kill_all()


def test_port_of_another_program_is_no_owner_but_not_in_silence(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], config={"SINGLEJOB_ELECTION": "socket"}, start=False)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", host.election_port or 0))
        stranger.listen()
        host.start()
        wait_until(
            lambda: "SINGLEJOB_ELECTION_PORT" in host.get("/health?check=jobs").text,
            60,
            "health names the key",
        )
        assert not cluster.runs()
    cluster.wait_runs("each-second", 1)
    wait_until(lambda: host.get("/health?check=jobs").status == 200, 60, "health is well again")
    host.kill_all()


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_lock_file_that_vanishes_under_its_owner_is_noticed(cluster: Cluster, replaced: bool) -> None:
    host = cluster.host("a", workers=3, jobs=[TICK])
    owner = host.owner_pid()
    cluster.wait_runs("each-second", 1)
    assert host.lock_file is not None
    host.lock_file.unlink()
    if replaced:
        host.lock_file.touch(mode=0o600)
    wait_until(lambda: f"(pid {owner}) hands over" in host.log, 30, "the owner notices")
    go_on(cluster)
    wait_until(lambda: len(host.owners()) == 1, 30, "one owner")
    ticks = [run.tick for run in cluster.runs("each-second")]
    assert len(ticks) == len(set(ticks))
    host.kill_all()


# -- calls at any time ----------------------------------------------------------------------------------


def late(calls: dict[str, Any]) -> dict[str, Any]:
    """Return the calls that took long: a second where nothing else runs, here for a busy machine ten."""
    return {name: call for name, call in calls.items() if call[0] > 10}


def test_public_methods_return_or_raise_at_import_in_the_factory_and_in_a_standby(cluster: Cluster) -> None:
    host = cluster.host("a", workers=2, jobs=[TICK], app=APP, env={"SINGLEJOB_TEST_CALL": "1"})
    # Both workers call everything twice while they boot: none is asked before that is over.
    wait_until(lambda: len(cluster.events("called")) >= 4, 60, "both workers have booted")
    told = {event["where"]: event["calls"] for event in cluster.events("called")}
    assert not late(told["import"])
    assert not late(told["factory"])
    # Without an app there is nothing to ask.
    assert {raised.partition(":")[0] for _, raised in told["import"].values() if raised} == {"RuntimeError"}
    owner = host.owner_pid()
    seen: dict[bool, dict[str, Any]] = {}

    def both_asked() -> bool:
        answer = host.get("/called").json()
        seen[answer["pid"] == owner] = answer["calls"]
        return len(seen) == 2

    wait_until(both_asked, 60, "the owner and a standby are asked")
    for calls in seen.values():
        assert not late(calls)
        assert {name: raised for name, (_, raised) in calls.items() if raised} == {}
    assert "Traceback" not in host.log, host.log_tail()
    host.kill_all()


@pytest.mark.slow
def test_sixteen_workers_and_a_first_request_before_the_election_is_over(cluster: Cluster) -> None:
    host = cluster.host("a", workers=16, jobs=[TICK], app=APP, ready=False)
    cluster.sample_owners()
    wait_until(lambda: host._answers() or host.get("/status").status == 200, 90, "the first answer")
    assert host.get("/status").status == 200
    assert host.get("/owner").status == 200
    cluster.wait_runs("each-second", 2, 90)
    wait_until(lambda: len(host.workers()) == 16, 90, "all workers")
    cluster.judge(window=(0, 0), finished=False).assert_clean()
    assert host.stop() == 0
    assert "Traceback" not in host.log
