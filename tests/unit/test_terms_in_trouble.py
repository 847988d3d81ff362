"""Terms of ownership that begin badly, are short, or have a store that answers and takes no writes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_SCHEDULER_SHUTDOWN, EVENT_SCHEDULER_STARTED

from flask_singlejob import owner_elected, owner_resigned
from flask_singlejob.errors import StoreError
from flask_singlejob.scheduler import OwnerScheduler
from tests.unit.rig import TroubledStore, hosts_on, wait_until

WRITES = {"claim", "renew", "release", "settle", "expire", "put", "delete", "add_run"}


@pytest.fixture
def store() -> Iterator[TroubledStore]:
    made = TroubledStore(cluster="rig")
    yield made
    made.close()


def test_a_store_that_takes_no_writes_is_one_outage_until_it_takes_them(
    store: TroubledStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="flask_singlejob")
    ran: list[int] = []

    def told(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("often", lambda: ran.append(1), trigger="interval", seconds=1)
        one.start()
        wait_until(lambda: ran, "a run")
        store.failing |= WRITES
        wait_until(lambda: told("the store is away"), "the outage is told of")
        polls = store.calls.count("poll")
        wait_until(lambda: store.calls.count("poll") > polls + 20, "many good polls")
        assert (told("the store is away"), told("is back after")) == (1, 0)
        health = one.jobs.health("jobs")
        assert not health.ok
        assert any("the store is away" in reason for reason in health.reasons), health
        store.failing.clear()
        known = len(ran)
        wait_until(lambda: len(ran) > known, "a run")
        assert (told("the store is away"), told("is back after")) == (1, 1)
    # The end of a run may have been refused too; nothing else is said of the store.


def test_a_request_to_run_by_hand_outlives_a_failure_of_the_first_reading(
    store: TroubledStore, tmp_path: Path
) -> None:
    ran: list[int] = []
    store.put("request", "r1", {"job_id": "often", "by": "test"})
    fails = [True]

    def once(ensure: Any, keys: Any) -> Any:
        if fails and threading.current_thread().name == "singlejob-poll":
            fails.clear()
            raise StoreError("ensure: as the test wants it")
        return ensure(keys)

    store.around["ensure"] = once
    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("often", lambda: ran.append(1), trigger="interval", hours=1)
        one.start()
        wait_until(lambda: ran, "the request is served")
        assert not fails
        wait_until(lambda: not store.docs("request"), "the request is taken")


def test_a_request_for_a_job_that_is_defined_a_moment_later_is_served(
    store: TroubledStore, tmp_path: Path
) -> None:
    ran: list[int] = []
    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("other", lambda: None, trigger="interval", hours=1)
        one.start()
        polls = store.calls.count("poll")
        store.put("request", "r1", {"job_id": "late", "by": "test"})
        wait_until(lambda: store.calls.count("poll") > polls + 2, "the owner has seen the request")
        one.jobs.add_job("late", lambda: ran.append(1), trigger="interval", hours=1)
        wait_until(lambda: ran, "the request is served")


def test_a_term_whose_scheduler_cannot_start_leaves_nothing_behind(
    store: TroubledStore, tmp_path: Path
) -> None:
    tries: list[int] = []

    class Unlucky(OwnerScheduler):
        def begin(self, step: Any) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise RuntimeError("can't start new thread")
            super().begin(step)

    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("often", lambda: None, trigger="interval", hours=1)
        one.jobs.init_app(one.app)
        one.engine.new_scheduler = lambda: _with_actions(Unlucky(), one.engine.api)  # type: ignore[method-assign]
        before = _pollers()
        one.jobs.start(force=True)
        wait_until(lambda: one.engine.term is not None and one.engine.term.loaded, "the third try")
        wait_until(lambda: len(_pollers() - before) == 1, "one poller")
    wait_until(lambda: not _pollers() - before, "none is left")


def _with_actions(scheduler: OwnerScheduler, actions: Any) -> OwnerScheduler:
    scheduler.actions = actions
    return scheduler


def _pollers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "singlejob-poll"}


def test_what_is_told_of_a_short_term_is_told_in_order(store: TroubledStore, tmp_path: Path) -> None:
    told: list[str] = []
    store.away = True
    with hosts_on(store, tmp_path) as host:
        one = host("one")
        one.jobs.add_job("often", lambda: None, trigger="interval", hours=1)
        one.jobs.init_app(one.app)
        one.jobs.add_listener(lambda event: told.append("started"), EVENT_SCHEDULER_STARTED)
        one.jobs.add_listener(lambda event: told.append("shut down"), EVENT_SCHEDULER_SHUTDOWN)

        def elected(sender: Any, **extra: Any) -> None:
            told.append("elected")

        def resigned(sender: Any, **extra: Any) -> None:
            told.append("resigned")

        with owner_elected.connected_to(elected, one.app), owner_resigned.connected_to(resigned, one.app):
            one.jobs.start(force=True)
            wait_until(lambda: one.engine.term is not None, "the term begins")
            began = time.monotonic()
            one.jobs.shutdown(wait=False)
            wait_until(lambda: "resigned" in told, "all is told")
            assert time.monotonic() - began < 20
    assert told == ["started", "elected", "shut down", "resigned"]


def test_a_logging_config_that_disables_what_is_there_does_not_silence_the_owner(
    store: TroubledStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loggers = [logging.getLogger(f"flask_singlejob{name}") for name in ("", ".engine", ".election.campaign")]
    for logger in loggers:
        logger.disabled = True  # as dictConfig does
    caplog.set_level(logging.INFO)
    with hosts_on(store, tmp_path) as host:
        host("one").start()
        wait_until(lambda: "owns the schedule of host one" in caplog.text, "the owner says so")
    assert not any(logger.disabled for logger in loggers)


def test_health_tells_of_an_owner_that_cannot_write_from_any_process(
    store: TroubledStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_singlejob.status.SILENT_OWNER_SECONDS", 1.0)
    with hosts_on(store, tmp_path) as host:
        one = host("one", SINGLEJOB_LEASE=3)  # beats each second
        one.jobs.add_job("often", lambda: None, trigger="interval", hours=1)
        one.start()
        wait_until(lambda: store.docs("host"), "the owner told of itself")
        assert one.jobs.health("jobs").ok
        store.failing |= WRITES
        # Another process of the host: it reads the store, and asks the kernel who owns.
        other = host("one")
        other.jobs.init_app(other.app)

        def told() -> bool:
            return any("told the store nothing" in reason for reason in other.jobs.health("jobs").reasons)

        wait_until(told, "the owner's silence is told")
        store.failing.clear()
        wait_until(lambda: other.jobs.health("jobs").ok, "all is well again")
