"""What each page shows, read from the store in few and bounded steps however long the history is.

Knows no request and no template: plain functions of an engine and of what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..catalog import EffectiveJob
from ..claims import held_run
from ..hosts import host_dict, living_hosts
from ..records import ClaimRow, Run, RunStatus, from_ms, to_ms
from ..status import find_run, health, lock_dict, once_dict, overdue, runs, warnings_of
from .charts import duration_chart, history_of
from .jobview import JobView, completed, job_view, settings_of
from .timeline import SPANS, timeline_of

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = [
    "JobGone",
    "RunGone",
    "job_page",
    "jobs_page",
    "locks_page",
    "overview",
    "run_page",
    "runs_page",
    "timeline",
]

#: Jobs on one page, and records on one.
JOBS_PER_PAGE = 25
RUNS_PER_PAGE = 50
RUNS_OF_JOB = 25
#: Success rate and percentiles are of so many last records of a job.
SAMPLE = 50
#: A timeline reads at most so many records.
TIMELINE_RUNS = 2000
TROUBLE = (RunStatus.FAILED, RunStatus.LOST, RunStatus.MISSED, RunStatus.SKIPPED)
STATES = ("all", "running", "paused", "failing", "overdue", "broken")
SORTS = ("id", "next", "last")


class JobGone(Exception):
    """There is no job of that id."""


class RunGone(Exception):
    """There is no run of that id (any more)."""


@dataclass(frozen=True)
class Seen:
    """One look at the cluster's jobs.

    :param now: the store's clock, UTC milliseconds.
    :param held: every held row.
    """

    now: int
    jobs: list[EffectiveJob]
    rows: dict[str, ClaimRow]
    held: tuple[ClaimRow, ...]

    @property
    def moment(self) -> datetime:
        return from_ms(self.now)

    def going(self, job_id: str | None = None) -> list[Run]:
        """Return the runs that are going on, newest first."""
        found = [
            held_run(row)
            for row in self.held
            if row.key.kind == "job" and (job_id is None or row.key.name == job_id)
        ]
        return sorted(found, key=lambda run: (run.at_ms, run.id), reverse=True)


def see(engine: Engine) -> Seen:
    """Return the cluster's jobs with their rows.

    :raises StoreError: when the store does not answer.
    """
    jobs, now = engine.manager.jobs()
    return Seen(now, jobs, engine.manager.rows(jobs), engine.store.poll().held)


def views_of(engine: Engine, seen: Seen, jobs: Sequence[EffectiveJob]) -> list[JobView]:
    """Return jobs as the page shows them."""
    going: dict[str, list[Run]] = {}
    for run in seen.going():
        going.setdefault(run.job_id, []).append(run)
    found = []
    for job in jobs:
        row = seen.rows.get(job.id)
        found.append(
            job_view(
                job,
                row,
                next_tick=engine.manager.next_run_time(job, row, seen.now),
                going=tuple(going.get(job.id, ())),
                overdue_seconds=overdue(job, row, seen.now, engine.settings.lease),
                cluster_paused=engine.catalog.cluster_paused,
            )
        )
    return found


def _next_ticks(engine: Engine, seen: Seen, jobs: Sequence[EffectiveJob], until: int) -> dict[str, list[int]]:
    """Return what is due until an instant, a few ticks of each job."""
    found: dict[str, list[int]] = {}
    for job in jobs:
        if job.definition.scope == "worker":
            continue
        first = engine.manager.next_run_time(job, seen.rows.get(job.id), seen.now)
        ticks: list[int] = []
        tick = None if first is None else to_ms(first)
        while tick is not None and tick <= until and len(ticks) < 6:
            ticks.append(tick)
            tick = job.next_tick(tick)
        if ticks:
            found[job.id] = ticks
    return found


def _timeline(
    engine: Engine, seen: Seen, jobs: Sequence[EffectiveJob], *, span: str, query: str, max_lanes: int
) -> dict[str, Any]:
    seconds = SPANS[span]
    since = from_ms(seen.now) - timedelta(seconds=seconds)
    found = engine.store.runs(since=to_ms(since), limit=TIMELINE_RUNS)
    cut = len(found) == TIMELINE_RUNS
    known = {run.id for run in found}
    found = [*(run for run in seen.going() if run.id not in known), *found]
    if query:
        found = [run for run in found if query in run.job_id.lower()]
    ticks = _next_ticks(engine, seen, jobs, seen.now + seconds * 200)
    picture = timeline_of(found, ticks, now=seen.now, span_seconds=seconds, max_lanes=max_lanes)
    return {"picture": picture, "cut": cut, "oldest": found[-1] if cut and found else None, "found": found}


def hosts_of(engine: Engine, now: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the hosts, living ones first, and the warnings of the cluster."""
    docs = engine.store.docs("host")
    living = living_hosts(docs, now)
    hosts = [_with_workers(host_dict(doc, living=doc in living)) for doc in docs]
    hosts.sort(key=lambda host: (not host["living"], str(host["host"])))
    return hosts, warnings_of(engine, docs, now)


