"""Prometheus metrics of the cluster, found at each scrape in the store: any worker gives the same.

Owns names, labels and their bounds. Keeps nothing in the process, so nothing is counted twice when a host
is scraped through its load balancer, and needs no multi-process directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Flask, Response, request

from ..clock import steady_seconds
from ..errors import ConfigError, StoreError
from ..hosts import host_dict, living_hosts
from ..records import RunStatus
from ..status import overdue, store_trouble
from .asking import SharedAsk
from .tally import MAX_JOBS, OTHER, Tally, tally_of

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["collect", "register_metrics"]

logger = logging.getLogger(__name__)

#: A scrape waits so long for the store, seconds; Prometheus gives ten by default.
ANSWER_SECONDS = 3.0
RAN = (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.LOST)
NOT_RUN = (RunStatus.SKIPPED, RunStatus.MISSED)


@dataclass(frozen=True)
class JobState:
    """What the gauges of one job say. Instants are seconds since 1970."""

    id: str
    last_success: float | None
    next_tick: float | None
    running: bool
    paused: bool
    broken: bool
    overdue_seconds: float


@dataclass(frozen=True)
class Findings:
    """What one look at the store gives."""

    now: float
    round_trip: float
    paused: bool
    hosts: list[dict[str, Any]]
    jobs: list[JobState]
    tally: Tally


def look(engine: Engine) -> Findings:
    """Return what the store says.

    :raises StoreError: when it does not answer.
    """
    store = engine.ready_store()
    began = steady_seconds()
    store.poll()
    round_trip = steady_seconds() - began
    jobs, now = engine.manager.jobs()
    rows = engine.manager.rows(jobs)
    docs = store.docs("host")
    living = living_hosts(docs, now)
    states = []
    for job in jobs:
        row = rows.get(job.id)
        success = None if row is None else row.last_success
        tick = engine.manager.next_run_time(job, row, now)
        states.append(
            JobState(
                id=job.id,
                last_success=None if success is None else success / 1000,
                next_tick=None if tick is None else tick.timestamp(),
                running=row is not None and row.holder is not None,
                paused=job.paused,
                broken=job.broken is not None,
                overdue_seconds=overdue(job, row, now, engine.settings.lease) or 0.0,
            )
        )
    hosts = [{**host_dict(doc, living=doc in living), "body": doc.body} for doc in docs]
    return Findings(
        now / 1000, round_trip, engine.catalog.cluster_paused, hosts, states, tally_of(store, now)
    )


def bounded(jobs: list[JobState]) -> list[JobState]:
    """Return the jobs with a label of their own, and one that stands for the worst of the rest."""
    ordered = sorted(jobs, key=lambda job: job.id)
    own, rest = ordered[:MAX_JOBS], ordered[MAX_JOBS:]
    if not rest:
        return own
    successes = [job.last_success for job in rest if job.last_success is not None]
    ticks = [job.next_tick for job in rest if job.next_tick is not None]
    other = JobState(
        id=OTHER,
        last_success=min(successes, default=None),
        next_tick=min(ticks, default=None),
        running=any(job.running for job in rest),
        paused=any(job.paused for job in rest),
        broken=any(job.broken for job in rest),
        overdue_seconds=max(job.overdue_seconds for job in rest),
    )
    return [*(job for job in own if job.id != OTHER), other]


def collect(engine: Engine, found: Findings | None) -> Iterator[Any]:
    """Yield the metric families.

    :param found: None when the store did not answer.
    """
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    from .. import __version__

    info = InfoMetricFamily("singlejob", "The version that answers and the cluster it belongs to.")
    info.add_metric([], {"version": __version__, "cluster": engine.settings.cluster})
    yield info
    yield GaugeMetricFamily(
        "singlejob_up",
        "1 when the store answered this scrape. All else is missing when it did not.",
        found is not None,
    )
    if found is None:
        return
    yield GaugeMetricFamily(
        "singlejob_store_round_trip_seconds",
        "How long the store took to answer the worker that was scraped.",
        found.round_trip,
    )
    yield GaugeMetricFamily("singlejob_cluster_paused", "1 while the whole cluster is paused.", found.paused)
    yield GaugeMetricFamily("singlejob_jobs", "How many jobs the cluster has.", len(found.jobs))
    yield from _of_hosts(found)
    yield from _of_jobs(found)
    yield from _of_runs(found.tally)


def _of_hosts(found: Findings) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily(
        "singlejob_hosts", "How many hosts have a living owner.", sum(host["living"] for host in found.hosts)
    )
    owner = GaugeMetricFamily("singlejob_is_owner", "1 while the host has a living owner.", labels=["host"])
    since = GaugeMetricFamily(
        "singlejob_owner_since_timestamp_seconds", "When the host's owner was elected.", labels=["host"]
    )
    offset = GaugeMetricFamily(
        "singlejob_clock_offset_seconds", "How far the host's clock is ahead of the store's.", labels=["host"]
    )
    elections = CounterMetricFamily(
        "singlejob_elections",
        "How often an owner was elected on the host: each after the first is a failover or a restart.",
        labels=["host"],
    )
    renewals = CounterMetricFamily(
        "singlejob_lease_renewals_failed",
        "Renewals of leases that failed in the host's owner; begins anew with each owner.",
        labels=["host"],
    )
    for host in _one_per_name(found.hosts):
        name, body = str(host["host"]), host["body"]
        owner.add_metric([name], host["owner"] is not None)
        if host["owner"] is not None and host["owner"]["since"]:
            since.add_metric([name], datetime.fromisoformat(host["owner"]["since"]).timestamp())
        if host["living"] and host["clock_offset"] is not None:
            offset.add_metric([name], host["clock_offset"])
        if "elections" in body:
            elections.add_metric([name], body["elections"])
        if "renewals_failed" in body:
            renewals.add_metric([name], body["renewals_failed"])
    yield from (owner, since, offset, elections, renewals)


def _one_per_name(hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the hosts, of those with one id only the one that told of itself last: labels must differ."""
    newest: dict[str, dict[str, Any]] = {}
    for host in sorted(hosts, key=lambda host: (host["living"], host["seen"])):
        newest[str(host["host"])] = host
    return [newest[name] for name in sorted(newest)][:MAX_JOBS]


