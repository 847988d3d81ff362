"""Metrics: right values from any worker, counters that only grow over pruning, bounded labels, a quick answer."""

from __future__ import annotations

import builtins
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families

from flask_singlejob import ConfigError, Run, RunStatus
from flask_singlejob.records import from_ms, to_ms
from flask_singlejob.stores.base import Store
from flask_singlejob.web import tally as tally_module
from flask_singlejob.web.tally import MAX_JOBS, OTHER, SETTLE_MS, Spread, Tally, tally_of
from tests.unit.web_kit import HOSTILE, ended, engine_for, make_app, take_store_away

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(app: Flask) -> Samples:
    """Return the samples of one scrape, read by the client's own parser."""
    answer = app.test_client().get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def metered(**config: Any) -> Flask:
    return make_app(SINGLEJOB_METRICS_PATH="/metrics", **config)


def store_of(app: Flask) -> Store:
    return engine_for(app).ready_store()


def test_runs_are_counted_by_job_and_status() -> None:
    app = metered()
    scrape(app)
    for run in (
        ended("nightly"),
        ended("nightly", duration=2.0),
        ended("nightly", RunStatus.FAILED, error="x"),
        ended("nightly", RunStatus.LOST, reason="process_died", duration=None),
        ended("nightly", RunStatus.SKIPPED, reason="held", count=3, stood_for=3),
        ended("bad", RunStatus.MISSED, reason="no_owner"),
    ):
        store_of(app).add_run(run)
    samples = scrape(app)
    assert value(samples, "singlejob_runs_total", job="nightly", status="succeeded") == 2
    assert value(samples, "singlejob_runs_total", job="nightly", status="failed") == 1
    assert value(samples, "singlejob_runs_total", job="nightly", status="lost") == 1
    assert value(samples, "singlejob_runs_lost_total", reason="process_died") == 1
    assert (
        value(samples, "singlejob_ticks_not_run_total", job="nightly", status="skipped", reason="held") == 3
    )
    assert value(samples, "singlejob_ticks_not_run_total", job="bad", status="missed", reason="no_owner") == 1
    assert value(samples, "singlejob_run_duration_seconds_count", job="nightly") == 3
    assert value(samples, "singlejob_run_duration_seconds_sum", job="nightly") == 4.0
    assert value(samples, "singlejob_run_duration_seconds_bucket", job="nightly", le="1.0") == 2
    # Started a quarter of a second after their ticks.
    assert value(samples, "singlejob_start_lag_seconds_bucket", le="0.25") == 4
    assert value(samples, "singlejob_start_lag_seconds_bucket", le="0.1") == 0