def _with_workers(host: dict[str, Any]) -> dict[str, Any]:
    """Return a host with the number of its workers, however its owner tells of them."""
    workers = host.get("workers")
    return {**host, "workers": len(workers) if isinstance(workers, list) else workers}


def overview(engine: Engine) -> dict[str, Any]:
    """Return what the first page shows."""
    seen = see(engine)
    hosts, warnings = hosts_of(engine, seen.now)
    views = views_of(engine, seen, seen.jobs)
    found = health(engine, "jobs")
    since = seen.moment - timedelta(days=1)
    trouble = engine.store.runs(status=TROUBLE, since=to_ms(since), limit=10)
    once = [once_dict(row) for row in engine.store.rows(kind="once")]
    once.sort(key=lambda task: (task["done"], str(task["key"])))
    return {
        "now": seen.moment,
        "hosts": hosts,
        "living": sum(host["living"] for host in hosts),
        "warnings": [text for text in warnings if text not in found.reasons],
        "reasons": list(found.reasons),
        "counts": {
            "jobs": len(views),
            "running": len(seen.going()),
            "paused": sum(view.paused for view in views),
            "failing": sum(view.failing for view in views),
            "broken": sum(view.broken is not None for view in views),
        },
        "going": seen.going()[:20],
        "trouble": trouble,
        "once": once[:30],
        "paused": engine.catalog.cluster_paused,
        "coming": sorted(
            (view for view in views if view.next_tick), key=lambda view: (view.next_tick, view.id)
        )[:8],
        **_timeline(engine, seen, seen.jobs, span="15m", query="", max_lanes=12),
        "span": "15m",
    }


def timeline(engine: Engine, *, span: str, query: str) -> dict[str, Any]:
    """Return the large timeline."""
    seen = see(engine)
    wanted = query.strip().lower()
    jobs = [job for job in seen.jobs if wanted in job.id.lower()]
    return {
        "now": seen.moment,
        "span": span,
        "spans": list(SPANS),
        "query": query,
        **_timeline(engine, seen, jobs, span=span, query=wanted, max_lanes=60),
    }


def _matches(view: JobView, words: Sequence[str], state: str) -> bool:
    text = f"{view.id}\n{view.name}\n{view.trigger}\n{view.scope}\n{view.group}".lower()
    if not all(word in text for word in words):
        return False
    return {
        "all": True,
        "running": bool(view.going),
        "paused": view.paused,
        "failing": view.failing,
        "overdue": view.overdue is not None,
        "broken": view.broken is not None,
    }[state]


