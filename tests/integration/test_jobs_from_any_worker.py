"""Jobs are managed in any worker of any host: owners follow, and everything outlives restarts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.integration.harness import Cluster, Host, Response
from tests.integration.waiting import observe, wait_until

APP = "tests.integration.apps.managed:create_app()"
POLL = 0.5
#: The promise is the poll interval + 0.5 s; the rest is for a machine that is busy with other tests.
FOLLOW = POLL + 0.5 + 2.0
CONFIG = {"SINGLEJOB_POLL_INTERVAL": POLL}


def host(cluster: Cluster, name: str = "a", workers: int = 4, **options: Any) -> Host:
    """Start a host of the managed app and wait until it has an owner."""
    config = {**CONFIG, **options.pop("config", {})}
    started = cluster.host(name, app=APP, workers=workers, config=config, **options)
    started.wait_loaded()
    started.owner_pid()
    return started


def ask(host: Host, method: str, path: str, body: Any = None) -> Response:
    """Send a request that has to succeed to whichever worker takes it."""
    answer = host.get(f"/scheduler{path}", method=method, data=body)
    assert answer.status < 300, f"{method} {path}: {answer.status} {answer.text}"
    return answer


def add(host: Host, id: str, **fields: Any) -> Response:
    """Add a job that witnesses its runs."""
    kwargs = {"seconds": fields.pop("work", 0.0), "name": id}
    return ask(host, "POST", "/jobs", {"id": id, "func": "work", "kwargs": kwargs, **fields})


def starts(cluster: Cluster, id: str, after: float = 0.0) -> list[dict[str, Any]]:
    """Return the witnessed starts of a job's runs since a moment of the monotonic clock."""
    return [event for event in cluster.events("start") if event["job"] == id and event["mono"] > after]


def runs_on(cluster: Cluster, id: str, names: set[str], after: float) -> None:
    """Wait until each of the hosts has begun a run after a moment, in time."""
    wait_until(
        lambda: {event["host"] for event in starts(cluster, id, after)} >= names,
        FOLLOW + 1.0,
        f"{id} runs on {', '.join(sorted(names))}",
    )


def quiet(cluster: Cluster, id: str, after: float) -> None:
    """See that no run begins later than the owners need to follow a change."""
    observe(max(0.0, after + FOLLOW - time.monotonic()) + 1.5)
    late = list(starts(cluster, id, after + FOLLOW))
    assert not late, f"{id} still runs: {late}"


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_every_owner_follows_a_change_made_in_any_worker(cluster: Cluster, store_url: str) -> None:
    cluster.store = store_url
    both = [host(cluster, "a"), host(cluster, "b")]
    names = {"a", "b"}
    here, there = both
    changed = time.monotonic()
    add(here, "each", scope="host", trigger="interval", hours=5)
    ask(there, "PATCH", "/jobs/each", {"trigger": "interval", "seconds": 1})
    runs_on(cluster, "each", names, changed)

    ask(here, "PATCH", "/jobs/each", {"kwargs": {"seconds": 0.0, "name": "each", "fail": True}})
    wait_until(
        lambda: all("told to fail" in host.log for host in both), FOLLOW + 1.0, "the new arguments are used"
    )

    changed = time.monotonic()
    ask(there, "POST", "/jobs/each/pause")
    quiet(cluster, "each", changed)
    for host_ in both:
        assert job(host_, "each")["paused"] is True

    changed = time.monotonic()
    ask(here, "POST", "/jobs/each/resume")
    runs_on(cluster, "each", names, changed)

    ask(there, "POST", "/pause")
    assert all(ask(host_, "GET", "").json()["paused"] for host_ in both)
    changed = time.monotonic()
    ask(here, "POST", "/resume")
    runs_on(cluster, "each", names, changed)

    changed = time.monotonic()
    ask(here, "DELETE", "/jobs/each")
    quiet(cluster, "each", changed)
    assert all(answer.status == 404 for answer in (host.get("/scheduler/jobs/each") for host in both))


def job(host: Host, id: str) -> dict[str, Any]:
    """Return a job as a worker shows it."""
    shown: dict[str, Any] = ask(host, "GET", f"/jobs/{id}").json()
    return shown


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_all_workers_of_all_hosts_show_the_same_jobs_and_times(cluster: Cluster, store_url: str) -> None:
    cluster.store = store_url
    defined = [{"id": "defined", "trigger": "interval", "hours": 7}]
    both = [host(cluster, "a", jobs=defined), host(cluster, "b", jobs=defined)]
    add(both[0], "interval", trigger="interval", hours=3)
    add(both[1], "cron", trigger="cron", hour="*/5", jitter=600)
    add(both[1], "paused", trigger="cron", hour=4, next_run_time=None)
    for host_ in both:
        wait_until(lambda host_=host_: job(host_, "defined")["next_run_time"], 20, "it is pinned")  # type: ignore[misc]
    seen: dict[str, set[str]] = {}

    def all_asked() -> bool:
        for host_ in both:
            answer = ask(host_, "GET", "/jobs")
            seen.setdefault(answer.headers["X-Worker"], set()).add(answer.text)
        return len(seen) == 8

    wait_until(all_asked, 60, "every worker has answered", every=0.0)
    answers = set().union(*seen.values())
    assert len(answers) == 1, "\n".join(sorted(answers))