def _of_jobs(found: Findings) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    def family(name: str, text: str) -> Any:
        return GaugeMetricFamily(f"singlejob_{name}", text, labels=["job"])

    success = family("last_success_timestamp_seconds", "When a run of the job last succeeded.")
    age = family("last_success_age_seconds", "How long ago a run of the job last succeeded.")
    tick = family("next_tick_timestamp_seconds", "When the job is due next.")
    running = family("job_running", "1 while a run of the job is going on.")
    paused = family("job_paused", "1 while the job is paused.")
    broken = family("job_broken", "1 when the job cannot run in the process that was scraped.")
    late = family(
        "job_overdue_seconds",
        "For how long the job's last success has been older than it should be; 0 when it is not.",
    )
    for job in bounded(found.jobs):
        if job.last_success is not None:
            success.add_metric([job.id], job.last_success)
            age.add_metric([job.id], max(0.0, found.now - job.last_success))
        if job.next_tick is not None:
            tick.add_metric([job.id], job.next_tick)
        running.add_metric([job.id], job.running)
        paused.add_metric([job.id], job.paused)
        broken.add_metric([job.id], job.broken)
        late.add_metric([job.id], job.overdue_seconds)
    yield from (success, age, tick, running, paused, broken, late)


def _of_runs(tally: Tally) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    runs = CounterMetricFamily(
        "singlejob_runs", "Runs that ended, by how they ended.", labels=["job", "status"]
    )
    lost = CounterMetricFamily(
        "singlejob_runs_lost", "Runs whose process did not end them, by reason.", labels=["reason"]
    )
    not_run = CounterMetricFamily(
        "singlejob_ticks_not_run",
        "Ticks that were skipped or missed, by reason.",
        labels=["job", "status", "reason"],
    )
    durations = HistogramMetricFamily(
        "singlejob_run_duration_seconds", "How long runs took that succeeded or failed.", labels=["job"]
    )
    lost_by_reason: dict[str, int] = {}
    for name, job in sorted(tally.jobs.items()):
        for status in RAN:
            runs.add_metric([name, status.value], job.numbers.get(status.value, 0))
        durations.add_metric([name], buckets=job.durations.cumulative(), sum_value=job.durations.total)
        for key, number in sorted(job.numbers.items()):
            status_name, colon, reason = key.partition(":")
            if not colon:
                continue
            if status_name == RunStatus.LOST.value:
                lost_by_reason[reason] = lost_by_reason.get(reason, 0) + number
            elif status_name in {status.value for status in NOT_RUN}:
                not_run.add_metric([name, status_name, reason], number)
    for reason, number in sorted(lost_by_reason.items()):
        lost.add_metric([reason], number)
    lag = HistogramMetricFamily(
        "singlejob_start_lag_seconds",
        "How long after their tick runs by schedule started.",
        buckets=tally.lag.cumulative(),
        sum_value=tally.lag.total,
    )
    yield from (runs, lost, not_run, durations, lag)


def register_metrics(app: Flask, engine: Engine, extension: Any) -> None:
    """Add the scrape route to the app.

    :param extension: not needed here; every part that is served over HTTP is given it.
    :raises ConfigError: when prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise ConfigError(
            f"SINGLEJOB_METRICS_PATH is {engine.settings.metrics_path!r} and prometheus-client is not installed. "
            'Cure: pip install "flask-singlejob[metrics]"'
        ) from error
    ask = SharedAsk(lambda: look(engine), seconds=ANSWER_SECONDS)

    class _Collector:
        def __init__(self, found: Findings | None) -> None:
            self._found = found

        def collect(self) -> Iterator[Any]:
            return collect(engine, self._found)

    blueprint = Blueprint("singlejob_metrics", __name__)

    @blueprint.get(engine.settings.metrics_path or "/metrics")
    def metrics() -> Response:
        found: Findings | None
        try:
            found = ask()
        except StoreError as error:
            logger.debug("a scrape finds the store away: %s", error)
            found = None
        except Exception:
            trouble = store_trouble(engine)
            if trouble is None:
                raise
            logger.debug("a scrape finds that the store cannot be asked: %s", trouble)
            found = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(found))
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(registry), content_type=content_type, headers={"Cache-Control": "no-store"})

    app.register_blueprint(blueprint)