def jobs_page(engine: Engine, *, query: str, state: str, sort: str, page: int) -> dict[str, Any]:
    """Return one page of the jobs that fit a search.

    :param page: from 1; beyond the last it is the last.
    """
    seen = see(engine)
    words = query.lower().split()
    fitting = [view for view in views_of(engine, seen, seen.jobs) if _matches(view, words, state)]
    far = to_ms(seen.moment + timedelta(days=365_000))
    if sort == "next":
        fitting.sort(key=lambda view: (to_ms(view.next_tick) if view.next_tick else far, view.id))
    elif sort == "last":
        fitting.sort(key=lambda view: (-(view.last_run.at_ms if view.last_run else 0), view.id))
    else:
        fitting.sort(key=lambda view: (view.id.lower(), view.id))
    pages = max(1, -(-len(fitting) // JOBS_PER_PAGE))
    page = min(max(1, page), pages)
    chosen = fitting[(page - 1) * JOBS_PER_PAGE : page * JOBS_PER_PAGE]
    last = {view.id: _last_runs(engine, view, SAMPLE) for view in chosen}
    chosen = [completed(view, last[view.id]) for view in chosen]
    histories = {view.id: history_of(last[view.id], seen.moment) for view in chosen}
    return {
        "now": seen.moment,
        "jobs": chosen,
        "histories": histories,
        "total": len(seen.jobs),
        "fitting": len(fitting),
        "query": query,
        "state": state,
        "states": STATES,
        "sort": sort,
        "page": page,
        "pages": pages,
        "first": (page - 1) * JOBS_PER_PAGE + 1,
    }


def _last_runs(engine: Engine, view: JobView, limit: int) -> list[Run]:
    ended = engine.store.runs(view.id, limit=limit)
    known = {run.id for run in ended}
    return [*(run for run in view.going if run.id not in known), *ended]


def _requests(engine: Engine, job_id: str) -> list[Mapping[str, Any]]:
    """Return the runs by hand that no owner has taken yet."""
    return [doc.body for doc in engine.store.docs("request") if doc.body.get("job_id") == job_id]


def job_page(engine: Engine, job_id: str, *, before: tuple[int, str] | None) -> dict[str, Any]:
    """Return one job.

    :raises JobGone: when there is none of that id.
    """
    seen = see(engine)
    job = next((job for job in seen.jobs if job.id == job_id), None)
    if job is None:
        raise JobGone(job_id)
    view = views_of(engine, seen, [job])[0]
    last = _last_runs(engine, view, 120)
    view = completed(view, last)
    found = runs(engine, job_id, limit=RUNS_OF_JOB + 1, before=before) if before else last[: RUNS_OF_JOB + 1]
    coming: list[datetime] = []
    tick = None if view.next_tick is None else to_ms(view.next_tick)
    while tick is not None and len(coming) < 5:
        coming.append(from_ms(tick))
        tick = job.next_tick(tick)
    return {
        "now": seen.moment,
        "job": view,
        "history": history_of(last[:SAMPLE], seen.moment),
        "chart": duration_chart(last, seen.moment),
        "settings": settings_of(job, engine.settings.lease),
        "coming": coming,
        "requests": [
            {"at": from_ms(int(body["at"])), "by": body.get("by")} for body in _requests(engine, job_id)
        ],
        "not_run": engine.store.runs(job_id, status=(RunStatus.SKIPPED, RunStatus.MISSED), limit=10),
        "runs": found[:RUNS_OF_JOB],
        "older": _place(found, RUNS_OF_JOB),
        "newer": before is not None,
    }


def _place(found: Sequence[Run], size: int) -> str | None:
    """Return where the next page begins, or None when there is none."""
    if len(found) <= size:
        return None
    last = found[size - 1]
    return f"{last.at_ms}.{last.id}"


def runs_page(engine: Engine, *, job_id: str, status: str, before: tuple[int, str] | None) -> dict[str, Any]:
    """Return one page of the history of all jobs, or of one."""
    found = runs(engine, job_id or None, status=status or None, limit=RUNS_PER_PAGE + 1, before=before)
    return {
        "now": from_ms(engine.sync_clock()),
        "runs": found[:RUNS_PER_PAGE],
        "older": _place(found, RUNS_PER_PAGE),
        "newer": before is not None,
        "job_id": job_id,
        "status": status,
        "statuses": [entry.value for entry in RunStatus],
    }


def run_page(engine: Engine, run_id: str) -> dict[str, Any]:
    """Return one run.

    :raises RunGone: when it is not known.
    """
    run = find_run(engine, run_id)
    if run is None:
        raise RunGone(run_id)
    now = from_ms(engine.sync_clock())
    lag = None
    if run.started_at is not None and run.cause == "schedule":
        lag = (run.started_at - (run.last_scheduled_at or run.scheduled_at)).total_seconds()
    held = None
    if run.status is RunStatus.RUNNING:
        held = next((lock_dict(row) for row in engine.store.poll().held if row.holder == run_id), None)
    return {"now": now, "run": run, "lag": lag, "held": held}


def locks_page(engine: Engine) -> dict[str, Any]:
    """Return what is held."""
    poll = engine.ready_store().poll()
    rows = sorted(poll.held, key=lambda row: (row.key.kind, row.key.name, row.key.host, row.key.slot))
    return {"now": from_ms(poll.now), "locks": [lock_dict(row) for row in rows[:500]], "count": len(rows)}