def test_two_hundred_jobs_two_seconds_ahead_all_run_once(cluster: Cluster) -> None:
    only = host(cluster)
    due: dict[str, datetime] = {}
    workers: Counter[str] = Counter()
    trouble: list[BaseException] = []

    def send(numbers: range) -> None:
        try:
            for number in numbers:
                due[f"once-{number}"] = at = datetime.now(timezone.utc) + timedelta(seconds=2)
                answer = add(only, f"once-{number}", trigger="date", run_date=at.isoformat())
                workers[answer.headers["X-Worker"]] += 1
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=send, args=(range(part, 200, 4),)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not trouble
    assert len(workers) == 4, workers
    wanted = {f"once-{number}" for number in range(200)}
    wait_until(
        lambda: {event["job"] for event in cluster.events("end")} >= wanted, 60, "all have run", every=0.2
    )
    counted = Counter(event["job"] for event in cluster.events("start"))
    assert {id: counted[id] for id in wanted} == dict.fromkeys(wanted, 1)
    late = sorted(event["real"] - due[event["job"]].timestamp() for event in cluster.events("start"))
    assert late[0] >= -0.01, "a job ran before its time"
    # The worst ones tell of the machine; of the schedule, those in the middle do.
    assert late[len(late) // 2] < FOLLOW
    wait_until(lambda: ask(only, "GET", "/jobs").json() == [], 20, "jobs whose trigger has ended are gone")


def test_changes_outlive_restarts_and_a_pause_also_a_changed_trigger(cluster: Cluster) -> None:
    def defined(**trigger: Any) -> list[dict[str, Any]]:
        return [
            {"id": "changed", "trigger": "cron", "hour": 3},
            {"id": "paused", "trigger": "interval", **trigger},
        ]

    first = host(cluster, workers=2, jobs=defined(seconds=1))
    add(first, "stored", trigger="interval", seconds=1, args=[])
    ask(first, "PATCH", "/jobs/changed", {"trigger": "interval", "seconds": 1})
    ask(first, "POST", "/jobs/paused/pause")
    first.stop()
    restarted = time.monotonic()
    second = cluster.host("a", app=APP, workers=2, config=CONFIG, jobs=defined(minutes=1, seconds=1))
    cluster.hosts.remove(first)
    for id in ("stored", "changed"):
        wait_until(lambda id=id: starts(cluster, id, restarted), 20, f"{id} runs after the restart")  # type: ignore[misc]
    shown = job(second, "paused")
    assert (shown["paused"], shown["minutes"], shown["seconds"]) == (True, 1, 1)
    quiet(cluster, "paused", restarted - FOLLOW)
    assert job(second, "changed")["trigger"] == "interval"


def test_removing_or_pausing_a_job_while_it_runs_kills_nothing(cluster: Cluster) -> None:
    only = host(cluster, workers=2)
    for id in ("removed", "paused"):
        add(only, id, trigger="interval", seconds=1, work=3.0)
        wait_until(lambda id=id: starts(cluster, id), 20, f"{id} runs")  # type: ignore[misc]
    before = set(only.workers())
    changed = time.monotonic()
    ask(only, "DELETE", "/jobs/removed")
    ask(only, "POST", "/jobs/paused/pause")
    for id in ("removed", "paused"):
        wait_until(
            lambda id=id: any(e["job"] == id and e["mono"] > changed for e in cluster.events("end")),  # type: ignore[misc]
            20,
            f"the run of {id} ends by itself",
        )
    quiet(cluster, "paused", changed)
    assert not starts(cluster, "removed", changed + FOLLOW)
    assert set(only.workers()) == before


def test_worker_scope_jobs_follow_a_pause_in_every_worker(cluster: Cluster) -> None:
    jobs = [{"id": "everywhere", "trigger": "interval", "seconds": 1, "scope": "worker"}]
    only = host(cluster, workers=3, jobs=jobs)
    wait_until(
        lambda: len({e["pid"] for e in starts(cluster, "everywhere")}) == 3, 20, "it runs in all workers"
    )
    changed = time.monotonic()
    ask(only, "POST", "/jobs/everywhere/pause")
    quiet(cluster, "everywhere", changed)
    changed = time.monotonic()
    ask(only, "POST", "/jobs/everywhere/resume")
    wait_until(
        lambda: len({e["pid"] for e in starts(cluster, "everywhere", changed)}) == 3,
        20,
        "it runs in all workers again",
    )


def test_a_run_may_be_handed_over_from_any_worker_to_the_owner(cluster: Cluster) -> None:
    only = host(cluster, workers=4)
    add(only, "by-hand", trigger="interval", hours=9)
    for number in range(1, 4):
        assert only.get("/scheduler/jobs/by-hand/run?wait=false", method="POST", data={}).status == 202
        wait_until(lambda number=number: len(starts(cluster, "by-hand")) >= number, 20, "an owner runs it")  # type: ignore[misc]
    assert {event["pid"] for event in starts(cluster, "by-hand")} == {only.owner_pid()}
    assert {event["cause"] for event in starts(cluster, "by-hand")} == {"manual"}
