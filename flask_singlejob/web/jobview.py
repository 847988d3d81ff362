"""One job as the page shows it: its state, its trigger in words, its settings as a list.

Owns wording and nothing else. Knows no store and no request.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ..catalog import EffectiveJob
from ..definitions import Definition
from ..records import ClaimRow, Run, RunStatus, from_ms
from .show import seconds_text, shortened

__all__ = ["JobView", "completed", "job_view", "settings_of"]


@dataclass(frozen=True)
class JobView:
    """One job.

    :param trigger: in words; ``syntax`` is APScheduler's own.
    :param paused: by itself or with the whole cluster.
    :param overdue: for how many seconds its last success has been older than it should be, or None.
    """

    id: str
    name: str
    scope: str
    group: str
    trigger: str
    syntax: str
    origin: str
    paused: bool
    paused_itself: bool
    changed: bool
    broken: str | None
    pinned: bool
    next_tick: datetime | None
    going: tuple[Run, ...]
    last_run: Run | None
    last_success: datetime | None
    overdue: float | None
    about: str

    @property
    def failing(self) -> bool:
        """True when its last finished run failed or was lost."""
        return self.last_run is not None and self.last_run.status in (RunStatus.FAILED, RunStatus.LOST)


def job_view(
    job: EffectiveJob,
    row: ClaimRow | None,
    *,
    next_tick: datetime | None,
    going: tuple[Run, ...],
    overdue_seconds: float | None,
    cluster_paused: bool,
) -> JobView:
    """Return a job as the page shows it."""
    definition = job.definition
    last = None if row is None or row.last_run is None else Run.from_record(row.last_run)
    success = None if row is None else row.last_success
    return JobView(
        id=job.id,
        name=definition.name or job.id,
        scope=definition.scope,
        group=definition.group,
        trigger="not known" if job.schedule is None else job.schedule.describe(),
        syntax="not known" if job.schedule is None else str(job.schedule),
        origin=job.origin,
        paused=job.paused,
        paused_itself=job.paused and not cluster_paused,
        changed=job.changed,
        broken=job.broken,
        pinned=job.pinned,
        next_tick=next_tick,
        going=going,
        last_run=last,
        last_success=None if success is None else from_ms(success),
        overdue=overdue_seconds,
        about=_about(definition),
    )


def completed(view: JobView, last: Sequence[Run]) -> JobView:
    """Return a job with what its row lacks (a worker-scope job has none) taken from its last records."""
    ended = next((run for run in last if run.finished_at is not None and run.started_at is not None), None)
    success = next((run.finished_at for run in last if run.status is RunStatus.SUCCEEDED), None)
    return replace(view, last_run=view.last_run or ended, last_success=view.last_success or success)


def _about(definition: Definition) -> str:
    """Return the first sentence that its function says of itself."""
    text = inspect.getdoc(definition.func) if inspect.isfunction(definition.func) else None
    return "" if not text else shortened(text.strip().split("\n\n")[0], 300)


def _function(definition: Definition) -> str:
    func = definition.func
    if definition.ref:
        return definition.ref
    if func is None:
        return "not known"
    return f"{getattr(func, '__module__', '?')}:{getattr(func, '__qualname__', repr(func))}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _grace(definition: Definition) -> str:
    if definition.grace is None:
        return "none: a late tick runs however late"
    if definition.grace == "default":
        return "half the gap to the next tick, at least 60 s and two leases, at most 1 h"
    return seconds_text(definition.grace)


SCOPES = {
    "cluster": "cluster: once per tick in the whole cluster",
    "host": "host: once per tick on each host",
    "worker": "worker: in every worker process",
}


def settings_of(job: EffectiveJob, lease_seconds: float) -> list[tuple[str, str]]:
    """Return a job's settings as (name, text) pairs.

    :param lease_seconds: the lease of jobs that have none of their own.
    """
    definition = job.definition
    found: list[tuple[str, Any]] = [
        ("Function", _function(definition)),
        ("Arguments", _arguments(definition)),
        ("Trigger", "not known" if job.schedule is None else str(job.schedule)),
        ("Jitter", seconds_text(definition.jitter) if definition.jitter else "none"),
        ("Scope", SCOPES.get(definition.scope, definition.scope)),
        ("Group", definition.group),
        ("Executor", definition.executor),
        ("Grace time", _grace(definition)),
        ("Late ticks run as one (coalesce)", _yes(definition.coalesce)),
        ("Runs at once at most", definition.max_instances),
        (
            "A lost run is run again",
            f"yes, at most {definition.max_attempts} times" if definition.rerun_lost else "no",
        ),
        ("Lease", seconds_text(definition.lease or lease_seconds)),
        ("Longest run", seconds_text(definition.max_runtime) if definition.max_runtime else "no limit"),
        ("Defined", "by the code" if job.origin == "code" else "stored at run time"),
        ("Changed since by hand", _yes(job.changed)),
    ]
    return [(name, str(text)) for name, text in found]


def _arguments(definition: Definition) -> str:
    parts = [repr(value) for value in definition.args]
    parts += [f"{name}={value!r}" for name, value in definition.kwargs.items()]
    return shortened(", ".join(parts), 600) if parts else "none"