def test_two_workers_of_one_store_give_the_same(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    first, second = metered(SINGLEJOB_STORE=url), metered(SINGLEJOB_STORE=url)
    scrape(first)
    for number in range(5):
        store_of(first if number % 2 else second).add_run(ended("nightly"))
    counted = {
        value(scrape(app), "singlejob_runs_total", job="nightly", status="succeeded")
        for app in (first, second, first, second)
    }
    assert counted == {5.0}


def test_gauges_tell_of_jobs_and_hosts() -> None:
    app = metered()
    engine = engine_for(app)
    now = engine.sync_clock()
    engine.manager.pause("bad")
    body = {"host": "h1", "pid": 7, "beat_ms": 10_000, "offset_ms": 250, "elections": 3, "renewals_failed": 2}
    engine.store.put("host", "h1@x", {**body, "owner_since": "2026-01-02T03:04:05+00:00"}, quiet=True)
    engine.store.put("host", "h2@x", {**body, "host": "h2", "left": True}, quiet=True)
    with app.app_context():
        assert engine.manager.run("nightly") is not None
    samples = scrape(app)
    assert value(samples, "singlejob_up") == 1
    assert value(samples, "singlejob_hosts") == 1
    assert value(samples, "singlejob_is_owner", host="h1") == 1
    assert value(samples, "singlejob_is_owner", host="h2") == 0
    assert value(samples, "singlejob_clock_offset_seconds", host="h1") == 0.25
    assert value(samples, "singlejob_clock_offset_seconds", host="h2") is None
    assert value(samples, "singlejob_elections_total", host="h1") == 3
    assert value(samples, "singlejob_lease_renewals_failed_total", host="h1") == 2
    assert value(samples, "singlejob_job_paused", job="bad") == 1
    assert value(samples, "singlejob_job_paused", job="nightly") == 0
    age = value(samples, "singlejob_last_success_age_seconds", job="nightly")
    assert age is not None
    assert 0 <= age < 60
    tick = value(samples, "singlejob_next_tick_timestamp_seconds", job="nightly")
    assert tick is not None
    assert now / 1000 < tick < now / 1000 + 90_000
    assert value(samples, "singlejob_next_tick_timestamp_seconds", job="bad") is None
    assert (value(samples, "singlejob_store_round_trip_seconds") or 0) > 0
    assert value(samples, "singlejob_job_paused", job=HOSTILE) == 0


def test_store_that_is_away_gives_up_0_and_nothing_else_of_it() -> None:
    app = metered()
    take_store_away(app)
    samples = scrape(app)
    assert value(samples, "singlejob_up") == 0
    assert {name for name, _ in samples} == {"singlejob_up", "singlejob_info"}


def test_hanging_store_is_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_singlejob.web.metrics.ANSWER_SECONDS", 0.2)
    app = metered()
    release = threading.Event()
    take_store_away(app, wait=release)
    began = time.monotonic()
    try:
        assert value(scrape(app), "singlejob_up") == 0
        assert time.monotonic() - began < 15
    finally:
        release.set()


def test_missing_client_library_is_a_config_error_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r'pip install "flask-singlejob\[metrics\]"'):
        metered()


def test_openmetrics_is_given_to_who_asks_for_it() -> None:
    answer = (
        metered()
        .test_client()
        .get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    )
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.text.rstrip().endswith("# EOF")


# -- counters that only grow ------------------------------------------------------------------------------


def moved(run: Run, ms: int) -> Run:
    """Return the record as if it had ended at another instant."""
    return replace(run, finished_at=from_ms(ms))


def succeeded(counts: Tally, job: str = "nightly") -> int:
    return counts.jobs[job].numbers.get("succeeded", 0) if job in counts.jobs else 0


def test_counts_outlive_pruning() -> None:
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    for _ in range(4):
        store.add_run(ended("nightly", ago=1))
    assert succeeded(tally_of(store, now)) == 4
    later = now + 10 * SETTLE_MS
    assert succeeded(tally_of(store, later)) == 4
    assert store.prune(before=later, keep=1000) == 4
    assert succeeded(tally_of(store, later)) == 4
    store.add_run(moved(ended("nightly"), later + 5))
    assert succeeded(tally_of(store, later + 10)) == 5


def test_counts_are_the_same_before_and_after_the_document_is_written_again() -> None:
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    for step in range(400):
        store.add_run(moved(ended("nightly", duration=0.5), now + step * 1000))
        seen = tally_of(store, now + step * 1000 + 1)
        assert succeeded(seen) == step + 1
        assert seen.jobs["nightly"].durations.total == pytest.approx((step + 1) * 0.5)


def test_growing_record_of_skips_is_counted_by_what_it_grew() -> None:
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    record = ended("nightly", RunStatus.SKIPPED, reason="held", count=0)
    for count in range(1, 300):
        at = now + count * 2000
        # A store keeps one record per id: what is added again stands in place of the former.
        store.add_run(moved(replace(record, count=count), at))
        numbers = tally_of(store, at + 1).jobs["nightly"].numbers
        assert numbers == {"skipped": count, "skipped:held": count}


def test_record_that_grows_after_it_was_written_down_is_counted_by_what_it_grew() -> None:
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    record = ended("nightly", RunStatus.SKIPPED, reason="held")
    store.add_run(moved(replace(record, count=5), now))
    later = now + 10 * SETTLE_MS
    assert tally_of(store, later).jobs["nightly"].numbers["skipped"] == 5
    store.add_run(moved(replace(record, count=8), later))
    assert tally_of(store, later + 1).jobs["nightly"].numbers["skipped"] == 8


def test_record_that_reaches_the_store_a_little_late_is_counted() -> None:
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    later = now + 10 * SETTLE_MS
    store.add_run(moved(ended("nightly"), later - 1))
    assert succeeded(tally_of(store, later)) == 1
    store.add_run(moved(ended("nightly"), later - SETTLE_MS // 2))
    assert succeeded(tally_of(store, later + 1)) == 2


def test_slow_look_never_writes_over_what_a_later_one_wrote() -> None:
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    store.add_run(moved(ended("nightly"), now + SETTLE_MS))
    later = now + 20 * SETTLE_MS
    real = store.put

    def overtaken(*arguments: Any, **named: Any) -> Any:
        store.put = real  # type: ignore[method-assign]
        tally_of(store, later)
        assert store.prune(before=later, keep=1000) == 1
        return real(*arguments, **named)

    store.put = overtaken  # type: ignore[method-assign]
    # It looked so early that the run was not settled yet, and writes when the run is pruned already.
    tally_of(store, now + 2 * SETTLE_MS - 1)
    assert succeeded(tally_of(store, later)) == 1


def test_two_looks_at_once_never_take_a_count_back() -> None:
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    for _ in range(50):
        store.add_run(ended("nightly"))
    seen: list[int] = []

    def look() -> None:
        for step in range(10):
            seen.append(succeeded(tally_of(store, now + step * SETTLE_MS)))

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join(30)
    assert seen == [50] * 40


def test_counting_goes_on_after_more_runs_than_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "PAGE", 10)
    monkeypatch.setattr(tally_module, "MAX_PAGES", 2)
    store = store_of(metered())
    now = store.poll().now
    tally_of(store, now)
    store.add_run(ended("nightly"))
    assert succeeded(tally_of(store, now)) == 1
    later = now + 10 * SETTLE_MS
    tally_of(store, later)
    for number in range(40):
        store.add_run(moved(ended("nightly"), later + number))
    much_later = later + 10 * SETTLE_MS
    assert succeeded(tally_of(store, much_later)) == 1
    store.add_run(moved(ended("nightly"), much_later + 1))
    assert succeeded(tally_of(store, much_later + 2)) == 2


def test_jobs_beyond_the_bound_are_counted_together() -> None:
    counts = Tally((0, ""))
    counts.add(ended(f"job {number}") for number in range(MAX_JOBS + 50))
    assert len(counts.jobs) == MAX_JOBS + 1
    assert counts.jobs[OTHER].numbers == {"succeeded": 50}
    counts.add([ended("job 3")])
    assert counts.jobs["job 3"].numbers == {"succeeded": 2}


def nothing() -> None:
    """Do nothing, as a job."""


def test_labels_of_gauges_are_bounded_too() -> None:
    app = metered()
    engine = engine_for(app)
    for number in range(MAX_JOBS + 20):
        engine.api.add_job(f"extra {number:04}", nothing, trigger="interval", seconds=60, persist=False)
    jobs = {dict(labels)["job"] for name, labels in scrape(app) if name == "singlejob_job_paused"}
    assert len(jobs) == MAX_JOBS + 1
    assert OTHER in jobs


def test_counts_survive_their_form_in_the_store() -> None:
    counts = Tally((0, ""))
    counts.add(
        [ended("a"), ended("b", RunStatus.MISSED, reason="late", count=2), ended("a", RunStatus.FAILED)]
    )
    again = Tally.from_body(counts.to_body())
    assert again.to_body() == counts.to_body()
    assert again.upto == counts.upto


def test_values_on_a_bound_belong_to_its_bucket() -> None:
    spread = Spread((1.0, 5.0))
    for number in (0.5, 1.0, 5.0, 6.0):
        spread.add(number)
    assert spread.cumulative() == [("1.0", 2.0), ("5.0", 3.0), ("+Inf", 4.0)]
    assert spread.total == 12.5


def test_records_sort_as_the_history_does() -> None:
    run = ended("a")
    assert run.finished_at is not None
    assert run.at_ms == to_ms(run.finished_at)
